"""Sphinx: ``nox -s docs`` builds these pages alone, ``make docs`` as a part of the daemon's site. Salt is mocked."""

import os
import re
import sys
from pathlib import Path

SRC = Path(__file__).resolve().parents[1] / "src"
sys.path.insert(0, str(SRC))

project = "saltext.saltcellar"
author = "The saltcellar authors"
copyright = author  # pylint: disable=redefined-builtin
release = re.search(
    r'__version__ = "([^"]+)"',
    (SRC / "saltext" / "saltcellar" / "version.py").read_text(encoding="utf-8"),
)[1]
version = release

extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "myst_parser"]
# Inventories are downloaded: the daemon's site is built without a network.
if os.environ.get("DOCS_INTERSPHINX"):
    extensions.append("sphinx.ext.intersphinx")
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", None),
    "salt": ("https://docs.saltproject.io/en/latest", None),
}
autodoc_mock_imports = ["salt"]
# Names of private aliases say less than the text.
autodoc_typehints = "none"
nitpicky = True
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"{project} {release}"
exclude_patterns = ["_build"]


def _depends(app, what, name, obj, options, lines):  # pylint: disable=too-many-arguments,unused-argument
    """``:depends:`` and ``:configuration:`` are Salt's own fields of a module's docstring."""
    for number, line in enumerate(lines):
        lines[number] = re.sub(
            r"^:(depends|configuration):", lambda found: f":{found[1].title()}:", line
        )


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _depends)
