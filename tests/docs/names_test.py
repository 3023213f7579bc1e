"""Looks for what the documents name and the tree does not have: links and their headings, files, tests, options, variables.

Usage: names_test.py SOURCE_FOLDER
"""

import pathlib
import re
import sys

FOLDERS = ("apps", "bench", "cmake", "docs", "examples", "include", "python", "scripts", "src", "tests", "tools")
CODE = ("", ".c", ".cmake", ".cpp", ".cu", ".cuh", ".h", ".hip", ".in", ".py", ".sh", ".txt")
FILE = re.compile(r"(\.\./)*\w[\w./-]*\.(c|cpp|cu|cuh|h|hip|py|sh|cmake|md|txt|in)|(\w+/)+")
# Of other programs: compilers', pkg-config's, CMake's.
OTHERS = {"--cflags", "--libs", "--prefix", "--preset", "--install", "--minimal", "--ptxas-options"}
# What CMake puts before the name of a test that it makes several of.
KINDS = r"(cuda|gpu|hip|simt32|simt64)_"


def headings(page):
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def missing_of_links(page, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        if not linked.exists():
            yield f"the link {target} leads nowhere"
        elif anchor and anchor not in headings(linked):
            yield f"{target} has no such heading"


def missing_of_code(spans, ends, words):
    """ends: all paths and their ends; words: all words of the code, and options."""
    for span in spans:
        if FILE.fullmatch(span):
            if re.sub(r"^(\.\./)+", "", span).rstrip("/") not in ends:
                yield f"there is no {span}"
        elif re.fullmatch(r"\w+_test", span):
            name = re.sub(KINDS, "", span)
            if not {span, name} & words and name + ".cpp" not in ends:
                yield f"there is no test {span}"
        for name in re.findall(r"(?<![\w-])--[a-z][\w-]*|\bTESSERA_[A-Z0-9_]+[A-Z0-9]\b", span):
            if name not in words | OTHERS:
                yield f"nothing knows {name}"


def main():
    source = pathlib.Path(sys.argv[1]).resolve()
    files = [path for path in source.iterdir() if path.is_file()]
    for folder in FOLDERS:
        files += [path for path in (source / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    ends, words = set(), set()
    for path in files:
        parts = path.relative_to(source).parts
        for end in range(1, len(parts) + 1):
            ends.update("/".join(parts[begin:end]) for begin in range(end))
        if path.suffix in CODE:
            words.update(re.findall(r"--[a-z][\w-]*|\w+", path.read_text(errors="replace")))
    pages = [path for path in files if path.suffix == ".md"]
    count = 0
    for page in sorted(pages):
        text = page.read_text()
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        blocks = re.findall(r"```.*?```", text, re.DOTALL)
        commands = [line for block in blocks for line in block.splitlines() if re.search(r"\b(tessera|scripts|python3)\b", line)]
        wrong = list(missing_of_links(page, re.sub(r"`[^`\n]*`", "", prose)))
        wrong += missing_of_code(re.findall(r"`([^`\n]+)`", prose) + commands, ends, words)
        count += len(wrong)
        for what in wrong:
            print(f"{page.relative_to(source)}: {what}")
    print(f"{len(pages)} pages, {count} names of what is not there")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
