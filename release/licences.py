#!/usr/bin/env python3
"""
The licences of the libraries that are linked into the program, from cargo's sources of them.

    python release/licences.py FILE     writes them to FILE

A library that may be used under the Apache License 2.0, whose text is in LICENSE, is named only, with its NOTICE. Of the others the texts follow,
each once, with the libraries that have it.
"""

import collections
import json
import os
import re
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
PROGRAM = "saltcellar"
TEXTS = re.compile(r"(licen[cs]e|copying|copyright|unlicense)", re.IGNORECASE)
WIDTH = 100


def linked():
    """The packages that are linked into the program, by name and version."""
    command = [os.environ.get("CARGO", "cargo"), "metadata", "--locked", "--format-version", "1", "--filter-platform", "x86_64-unknown-linux-gnu"]
    found = json.loads(subprocess.run(command, cwd=REPO, check=True, capture_output=True, text=True).stdout)
    packages = {one["id"]: one for one in found["packages"]}
    needs = {
        node["id"]: [dep["pkg"] for dep in node["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
        for node in found["resolve"]["nodes"]
    }
    (root,) = [key for key, one in packages.items() if one["name"] == PROGRAM]
    seen, left = set(), [root]
    while left:
        key = left.pop()
        if key not in seen:
            seen.add(key)
            left.extend(needs[key])
    return sorted((packages[key] for key in seen if packages[key]["source"]), key=lambda one: (one["name"], one["version"]))


def is_apache(package):
    """Whether the Apache License 2.0 is enough."""
    expression = (package["license"] or "").replace("/", " OR ")
    return any(option.strip(" ()") == "Apache-2.0" for option in re.split(r"\bOR\b", expression)) and "AND" not in expression


def texts(package, is_meant):
    """The files of a package with such names, also those of bundled sources."""
    directory = Path(package["manifest_path"]).parent
    paths = sorted(path for path in directory.rglob("*") if path.is_file() and is_meant(path.name) and path.suffix not in (".rs", ".py", ".toml", ".json"))
    return [path.read_text(encoding="utf-8", errors="replace").strip() for path in paths]


def document(packages):
    """The whole document."""
    apache, others, notices = [], collections.defaultdict(list), collections.defaultdict(list)
    without = []
    for package in packages:
        name = f"{package['name']} {package['version']} ({package['license'] or 'see its text'})"
        if is_apache(package):
            apache.append(name)
            for text in texts(package, lambda file: file.upper().startswith("NOTICE")):
                notices[text].append(name)
            continue
        found = texts(package, TEXTS.match)
        for text in found:
            others[text].append(name)
        if not found:
            without.append(f"{name}, by {', '.join(package['authors']) or 'its authors'}")
    parts = ["The program saltcellar contains these libraries.", "Under the Apache License 2.0, see LICENSE:\n\n" + "\n".join(apache)]
    parts += ["Under the licence that their package names without its text:\n\n" + "\n".join(without)] if without else []
    for by_text in (notices, others):
        for text, names in sorted(by_text.items(), key=lambda item: item[1]):
            parts.append("\n".join(dict.fromkeys(names)) + ":\n\n" + text)
    return f"\n\n{'-' * WIDTH}\n\n".join(parts) + "\n"


def main():
    """Write the document."""
    packages = linked()
    if not packages:
        sys.exit("licences: no libraries found")
    Path(sys.argv[1]).write_text(document(packages), encoding="utf-8")


if __name__ == "__main__":
    main()
