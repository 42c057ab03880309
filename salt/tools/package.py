#!/usr/bin/env python3
"""
The extension's packages: a source distribution, and a wheel that is built from it.

    python salt/tools/package.py                writes both to salt/dist/, prints their paths
    python salt/tools/package.py --dir DIR      writes them there

Run it with a Python that has setuptools and wheel; nothing is downloaded. The contents are checked: the package and its
licence, and nothing else, so that a forgotten file is detected here and not on a master. The
wheel has the same bytes for the same source (``SOURCE_DATE_EPOCH``, the time in it, is 2020-01-01 unless set).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

SALT = Path(__file__).resolve().parents[1]
#: Contents of a source distribution.
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src")
HOOK = "import sys; from setuptools import build_meta; print(getattr(build_meta, 'build_' + sys.argv[1])(sys.argv[2]))"


class PackageError(Exception):
    """A package could not be built, or has wrong contents."""


def build(into):
    """Build both. Returns their paths."""
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sc-package-") as scratch:
        scratch = Path(scratch)
        tree = scratch / "source"
        tree.mkdir()
        for name in SOURCES:
            source = SALT / name
            if source.is_dir():
                shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            else:
                shutil.copy2(source, tree / name)
        sdist = into / hook("sdist", tree, into)
        with tarfile.open(sdist) as archive:
            # The filter came with 3.11.4, and to older ones with a security release.
            archive.extractall(scratch / "unpacked", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        (unpacked,) = (scratch / "unpacked").iterdir()
        # From the source distribution, so that a file missing there is missing here.
        wheel = into / hook("wheel", unpacked, into)
    check(wheel, sdist)
    return sdist, wheel


def hook(kind, tree, into):
    """Call the build backend as a build front end does (PEP 517). Returns the name of the new file."""
    env = {"SOURCE_DATE_EPOCH": "1577836800", **os.environ}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HOOK, kind, str(into.resolve())],
        cwd=tree,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PackageError(f"the {kind} was not built:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout.splitlines()[-1]


def check(wheel, sdist):
    """Raise unless both have exactly the expected files."""
    package = {
        path.relative_to(SALT / "src").as_posix() for path in (SALT / "src" / "saltext" / "saltcellar").rglob("*.py")
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        info = {name for name in names if ".dist-info/" in name}
        base = {name.split("/", 1)[1].removeprefix("licenses/") for name in info}
        wanted = {"LICENSE", "METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt"}
        if names - info != package:
            raise PackageError(f"{wheel}: files differ from the package: {sorted((names - info) ^ package)}")
        if base != wanted:
            raise PackageError(f"{wheel}: unexpected dist-info: {sorted(base ^ wanted)}")
    with tarfile.open(sdist) as archive:
        held = {member.name.split("/", 1)[-1] for member in archive.getmembers() if member.isfile()}
    missing = {f"src/{name}" for name in package} | {"LICENSE", "README.md", "pyproject.toml", "PKG-INFO"}
    if missing - held:
        raise PackageError(f"{sdist}: missing {sorted(missing - held)}")


def main():
    """Build both and print their paths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=SALT / "dist")
    args = parser.parse_args()
    try:
        for path in build(args.dir):
            print(path)
    except PackageError as exc:
        sys.exit(f"package: {exc}")


if __name__ == "__main__":
    main()
