"""Sphinx: ``make docs`` builds the site of the daemon (``docs``) and the extension (``salt/docs``) from the repository's root.

With the root as source directory, pages of both folders link to each other by their paths, so links also work in a checkout and on a code host. A symbolic link
``docs/extension`` would break them. Generated pages are files in the repository: a change of the code shows the change of its page, and packages ship them.
"""

import runpy
from pathlib import Path

EXTENSION = runpy.run_path(str(Path(__file__).resolve().parents[1] / "salt" / "docs" / "conf.py"))

project = "saltcellar"
author = copyright = EXTENSION["author"]  # pylint: disable=redefined-builtin
release = version = EXTENSION["release"]

extensions = EXTENSION["extensions"]
intersphinx_mapping = EXTENSION["intersphinx_mapping"]
autodoc_mock_imports = EXTENSION["autodoc_mock_imports"]
autodoc_typehints = EXTENSION["autodoc_typehints"]
setup = EXTENSION["setup"]
nitpicky = True
myst_heading_anchors = 4
root_doc = "docs/index"
include_patterns = ["docs/**", "salt/docs/**"]
exclude_patterns = [".git", "crates", "fuzz", "src", "target", "tests"]
html_theme = "furo"
html_title = f"{project} {release}"
