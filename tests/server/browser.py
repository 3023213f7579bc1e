"""A headless Chromium, driven through chromedriver by the WebDriver protocol."""

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
ENTER, ESCAPE, SHIFT, ALT = "\ue007", "\ue00c", "\ue008", "\ue00a"


def is_installed():
    return shutil.which("chromedriver") is not None and shutil.which("chromium") is not None


def _start_driver():
    """A chromedriver and its port. It takes a port that is free for one family of addresses, and ends if it isn't for the other."""
    for _ in range(10):
        driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        for line in driver.stdout:
            if found := re.search(r"started successfully on port (\d+)", line):
                return driver, found[1]
        driver.wait()
    raise RuntimeError(f"chromedriver doesn't start: exit code {driver.returncode}")


class Browser:
    def __init__(self, width=1200, height=800):
        self.driver, port = _start_driver()
        self.base = f"http://127.0.0.1:{port}/session"
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                            f"--window-size={width},{height}"]}
        self.base += "/" + self.call("", {"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}})["sessionId"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.call("", method="DELETE")
        self.driver.terminate()
        self.driver.wait()

    def call(self, path, body=None, method=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return json.loads(response.read())["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()[:1000]) from None

    def open(self, url):
        self.call("/url", {"url": url})

    def run(self, script, *arguments):
        """The value of JavaScript's `script`, a function's body."""
        return self.call("/execute/sync", {"script": script, "args": list(arguments)})

    def run_async(self, script, *arguments):
        """What `script` hands to the last of its arguments, a function."""
        return self.call("/execute/async", {"script": script, "args": list(arguments)})

    def find(self, css):
        return self.call("/element", {"using": "css selector", "value": css})[ELEMENT]

    def click(self, css):
        self.call(f"/element/{self.find(css)}/click", {})

    def type(self, css, text):
        self.call(f"/element/{self.find(css)}/value", {"text": text})

    def keys(self, *keys):
        """Presses keys together, wherever the focus is."""
        actions = [{"type": "keyDown", "value": key} for key in keys] + [{"type": "keyUp", "value": key} for key in reversed(keys)]
        self.call("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def wait(self, script, *arguments, seconds=60):
        """The first true value of `script`."""
        deadline = time.monotonic() + seconds
        while not (value := self.run(script, *arguments)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"never true: {script}")
            time.sleep(0.05)
        return value

    def resize(self, width, height):
        """The page's size, as a phone's."""
        self.call("/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {
            "width": width, "height": height, "deviceScaleFactor": 2, "mobile": True}})

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("/screenshot")))

    def complaints(self):
        """What the browser's console got since the last call."""
        return [entry["message"] for entry in self.call("/se/log", {"type": "browser"})]
