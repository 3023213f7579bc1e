#!/usr/bin/env python3
"""The server's page in a headless Chromium. Usage: page_test.py TESSERA MODEL [FOLDER for screenshots]

Exit code 77 (skipped) if chromium and chromium-driver are not installed.
"""

import os
import sys

from browser import ALT, ENTER, ESCAPE, SHIFT, Browser, is_installed
from serving import Server, check

IDLE = "return !document.querySelector('[aria-busy]')"
ANSWERS = "return [...document.querySelectorAll('.assistant .content')].map((node) => node.textContent)"
QUESTIONS = "return [...document.querySelectorAll('.user .content')].map((node) => node.textContent)"
STATUS = "return document.getElementById('status').textContent"

MARKDOWN = """# Title
A *word*, **two words**, `code`, [a link](https://example.com/x) and https://example.org/y.

```python
print("<b>not bold</b>")
```

- one
- two
  - inner

1. first
2. second

> quoted

| a | b |
|---|---|
| 1 | 2 |
"""
HOSTILE = """<script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">
[click](javascript:window.hacked=1) [data](data:text/html,<script>1</script>) <a href="javascript:1">x</a>

```html
<script>window.hacked = 1</script>
```
> <iframe src="javascript:parent.hacked=1"></iframe>

| <svg onload="window.hacked=1"> | b |
|---|---|
| 1 | 2 |
"""
RENDER = """const [text, done] = arguments;
import('./markdown.js').then(({renderMarkdown}) => {
  const box = document.createElement('div');
  box.append(renderMarkdown(text));
  document.body.append(box);
  const nodes = [...box.querySelectorAll('*')].map((node) => [node.localName, node.getAttributeNames().join(), node.getAttribute('href') ?? '']);
  setTimeout(() => { const html = box.innerHTML; box.remove(); done([html, nodes, window.hacked ?? null]); }, 100);
}, (error) => done([String(error), [], null]));"""


class Screenshots:
    def __init__(self, folder):
        self.folder = folder

    def take(self, browser, name):
        if self.folder:
            os.makedirs(self.folder, exist_ok=True)
            browser.screenshot(os.path.join(self.folder, name + ".png"))


def conversation(browser, screenshots):
    check(browser.run("return document.activeElement.id") == "text", "the message has the focus")
    browser.type("#text", "Once upon a time")
    browser.keys(SHIFT, ENTER)
    browser.type("#text", "there was a fox.")
    browser.keys(ENTER)
    browser.wait("return document.querySelector('.assistant .content')?.textContent.length > 10")
    browser.wait(IDLE)
    check(browser.run(QUESTIONS) == ["Once upon a time\nthere was a fox."], "Shift+Enter begins a line, Enter sends")
    check("tokens read" in browser.run(STATUS), f"the status: {browser.run(STATUS)}")
    check("tokens/s" in browser.run("return document.querySelector('.assistant .rate').textContent"), "a rate")
    screenshots.take(browser, "answer")

    first = browser.run(ANSWERS)
    browser.click(".assistant .actions button")
    browser.wait("return document.querySelector('[aria-busy]') !== null || arguments[0] !== document.querySelector('.assistant .content').textContent", first[0])
    browser.wait(IDLE)
    check(len(browser.run(ANSWERS)) == 1 and browser.run(ANSWERS) != first, "Retry writes another answer")

    browser.click(".user .actions button")
    check(browser.run("return document.getElementById('text').value") == "Once upon a time\nthere was a fox.", "Edit brings the question back")
    check(browser.run(QUESTIONS) == [], "and takes it out of the conversation")


# Stops an answer at its first words, within the page: a small model is done with it before a test program has looked.
STOP_EARLY = """const how = arguments[0];
new MutationObserver((_, observer) => {
  if (!(document.querySelector('.assistant .content')?.textContent.length > 10)) return;
  observer.disconnect();
  if (how === 'button') document.getElementById('stop').click();
  else document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: true}));
}).observe(document.body, {childList: true, subtree: true, characterData: true});"""


def stopping(browser):
    browser.run("document.getElementById('text').value = ''; document.getElementById('max_tokens').value = 900")
    for how in ("button", "key"):
        browser.keys(ALT, "n")
        browser.run(STOP_EARLY, how)
        browser.type("#text", "One day, a girl named Mia" + ENTER)
        browser.wait("return document.querySelector('.assistant .content')?.textContent.length > 10")
        browser.wait(IDLE)
        check(browser.run(STATUS) == "Stopped.", f"stopped by {how}: {browser.run(STATUS)}")
        check(len(browser.run(ANSWERS)) == 1, "what was there of the answer stays")
    browser.type("#text", "What then?" + ENTER)
    browser.wait(IDLE)
    browser.wait("return document.querySelectorAll('.assistant').length == 2")
    browser.keys(ESCAPE)
    browser.wait(IDLE)
    check(len(browser.run(QUESTIONS)) == 2, "the conversation goes on")


def settings(browser, screenshots):
    browser.click("#show-settings")
    check(browser.run("return document.activeElement.id") == "system", "settings get the focus")
    browser.run("document.getElementById('max_tokens').value = ''")
    browser.type("#system", "You are a poet.")
    browser.type("#temperature", "0")
    browser.type("#max_tokens", "5")
    browser.run("document.getElementById('new-chat').click(); const ask = fetch; window.fetch = (url, options) => { window.sent = options.body; return ask(url, options); }")
    browser.type("#text", "Hello" + ENTER)
    browser.wait("return document.querySelector('.assistant .rate')?.textContent")
    browser.wait(IDLE)
    sent = browser.run("return JSON.parse(window.sent)")
    check(sent["messages"][0] == {"role": "system", "content": "You are a poet."} and sent["temperature"] == 0 and sent["max_tokens"] == 5,
          f"settings are sent: {sent}")
    check("cut off" in browser.run(STATUS), "an answer that is cut off says so")
    screenshots.take(browser, "settings")
    browser.run("document.getElementById('temperature').value = 7")
    browser.type("#text", "Hello" + ENTER)
    browser.wait(IDLE)
    browser.wait("return document.querySelector('#status.error')")
    check("temperature is 7" in browser.run(STATUS), "a wrong setting is told")
    browser.click("#reset-settings")
    browser.click(".user:nth-last-child(2) .actions button")
    browser.wait("return document.querySelectorAll('.assistant .rate')[1]?.textContent")
    browser.wait(IDLE)
    check(browser.run("return document.querySelectorAll('.error:not(#status)').length") == 0, "Retry takes the error away")
    check(browser.run("return document.getElementById('system').value") == "", "settings can be taken back")


def looks(browser, screenshots):
    back = "return getComputedStyle(document.body).backgroundColor"
    before = browser.run(back)
    browser.click("#theme")
    check(browser.run(back) != before, "the other theme has another background")
    screenshots.take(browser, "dark")
    browser.call("/refresh", {})
    check(browser.run(back) != before, "the theme stays")
    browser.click("#theme")
    check(browser.run(back) == before, "and can be changed back")
    browser.resize(390, 844)
    browser.type("#text", "One day, a girl named Mia" + ENTER)
    browser.wait("return document.querySelector('.assistant .rate')?.textContent")
    screenshots.take(browser, "phone")
    check(browser.run("return document.documentElement.scrollWidth <= innerWidth && document.documentElement.scrollHeight <= innerHeight"),
          "a phone's page does not scroll sideways")
    small = browser.run("""return [...document.querySelectorAll('header button, #composer button')].filter((node) => !node.hidden &&
        (node.getBoundingClientRect().height < 40 || node.getBoundingClientRect().right > innerWidth)).map((node) => node.id)""")
    check(small == [], f"buttons that are too small for a finger, or out of sight: {small}")
    browser.click("#show-settings")
    screenshots.take(browser, "phone_settings")


def attention(browser, screenshots):
    browser.run("document.getElementById('max_tokens').value = 12; document.getElementById('new-chat').click()")
    browser.type("#text", "One day, a girl named Mia" + ENTER)
    browser.wait("return document.querySelector('.assistant .rate')?.textContent")
    browser.wait(IDLE)
    browser.click(".assistant .actions button:nth-child(2)")
    browser.wait("return document.querySelector('.attention')")
    weights = "return [...document.querySelectorAll('.tokens button')].map((node) => node.title)"
    shown = browser.run(weights)
    check(len(shown) > 15 and abs(sum(float(text.split()[0]) for text in shown) - 100) < 2, f"weights of the last token: {shown}")
    browser.click(".tokens button:nth-child(6)")
    browser.wait("return document.querySelector('.tokens button:nth-child(6)').ariaPressed == 'true'")
    looked = browser.run(weights)
    check(looked.count("comes later") == len(shown) - 6, f"a token sees none that come later: {looked}")
    browser.run("const layer = document.querySelector('.attention select'); layer.value = 0; layer.dispatchEvent(new Event('change'))")
    browser.wait("return arguments[0] != [...document.querySelectorAll('.tokens button')].map((node) => node.title).join()", ",".join(looked))
    screenshots.take(browser, "attention")
    browser.click(".assistant .actions button:nth-child(2)")
    check(browser.run("return document.querySelector('.attention')") is None, "and it closes")


def markdown(browser):
    html, _, _ = browser.run_async(RENDER, MARKDOWN)
    for part in ("<h1>Title</h1>", "<em>word</em>", "<strong>two words</strong>", "<code>code</code>", 'href="https://example.com/x"',
                 'href="https://example.org/y"', "&lt;b&gt;not bold&lt;/b&gt;", "<span>python</span>", "<li>one</li>",
                 "<li>two<ul><li>inner</li></ul></li>", "<ol start=\"1\"><li>first</li><li>second</li></ol>",
                 "<blockquote><p>quoted</p></blockquote>", "<th>a</th>", "<td>2</td>"):
        check(part in html, f"{part} is not in {html}")
    _, nodes, hacked = browser.run_async(RENDER, HOSTILE)
    check(hacked is None and len(nodes) > 10, "an answer runs no script")
    for name, attributes, target in nodes:
        check(name in ("p", "br", "div", "span", "button", "pre", "code", "blockquote", "table", "thead", "tbody", "tr", "th", "td", "a") and
              set(attributes.split(",")) <= {"", "class", "type", "href", "target", "rel"} and not target.startswith(("javascript:", "data:")),
              f"an answer brings no markup: {name} {attributes} {target}")
    for text in ("`" * 5000, "*" * 5000, "[" * 5000, "> " * 3000, "- \n" * 3000, "|" * 3000 + "\n|-|", "  " * 2000 + "- x"):
        browser.run_async(RENDER, text)  # ends


def main():
    tessera, model = sys.argv[1:3]
    if not is_installed():
        print("SKIPPED: chromium and chromium-driver are not installed")
        sys.exit(77)
    screenshots = Screenshots(sys.argv[3] if len(sys.argv) > 3 else "")
    with Server(tessera, model) as server, Browser() as browser:
        browser.open(server.url)
        browser.wait("return document.getElementById('model').textContent.includes(arguments[0])", server.name)
        conversation(browser, screenshots)
        stopping(browser)
        complaints = browser.complaints()
        check(complaints == [], f"the console stays empty: {complaints}")
        settings(browser, screenshots)
        attention(browser, screenshots)
        looks(browser, screenshots)
        markdown(browser)
        complaints = [line for line in browser.complaints() if "400 (Bad Request)" not in line]
        check(complaints == [], f"the console stays empty: {complaints}")
    print(f"{check.count} checks passed")


main()
