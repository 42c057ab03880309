#!/usr/bin/env python3
"""
The extension's packages: a source distribution, a wheel that is built from it, and a directory for
``module_dirs``.

    package.py                  writes both packages to salt/dist/ and prints their paths

    package.py --dir DIR        writes them to DIR

    package.py --modules DIR    writes the directory that Salt loads by its option ``module_dirs``

The packages need a Python with setuptools and wheel; nothing is downloaded. Their contents are
checked: the package and its licence, and nothing else, so that a forgotten file is detected here
and not on a master. All files have the same bytes for the same source (``SOURCE_DATE_EPOCH``, the
time in them, is 2020-01-01 unless set).
"""

import argparse
import ast
import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

SALT = Path(__file__).resolve().parents[1]
PACKAGE = SALT / "src" / "saltext" / "saltcellar"
#: Contents of a source distribution.
SOURCES = (
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
    "noxfile.py",
    "src",
    "tests",
    "docs",
    "tools",
    "bench",
    "changelog",
)
#: Directories of the package that Salt's loader searches.
LOADED = ("beacons", "engines", "modules", "returners", "runners")
HOOK = (
    "import sys; from setuptools import build_meta;"
    "print(getattr(build_meta, 'build_' + sys.argv[1])(sys.argv[2]))"
)

#: Precedes the code of a module in the directory for ``module_dirs``: where the package is that it
#: imports.
PROLOGUE = """
# Written from saltext.saltcellar {version} by salt/tools/package.py: change it there.

import os
import sys

_LIB = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "lib")
if _LIB not in sys.path:
    sys.path.insert(0, _LIB)
_FOUND = sys.modules.get("saltext.saltcellar")
if _FOUND is not None and not (
    (getattr(_FOUND, "__file__", None) or "").startswith(os.path.join(_LIB, ""))
    and getattr(_FOUND, "__version__", None) == "{version}"
):
    # Of a release before an upgrade, or from pip. Who imported it keeps it; this module needs its
    # own.
    for _name in list(sys.modules):
        if f"{{_name}}.".startswith("saltext.saltcellar."):
            del sys.modules[_name]

"""


class PackageError(Exception):
    """A package could not be built, or has wrong contents."""


def epoch():
    """The time in all files."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or 1577836800)


def version():
    """The extension's version, read as text."""
    text = (PACKAGE / "version.py").read_text(encoding="utf-8")
    return re.search(r'__version__ = "([^"]+)"', text)[1]


def build(into):
    """Build both packages. Returns their paths."""
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sc-package-") as directory:
        scratch = Path(directory)
        tree = scratch / "source"
        tree.mkdir()
        for name in SOURCES:
            copy(SALT / name, tree / name)
        sdist = into / hook("sdist", tree, into)
        normalise(sdist)
        with tarfile.open(sdist) as archive:
            # Made above. The filter came with 3.11.4, and to older ones with a security release.
            safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(scratch / "unpacked", **safe)  # noqa: S202
        (unpacked,) = (scratch / "unpacked").iterdir()
        # From the source distribution, so that a file missing there is missing here.
        wheel = into / hook("wheel", unpacked, into)
    check(wheel, sdist)
    return sdist, wheel


def copy(source, to):
    """Copy a file or a tree without what Python generates, and with the same modes under any umask."""
    if source.is_dir():
        for path in sorted(source.rglob("*")):
            part = path.relative_to(source)
            ignored = any(
                name == "__pycache__" or name.endswith(".egg-info") for name in part.parts
            )
            if path.is_file() and not ignored:
                copy(path, to / part)
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, to)
    to.chmod(0o644)


def hook(kind, tree, into):
    """Call the build backend as a build front end does (PEP 517). Returns the name of the new file."""
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch())}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HOOK, kind, str(into.resolve())],
        cwd=tree,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        # Modes of generated files are in the archives.
        umask=0o022,
    )
    if done.returncode:
        raise PackageError(f"the {kind} was not built:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout.splitlines()[-1]


def normalise(sdist):
    """
    Write a source distribution again with fixed times, owners, modes and order.

    setuptools takes them from the file system.
    """
    with tarfile.open(sdist) as archive:
        members = sorted(archive.getmembers(), key=lambda member: member.name)
        contents = [
            archive.extractfile(member).read() if member.isfile() else b"" for member in members
        ]
    with (
        open(sdist, "wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for old, content in zip(members, contents):
            member = tarfile.TarInfo(old.name)
            member.type = old.type
            member.size = len(content)
            member.mtime = epoch()
            member.mode = 0o755 if old.isdir() else 0o644
            archive.addfile(member, io.BytesIO(content))


def check(wheel, sdist):
    """Raise unless both have exactly the expected files."""
    package = {path.relative_to(SALT / "src").as_posix() for path in PACKAGE.rglob("*.py")}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        info = {name for name in names if ".dist-info/" in name}
        base = {name.split("/", 1)[1].removeprefix("licenses/") for name in info}
        wanted = {"LICENSE", "METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt"}
        if names - info != package:
            raise PackageError(
                f"{wheel}: files differ from the package: {sorted((names - info) ^ package)}"
            )
        if base != wanted:
            raise PackageError(f"{wheel}: unexpected dist-info: {sorted(base ^ wanted)}")
    with tarfile.open(sdist) as archive:
        held = {member.name.split("/", 1)[-1] for member in archive.getmembers() if member.isfile()}
    missing = {f"src/{name}" for name in package} | {"PKG-INFO"}
    for name in SOURCES:
        tests = sorted((SALT / name).rglob("*.py")) if (SALT / name).is_dir() else [SALT / name]
        missing |= {
            path.relative_to(SALT).as_posix() for path in tests if "__pycache__" not in path.parts
        }
    if missing - held:
        raise PackageError(f"{sdist}: missing {sorted(missing - held)}")


def modules(into):
    """
    Write the directory for ``module_dirs``: each module that Salt loads, in a directory of its
    kind, and the package in ``lib``.

    Returns the written paths.
    """
    written = []
    for source in sorted(PACKAGE.rglob("*.py")):
        part = source.relative_to(PACKAGE)
        if part.parts[0] not in LOADED:
            written.append(into / "lib" / "saltext" / "saltcellar" / part)
            copy(source, written[-1])
        elif part.name != "__init__.py":
            written.append(into / part)
            written[-1].parent.mkdir(parents=True, exist_ok=True)
            written[-1].write_text(standing_alone(source), encoding="utf-8")
            written[-1].chmod(0o644)
    return written


def standing_alone(source):
    """The text of a module that Salt loads, with :data:`PROLOGUE` behind its docstring, where Salt expects it."""
    text = source.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    end = ast.parse(text).body[0].end_lineno
    return "".join(
        [*lines[:end], PROLOGUE.format(version=version()), "".join(lines[end:]).lstrip("\n")]
    )


def main():
    """Write the packages or the directory, and print their paths."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, default=SALT / "dist")
    parser.add_argument("--modules", type=Path, metavar="DIR")
    args = parser.parse_args()
    try:
        for path in modules(args.modules) if args.modules else build(args.dir):
            print(path)
    except PackageError as exc:
        sys.exit(f"package: {exc}")


if __name__ == "__main__":
    main()
