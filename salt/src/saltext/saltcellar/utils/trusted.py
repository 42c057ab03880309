"""
Programs that were found in ``PATH``, and that this process may run all the same: nobody but root
and the user of this process can replace them. The daemon has the same check
(``crates/base/src/trusted.rs``).
"""

import os
import stat
from collections.abc import Iterator

import salt.utils.path

try:
    import grp
    import pwd
except ImportError:  # not a POSIX system, see spool.UNSUPPORTED
    grp = pwd = None  # type: ignore[assignment]

#: Links on the way to a file, as in Linux.
LINKS_MAX = 40


class Untrusted(Exception):
    """Others can replace it. The text says what is open to whom, and the remedy."""


def program(name: str) -> str | None:
    """
    The absolute path of a program in ``PATH``; ``None`` if there is none.

    Raises :class:`Untrusted`.
    """
    found = salt.utils.path.which(name)
    if not found:
        return None

    # A directory such as `.` is that of whoever calls.
    if not os.path.isabs(found):
        raise Untrusted(
            f"PATH of this process contains a relative directory, in which {found} was found: remove it"
        )
    try:
        for step in steps(found):
            check(step)
    except OSError as exc:
        raise Untrusted(f"{found} cannot be inspected: {exc}") from exc
    return found


def steps(path: str) -> Iterator[str]:
    """Each directory, link and file that the kernel passes on the way to an absolute path."""
    here, links = "/", 0
    parts = path.split("/")[::-1]
    yield here

    while parts:
        part = parts.pop()
        if part in ("", "."):
            continue
        if part == "..":
            # Links before it are resolved by now, so this is the real parent.
            here = os.path.dirname(here)
            continue

        step = os.path.join(here, part)
        # A link is a step as well: whoever replaces it decides where it leads.
        yield step

        if not os.path.islink(step):
            here = step
            continue
        links += 1
        if links > LINKS_MAX:
            raise OSError(f"too many links on the way to {path}")
        target = os.readlink(step)
        if target.startswith("/"):
            here = "/"
        parts.extend(target.split("/")[::-1])


def check(step: str) -> None:
    """
    Raise :class:`Untrusted` if another user can replace this file, link or directory.

    Root and the user of this process may.
    """
    found = os.lstat(step)
    if found.st_uid not in (0, os.geteuid()):
        raise Untrusted(
            f"{step} belongs to uid {found.st_uid} (`chown root {step}`, or use another one)"
        )

    # In a sticky directory only the owner of an entry can replace it. The mode of a link means
    # nothing.
    if stat.S_ISLNK(found.st_mode) or (
        stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    ):
        return
    if found.st_mode & stat.S_IWOTH:
        raise Untrusted(f"anyone can write to {step} (`chmod o-w {step}`)")
    if found.st_mode & stat.S_IWGRP and (_has_acl(step) or _has_other_members(found.st_gid)):
        raise Untrusted(f"members of group {found.st_gid} can write to {step} (`chmod g-w {step}`)")


def _has_acl(path: str) -> bool:
    """Whether an access control list may name further users. The bits of the group are then its mask."""
    # Only Linux has the function.
    if not hasattr(os, "getxattr"):
        return False
    try:
        os.getxattr(path, "system.posix_acl_access")
    except OSError:
        return False
    return True


def _has_other_members(gid: int) -> bool:
    """Whether users other than root and the user of this process are, or may be, in a group."""
    try:
        members = set(grp.getgrgid(gid).gr_mem)
    except KeyError:
        # Another source of users may have it.
        return True
    members.update(entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == gid)
    own = {entry.pw_name for entry in pwd.getpwall() if entry.pw_uid in (0, os.geteuid())}
    return not members <= own
