#!/usr/bin/env python3
"""
Whether a release depends on the folder and the time of its build.

    python release/check.py DIR     DIR has the files of `make release` of this commit

Clones the commit into another folder, with a longer path and another umask, runs `make release` there, and compares every file byte for byte.
"""

import filecmp
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]


def run(*command, **how):
    """Runs a command; ends with its code if it fails."""
    done = subprocess.run(command, check=False, **how)
    if done.returncode:
        sys.exit(f"release-check: {' '.join(map(str, command))} ended with {done.returncode}")


def build(second):
    """A second release of this commit in a folder. Returns its files' directory. Installed tools are reused."""
    run("git", "clone", "--quiet", "--shared", REPO, second)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "CARGO_TARGET_DIR"))}
    tools = [f"{name}={REPO / 'target' / path}" for name, path in (("TOOLS", "tools"), ("PACKAGE_VENV", "package-venv"))]
    before = os.umask(0o002)
    run("make", "--no-print-directory", "release", *tools, cwd=second, env=env, stdout=subprocess.DEVNULL)
    os.umask(before)
    return second / "target" / "dist"


def differences(one, two):
    """What differs between two directories of files."""
    names = {path.name for directory in (one, two) for path in directory.iterdir()}
    if not names:
        return [f"{one} and {two} are empty"]
    found = []
    for name in sorted(names):
        if not (one / name).exists() or not (two / name).exists():
            found.append(f"{name} is in one of them only")
        elif not filecmp.cmp(one / name, two / name, shallow=False):
            found.append(f"{name} differs: {(one / name).stat().st_size} and {(two / name).stat().st_size} bytes")
    return found


def main():
    """Builds and compares."""
    one = Path(sys.argv[1]).resolve()
    if not (one / "SHA256SUMS").exists():
        sys.exit(f"release-check: {one} has no SHA256SUMS: run `make release` first")
    # Outside the first checkout: cargo and rustup also read the settings of the directories above.
    scratch = Path(tempfile.mkdtemp(prefix="saltcellar-a-second-folder-with-a-longer-path-"))
    two = build(scratch / "saltcellar")
    found = differences(one, two)
    if found:
        sys.exit("release-check: two builds of one commit differ:\n  " + "\n  ".join(found) + f"\n  ({one}, {two})")
    print(f"release-check: {len(list(one.iterdir()))} files are equal in two builds")
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
