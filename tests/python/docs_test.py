"""The examples of docs/python.md, a section at a time. Sections that import what is not installed are skipped."""

import doctest
import importlib.util
import os
import pathlib
import re
import unittest

SOURCE = pathlib.Path(os.environ["TESSERA_SOURCE_DIR"])


class Docs(unittest.TestCase):
    def run_section(self, title, text):
        for package in ("torch", "transformers"):
            if f"import {package}" in text and importlib.util.find_spec(package) is None:
                self.skipTest(f"{title}: {package} is not installed")
        example = doctest.DocTestParser().get_doctest(text, {}, title, "docs/python.md", 0)
        output = []
        results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=output.append)
        self.assertGreater(results.attempted, 2)
        self.assertEqual(results.failed, 0, "".join(output))


def _add_sections():
    page = (SOURCE / "docs" / "python.md").read_text()
    for title, text in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE):
        if ">>>" in text:
            name = "test_" + re.sub(r"\W+", "_", title.lower())
            setattr(Docs, name, lambda self, title=title, text=text: self.run_section(title, text))


_add_sections()
_directory = os.getcwd()


def setUpModule():
    os.chdir(SOURCE)  # of models/demo


def tearDownModule():
    os.chdir(_directory)


if __name__ == "__main__":
    unittest.main()
