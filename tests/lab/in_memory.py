#!/usr/bin/env python3
"""in_memory: runs a command whose temporary files are in memory. Its exit code is that of the command.

  in_memory.py COMMAND [ARGS...]

The tests of the crate create, sync and delete a hundred thousand small files. On a disk this is a third of their processor time and
most of their duration (docs/decisions/test-time.md). Whether data survives a power loss is tested with simulated disks.

The files are on the disk as usual if CI or TMPDIR is set, and where /dev/shm is no place for them: in a container it may be small, or may
not allow programs. Needs Python's standard library only.
"""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import procs  # noqa: E402

MEMORY = "/dev/shm"
#: Free space that is asked for. With three at a time, 70 MiB was the most that was seen of the integration tests.
FREE_MIN = 2 << 30


def available():
    """The bytes of memory that the kernel can give to files."""
    with open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 0


def reason_against(env):
    """Why the files have to be on the disk; None if they can be in memory."""
    if env.get("CI"):
        return "CI is set"
    if env.get("TMPDIR"):
        return "TMPDIR is set"
    try:
        found = os.statvfs(MEMORY)
        memory = available()
    except OSError as exc:
        return f"{exc}"
    if found.f_flag & (os.ST_NOEXEC | os.ST_RDONLY) or not os.access(MEMORY, os.W_OK | os.X_OK):
        return f"{MEMORY} does not allow to write and run files"
    if min(found.f_bavail * found.f_frsize, memory) < FREE_MIN:
        return f"{MEMORY} or the memory has less than {FREE_MIN >> 30} GiB left"
    return None


def run(command, env):
    reason = reason_against(env)
    if reason:
        print(f"temporary files are on the disk: {reason}", file=sys.stderr)
        return subprocess.run(command, env=env).returncode

    # Short, because paths of sockets are limited to 108 bytes.
    with tempfile.TemporaryDirectory(prefix="sc-", dir=MEMORY, ignore_cleanup_errors=True) as tmp:
        # Readable, as /tmp is: some tests become other users.
        os.chmod(tmp, 0o1777)
        return procs.run(command, env={**env, "TMPDIR": tmp}).returncode


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    procs.install()
    try:
        code = run(sys.argv[1:], dict(os.environ))
    except procs.Interrupted as exc:
        return 128 + exc.signum
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
