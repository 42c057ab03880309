"""
Verification of the user that serves the daemon's socket.

A user who may write to the socket's directory can replace the socket, receive every return and
forge every response. The kernel reports the user that called ``listen(2)``; only these users are
trusted:

* root, and the user of this process;
* ``saltcellar.daemon_user``, if it is set;
* otherwise the owner of the socket's directory, if no other user can replace that directory. A
  daemon with its own user and runtime directory thus needs no setting, whether the caller is a root
  master, one with ``user: salt``, or a user's ``salt`` command.
"""

import os
import socket
import stat
import struct
from typing import TYPE_CHECKING

from saltext.saltcellar.utils import wire

if TYPE_CHECKING:
    from saltext.saltcellar.utils import settings as settings_

try:
    import pwd
except ImportError:  # not a POSIX system, see spool.UNSUPPORTED
    pwd = None  # type: ignore[assignment]

_UCRED = struct.Struct("@iII")


class Untrusted(wire.TimedOut):
    """
    An untrusted user serves the socket; an administrator must act.

    A ``TimedOut``, so that the client spools the entry without counting a try, and retries less
    often.
    """


class Connection(wire.Connection):
    """A connection to the daemon of this host, if a trusted user serves the socket."""

    def __init__(self, settings: "settings_.Settings", deadline: float) -> None:
        if not hasattr(socket, "SO_PEERCRED"):
            raise Untrusted(
                "this system does not show which user serves a socket: set saltcellar.url"
            )
        super().__init__(settings.socket, deadline)
        try:
            credentials = self._socket.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size
            )
            verify(_UCRED.unpack(credentials)[1], settings.socket, settings.daemon_user)
        except BaseException:
            self.close()
            raise


def verify(uid: int, path: str, daemon_user: str | None) -> None:
    """Raises :class:`Untrusted` unless the user ``uid`` is trusted to serve the socket ``path``."""
    if uid in (0, os.geteuid()):
        return
    if daemon_user:
        if uid == _uid(daemon_user):
            return
        remedy = (
            f"saltcellar.daemon_user is {daemon_user}"
            + ("" if _uid(daemon_user) is not None else ", which is no user of this host")
            + f": if the daemon runs as {_name(uid)}, set it to that user"
        )
    else:
        if uid == _directory_owner(path):
            return
        remedy = f"if the daemon runs as that user, set saltcellar.daemon_user: {_name(uid)}"
    raise Untrusted(
        f"user {_name(uid)} serves this socket and is not trusted, nothing was sent ({remedy})"
    )


def _directory_owner(path: str) -> int | None:
    """The owner of a socket's directory; ``None`` if another user could have created that directory."""
    directory = os.path.realpath(os.path.dirname(os.path.abspath(path)))
    try:
        owner = os.stat(directory).st_uid
        while directory != os.path.dirname(directory):
            directory = os.path.dirname(directory)
            above = os.stat(directory)
            # The sticky bit does not help: it protects existing names, and any user may have
            # created this one.
            if above.st_uid not in (0, owner, os.geteuid()) or above.st_mode & (
                stat.S_IWGRP | stat.S_IWOTH
            ):
                return None
    except OSError:
        return None
    return owner


def _uid(user: str) -> int | None:
    try:
        return int(user) if user.isdigit() else pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
