"""
Consumers of the daemon's events, for engines and other programs that process every event.

Invariant: an event is acknowledged after its processing, that is when the next one is requested. An
event whose processing raised, or was interrupted, is redelivered to the next process.
"""

import collections.abc
import logging
import os
import socket
import time
import uuid
from typing import Any

from salt.exceptions import CommandExecutionError
from salt.exceptions import SaltInvocationError

from saltext.saltcellar.utils import calls
from saltext.saltcellar.utils import settings as settings_
from saltext.saltcellar.utils import wire

log = logging.getLogger(__name__)

#: A glob for the tag, a map, or a list of these.
Match = Any

#: Longest wait of one call for events, in seconds; the daemon's limit.
WAIT_S = 10.0
#: Events of one call.
BATCH = 500
#: Pauses between attempts while the daemon is unreachable, in seconds: the first one, doubled up to
#: the second one.
PAUSE_S = (0.1, 10.0)


def from_opts(
    name: str,
    match: Match = None,
    where: str | None = None,
    start: str = "newest",
    opts: settings_.Opts | None = None,
) -> "Consumer":
    """A consumer with the settings in ``opts``; without these, with the defaults."""
    settings = settings_.from_opts(opts) if opts is not None else settings_.Settings()
    return Consumer(settings, name, match=match, where=where, start=start)


class Consumer:
    """
    An iterator over events. It waits for new ones, and reconnects while the daemon is unreachable.

    name
        The consumer's name. The daemon keeps its position under this name.
    match
        A glob for the tag, a map such as ``{"fun": "state.*", "retcode": "!0"}``, or a list of such
        alternatives. Without it, all events.
    where
        A Jinja expression over ``tag`` and ``data``.
    start
        Where a new consumer starts: ``newest``, ``oldest``, or a time such as ``2h`` (ago) or
        ``2026-11-21T10:00:00``.

    An event is a map with ``id``, ``seq``, ``time``, ``tag``, ``data``, and ``minion``, ``jid`` and
    ``fun`` if it has them. The ``id`` is the same when an event is redelivered.

    Raises ``CommandExecutionError`` if the daemon refuses: another process uses the name, or the
    filter is invalid.
    """

    def __init__(
        self,
        settings: settings_.Settings,
        name: str,
        match: Match = None,
        where: str | None = None,
        start: str = "newest",
    ) -> None:
        self.name = name
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._link = calls.Link(settings)
        # A response must arrive within the timeout.
        self._wait_ms = int(min(WAIT_S, settings.listing_timeout / 2) * 1000)
        self._pause = PAUSE_S[0]
        self._events: collections.deque[dict[str, Any]] = collections.deque()
        self._processing = None
        self._create = {"name": name, **_position(start)}
        if match is not None:
            self._create["match"] = _scopes(match)
        if where is not None:
            self._create["where"] = where
        self._created = False

    def __iter__(self) -> "Consumer":
        return self

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> dict[str, Any]:
        if self._processing is not None:
            self.ack(self._processing)
        while not self._events:
            if not self._created:
                self._ask("consumer_create", self._create)
                self._created = True
            answer = self._ask(
                "consumer_next",
                {
                    "name": self.name,
                    "holder": self.holder,
                    "limit": BATCH,
                    "wait_ms": self._wait_ms,
                    # After a kill of this process, another one need not wait for the end of the
                    # lease.
                    "bound": True,
                },
            )
            self._events.extend(answer["events"])
        event = self._events.popleft()
        self._processing = event["seq"]
        return event

    def ack(self, seq: int) -> None:
        """Acknowledge all events up to this sequence number now, without requesting the next one."""
        self._ask("consumer_ack", {"name": self.name, "holder": self.holder, "seq": seq})
        if self._processing is not None and self._processing <= seq:
            self._processing = None

    def nack(self, error: object) -> None:
        """Report that the present event could not be processed. It is redelivered."""
        self._events.clear()
        self._processing = None
        self._ask("consumer_nack", {"name": self.name, "holder": self.holder, "error": str(error)})

    def close(self) -> None:
        """Let another process use the name at once. The event in processing is not acknowledged."""
        self._events.clear()
        self._processing = None
        try:
            self._link.ask("consumer_release", name=self.name, holder=self.holder)
        except CommandExecutionError as exc:
            log.debug("saltcellar: the lease of the consumer %s ends later: %s", self.name, exc)
        self._link.close()

    def _ask(self, call: str, args: dict[str, Any]) -> Any:
        """The response to a call; waits while the daemon is unreachable. Raises if it refuses."""
        while True:
            try:
                (answer,) = self._link.ask_all([(call, args)])
            except CommandExecutionError as exc:
                log.warning("saltcellar: consumer %s waits for the daemon: %s", self.name, exc)
            else:
                if not isinstance(answer, wire.Refusal):
                    self._pause = PAUSE_S[0]
                    return answer
                if answer.code not in ("unavailable", "internal"):
                    raise CommandExecutionError(
                        f"saltcellar refused {call}: {answer.message} ({answer.code})"
                    )
                log.warning(
                    "saltcellar: consumer %s waits for the daemon: %s", self.name, answer.message
                )
            time.sleep(self._pause)
            self._pause = min(2 * self._pause, PAUSE_S[1])


def _position(start: str) -> dict[str, Any]:
    if start in ("newest", "oldest"):
        return {"to": start}
    return {"time": calls.micros(start)}


def _scopes(match: Match) -> list[dict[str, Any]]:
    alternatives = match if isinstance(match, (list, tuple)) else [match]
    scopes = []
    for one in alternatives:
        if isinstance(one, str):
            scopes.append({"tag": one})
        elif isinstance(one, collections.abc.Mapping):
            scopes.append(dict(one))
        else:
            raise SaltInvocationError(f"match: expected a glob for the tag or a map, found {one!r}")
    return scopes
