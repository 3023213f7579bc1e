"""Runs `tessera serve` for a test."""

import json
import subprocess
import sys
import urllib.error
import urllib.request


class Server:
    """The server of a model, at a free port. Ends with the block."""

    def __init__(self, tessera, model, *options):
        self.process = subprocess.Popen([tessera, "serve", "--model", model, "--port", "0", "--backend", "cpu", *options],
                                        stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if " at http://" not in line:
            sys.exit(f"FAILED: the server said {line!r} and ended with {self.process.wait()}")
        self.url = line.split(" at ")[1].strip()
        self.name = line.split('"')[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        if (status := self.process.wait(timeout=60)) != 0:
            sys.exit(f"FAILED: the server ended with {status}")

    def ask(self, path, body=None, headers=None):
        """Status and JSON of a request; a POST if there is a body."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


def check(condition, what):
    """Ends the test unless `condition` holds."""
    if not condition:
        sys.exit(f"FAILED: {what}")
    check.count += 1


check.count = 0
