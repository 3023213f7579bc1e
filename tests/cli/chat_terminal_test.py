#!/usr/bin/env python3
"""tessera chat in a terminal: prompt, editing, Ctrl-C. Usage: chat_terminal_test.py TESSERA MODEL"""

import os
import pty
import re
import select
import signal
import sys
import time

PATIENCE_S = 60


class Terminal:
    """The program behind a pseudo-terminal."""

    def __init__(self, arguments):
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm", LC_ALL="C")  # as in many containers
            os.execv(arguments[0], arguments)
        self.output = ""
        self.read = 0  # up to where expect() has looked

    def expect(self, pattern):
        """Waits until the output that comes next matches."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := re.search(pattern, self.output[self.read:])):
            ready, _, _ = select.select([self.master], [], [], max(0, deadline - time.monotonic()))
            try:
                data = os.read(self.master, 4096) if ready else b""
            except OSError:  # the program has ended
                data = b""
            if not data:
                sys.exit(f"FAILED: no {pattern!r} in what came last: {self.output[self.read:]!r}\nall: {self.output!r}")
            self.output += data.decode(errors="replace")
        self.read += found.end()
        return found.group(0)

    def type(self, text):
        os.write(self.master, text.encode())

    def end(self):
        """Types Ctrl-C, which empties the line, and Ctrl-D until the program ends. Libedit shows a prompt a moment before it
        changes the terminal's mode: a Ctrl-D in between becomes a character of the line."""
        deadline = time.monotonic() + PATIENCE_S
        next_try = 0.0
        while time.monotonic() < deadline:
            if time.monotonic() >= next_try:
                self.type("\x03\x04")
                next_try = time.monotonic() + 1
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return status
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.output += os.read(self.master, 4096).decode(errors="replace")
                except OSError:
                    pass
        os.kill(self.pid, signal.SIGKILL)
        sys.exit("FAILED: the program did not end")


def main():
    program, model = sys.argv[1:]
    # The reference is slow, so that an answer is still under way when Ctrl-C comes.
    terminal = Terminal([program, "chat", "--model", model, "--max-tokens", "900", "--backend", "reference", "--threads", "2"])
    edits = "can't be edited" not in terminal.expect(r"/help lists the commands[^\n]*\n")
    terminal.expect("> ")

    # Ctrl-C stops the answer and not the program. On a busy machine an answer may be complete before.
    for _ in range(5):
        terminal.type("/reset\n")
        terminal.expect("the conversation is forgotten")
        terminal.expect("> ")
        terminal.type("Once upon a time\n")
        terminal.expect(", there was")  # how the demo model goes on
        terminal.type("\x03")
        stopped = terminal.expect(r"stopped: \w+")
        terminal.expect("> ")
        if stopped == "stopped: cancelled":
            break
    else:
        sys.exit("FAILED: Ctrl-C stopped no answer")

    terminal.type("/nothinx\x7fg\n" if edits else "/nothing\n")  # a letter taken back
    terminal.expect("there is no command '/nothing'")
    terminal.expect("> ")
    terminal.type("/gr\u00fc\u00dfe\u65e5\U0001f600\n")  # of two, three and four bytes
    terminal.expect("there is no command '/gr\u00fc\u00dfe\u65e5\U0001f600'")
    terminal.expect("> ")
    if edits:
        terminal.type("gone\x03/system\n")  # Ctrl-C empties the line
        terminal.expect("there is no system prompt")
        terminal.expect("> ")
        terminal.type("\x10\n")  # Ctrl-P: the line before
        terminal.expect("there is no system prompt")
        terminal.expect("> ")
    if terminal.end() != 0:
        sys.exit("FAILED: exit status")
    print("passed", "with editing" if edits else "without libedit")


if __name__ == "__main__":
    main()
