"""
The open connections of this process, and pauses after calls that timed out.
"""

import os
import threading
import time

from saltext.saltcellar.utils import peer
from saltext.saltcellar.utils import settings as settings_
from saltext.saltcellar.utils import wire

#: First and longest pause after a call that timed out, in seconds. It doubles, because a hung
#: daemon costs a master worker the whole timeout each time.
PAUSE_S = 1.0
PAUSE_MAX_S = 8.0


def connect(settings: settings_.Settings, deadline: float) -> wire.Connection:
    """A new connection to the daemon of this host, or to ``url``."""
    if settings.error:
        raise wire.Broken(settings.nothing_is_sent)
    if settings.url:
        # Imported on demand: a master needs neither TLS nor HTTP.
        from saltext.saltcellar.utils import https

        return https.Connection(settings, deadline)
    return peer.Connection(settings, deadline)


class Pool(threading.local):
    """
    The open connections of one thread, one per address.

    A connection belongs to the process that opened it. After a fork, the child closes its copy of
    the descriptor and opens a new connection.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, wire.Connection]] = {}

    def take(self, address: str) -> wire.Connection | None:
        """
        The open connection to an address, removed from the pool for the length of a call.

        Removed, so that a signal handler that interrupts a call opens a new connection.
        """
        pid, connection = self._held.pop(address, (0, None))
        if connection is None or pid == os.getpid():
            return connection
        # The parent's connection: this closes only the descriptor.
        connection.close()
        return None

    def put(self, address: str, connection: wire.Connection) -> None:
        """Keep a connection for the next call."""
        _, old = self._held.get(address, (0, None))
        if old is not None:
            old.close()
        self._held[address] = (os.getpid(), connection)

    def clear(self) -> None:
        """Close all connections of this thread."""
        for _, connection in self._held.values():
            connection.close()
        self._held.clear()


_NO_PAUSE = (0.0, 0.0, "")


class Breaker:
    """Refuses calls to an address for some seconds after one that timed out."""

    def __init__(self) -> None:
        #: By address: the end of the pause and its length, in seconds, and the failure that began it.
        self.pauses: dict[str, tuple[float, float, str]] = {}

    def reason(self, address: str, now: float) -> str | None:
        """The failure that began the pause in which the address is; ``None`` if it is in none."""
        end, _, why = self.pauses.get(address, _NO_PAUSE)
        return why if now < end else None

    def trip(self, address: str, why: str) -> None:
        """A call timed out: begin a pause, twice as long as the one before."""
        before = self.pauses.get(address, _NO_PAUSE)[1]
        pause = min(max(PAUSE_S, 2 * before), PAUSE_MAX_S)
        self.pauses[address] = (time.monotonic() + pause, pause, why)

    def reset(self, address: str) -> None:
        """A call was answered: the next pause is a short one."""
        self.pauses.pop(address, None)

    def clear(self) -> None:
        """Forget all pauses. For tests."""
        self.pauses.clear()
