#!/usr/bin/env python3
"""
Whether a release depends on the folders and the time of its build.

    python release/check.py DIR [SCRATCH]     DIR has the files of `make release` of this commit

Clones the commit into another folder, with a longer path, below SCRATCH (the directory for temporary files), runs `make release` there with another
path of cargo's downloads and another umask, and compares every file byte for byte.
"""

import filecmp
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPO / "release"), str(REPO / "tests" / "systemd")]

import machine  # noqa: E402
from sbom import COMMIT  # noqa: E402

#: For sources, two complete builds and their packages.
ROOM_BYTES = 12 * 1024**3


def run(*command, **how):
    """Runs a command; ends with its code if it fails."""
    done = subprocess.run(command, check=False, **how)
    if done.returncode:
        sys.exit(f"release-check: {' '.join(map(str, command))} ended with {done.returncode}")
    return done


def ensure_of_this_commit(directory):
    """Ends unless the files were built from this commit."""
    head = run("git", "-C", REPO, "rev-parse", "HEAD", capture_output=True, text=True).stdout.strip()
    for path in directory.glob("*.cdx.json"):
        properties = json.loads(path.read_text(encoding="utf-8"))["metadata"].get("properties", ())
        found = next((one["value"] for one in properties if one["name"] == COMMIT), None)
        if found == head:
            return
        sys.exit(f"release-check: {directory} was built from {found}, not from {head}: run `make release` again")
    sys.exit(f"release-check: {directory} has no bill of materials: run `make release` first")


def build(scratch):
    """A second release of this commit. Returns its files' directory. Installed tools are reused."""
    second, cargo = scratch / "saltcellar", scratch / "downloads-of-cargo"
    os.umask(0o002)
    run("git", "clone", "--quiet", "--shared", REPO, second)
    cargo.symlink_to(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "CARGO_TARGET_DIR"))}
    tools = [f"{name}={REPO / 'target' / path}" for name, path in (("TOOLS", "tools"), ("PACKAGE_VENV", "package-venv"))]
    run("make", "--no-print-directory", "release", *tools, cwd=second, env={**env, "CARGO_HOME": str(cargo)}, stdout=subprocess.DEVNULL)
    return second / "target" / "dist"


def members(path):
    """What an archive that Python can read has, by name; nothing of other files."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {one.filename: (one.CRC, one.external_attr, one.date_time) for one in archive.infolist()}
    if path.name.endswith(".tar.gz"):
        with tarfile.open(path) as archive:
            return {one.name: (archive.extractfile(one).read() if one.isfile() else b"", one.mode, one.mtime) for one in archive}
    return {}


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
            first, second = members(one / name), members(two / name)
            within = sorted(member for member in first.keys() | second.keys() if first.get(member) != second.get(member))
            found.append(f"{name} differs: {(one / name).stat().st_size} and {(two / name).stat().st_size} bytes {' '.join(within)}".rstrip())
    return found


def main():
    """Builds and compares."""
    one = Path(sys.argv[1]).resolve()
    ensure_of_this_commit(one)
    # The installations come after the build, which takes half an hour.
    obstacle = machine.obstacle()
    if obstacle:
        sys.exit(f"release-check: the packages cannot be installed for a test: {obstacle}")
    # Outside the first checkout: cargo and rustup also read the settings of the directories above.
    scratch = Path(tempfile.mkdtemp(prefix="saltcellar-a-second-folder-with-a-longer-path-", dir=sys.argv[2] if len(sys.argv) > 2 else None))
    free = shutil.disk_usage(scratch).free
    if free < ROOM_BYTES:
        scratch.rmdir()
        sys.exit(f"release-check: {scratch.parent} has {free >> 30} GiB free, a build needs {ROOM_BYTES >> 30}: name another directory (SCRATCH)")
    print(f"release-check: building in {scratch}", flush=True)
    two = build(scratch)
    found = differences(one, two)
    if found:
        sys.exit("release-check: two builds of one commit differ:\n  " + "\n  ".join(found) + f"\n  ({one}, {two})")
    print(f"release-check: {len(list(one.iterdir()))} files are equal in two builds")
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
