"""
Calls to the daemon whose failure the caller must see: those of the runner, the execution module and
the engine.

The returner goes through ``client.py``, which spools and returns defaults instead.
"""

import datetime
import re
import time
from collections.abc import Sequence
from typing import Any

from salt.exceptions import CommandExecutionError
from salt.exceptions import SaltInvocationError

from saltext.saltcellar.utils import pool
from saltext.saltcellar.utils import settings as settings_
from saltext.saltcellar.utils import wire

#: Requests sent before their responses are read. Their responses fit into the socket's buffer.
WINDOW = 64

_AGO = re.compile(r"-?([0-9]+)\s*([smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DAYS_AGO = {"today": 0, "yesterday": 1}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-9]{2}(?::[0-9]{2}(?:\.([0-9]{1,6}))?)?"
_ZONE = r"(?:Z| UTC|[+-][0-9]{2}:[0-9]{2})"
_DATE = re.compile(rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:[T ]{_CLOCK}{_ZONE}?)?")
#: Keys of results that hold a time in microseconds since 1970, as in the daemon's list of types.
_TIMES = frozenset(
    (
        "certificate_until",
        "complete_until",
        "day",
        "events_since",
        "first_return",
        "highstates_since",
        "last_return",
        "newest",
        "oldest",
        "reached",
        "results_since",
        "safe_until",
        "since",
        "time",
        "until",
    )
)
#: Keys that hold values of jobs and events, which may have any keys.
_FOREIGN = frozenset(
    ["data", "return", "load", "arg", "fun_args", "metadata", "changes", "counters", "others"]
)


class DaemonError(CommandExecutionError):
    """The daemon did not answer, or refused a call."""


class Link:
    """One connection for several calls. A context manager; not to be shared between threads."""

    def __init__(self, settings: settings_.Settings) -> None:
        self._settings = settings
        self._connection: wire.Connection | None = None

    def __enter__(self) -> "Link":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(self, call: str, **args: Any) -> Any:
        """The response to a call; arguments that are ``None`` are left out. Raises :class:`DaemonError`."""
        (answer,) = self.ask_all(
            [(call, {key: value for key, value in args.items() if value is not None})]
        )
        if isinstance(answer, wire.Refusal):
            raise DaemonError(f"saltcellar refused {call}: {answer.message} ({answer.code})")
        return answer

    def ask_all(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[Any]:
        """The responses to ``(call, args)``, in order; one that was refused is a :class:`wire.Refusal`."""
        answers: list[Any] = []
        try:
            for start in range(0, len(calls), WINDOW):
                answers += self._window(calls[start : start + WINDOW])
        except (wire.Broken, wire.TimedOut) as exc:
            self.close()
            raise DaemonError(
                f"no response from the saltcellar daemon at {self._settings.address}: {exc}"
            ) from exc
        except wire.Refusal as exc:
            self.close()
            raise DaemonError(
                f"no result from the saltcellar daemon at {self._settings.address}: {exc.message} ({exc.code})"
            ) from exc
        except BaseException:
            self.close()
            raise
        return answers

    def _window(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[Any]:
        deadline = time.monotonic() + self._settings.listing_timeout
        if self._connection is None:
            self._connection = pool.connect(
                self._settings, time.monotonic() + self._settings.timeout
            )
        ids = self._connection.send(
            [wire.Call(call, args).request for call, args in calls], deadline
        )
        found: dict[int, Any] = {}
        while len(found) < len(ids):
            number, value = self._connection.receive(deadline)
            found[number] = value
        return [found[number] for number in ids]


def ask(settings: settings_.Settings, call: str, **args: Any) -> Any:
    """As :meth:`Link.ask`, on a connection for this call."""
    with Link(settings) as link:
        return link.ask(call, **args)


def micros(value: Any, now: float | None = None) -> int | None:
    """
    A time as microseconds since 1970 UTC. ``None`` stays ``None``, and a number is seconds since
    1970. Strings are written as on the command line with ``--utc``: an age (``2h``, ``-2h``),
    ``now``, ``today``, ``yesterday 14:00``, ``14:00``, or a date as in ISO 8601.

    ``now``: seconds since 1970; by default the present time.
    """
    if value is None:
        return None
    now = time.time() if now is None else now
    try:
        return _micros(value, now)
    except (ValueError, OverflowError):
        raise SaltInvocationError(
            f"not a time: {value!r}; write 2h, yesterday 14:00, 2026-11-21 or 2026-11-21T10:00:00"
        ) from None


def _micros(value: Any, now: float) -> int:
    if isinstance(value, (int, float)):
        at = int(value * 1e6)
    else:
        text = str(value).strip()
        ago = _AGO.fullmatch("0s" if text == "now" else text)
        if ago:
            at = int((now - int(ago[1]) * _UNITS[ago[2]]) * 1e6)
        else:
            date = _date(text, datetime.datetime.fromtimestamp(now, datetime.timezone.utc))
            at = (date - _EPOCH) // datetime.timedelta(microseconds=1)
    # The daemon's times are signed integers of 64 bits.
    if not -(2**63) <= at < 2**63:
        raise OverflowError(at)
    return at


def _date(text: str, now: datetime.datetime) -> datetime.datetime:
    """A date, or a time of today or yesterday; a ``ValueError`` if it is neither."""
    day, _, clock = text.partition(" ")
    if re.fullmatch(_CLOCK, text):
        day, clock = "today", text
    if day in _DAYS_AGO:
        day = str((now - datetime.timedelta(days=_DAYS_AGO[day])).date())
        text = f"{day} {clock or '00:00'}"
    date = _DATE.fullmatch(text)
    if not date:
        raise ValueError(text)
    # What Python 3.10 can read of it: no `Z`, and fractions of six digits.
    text = re.sub("(Z| UTC)$", "+00:00", text)
    if date[1]:
        text = text.replace(f".{date[1]}", f".{date[1]:0<6}")
    at = datetime.datetime.fromisoformat(text)
    return at if at.tzinfo else at.replace(tzinfo=datetime.timezone.utc)


def readable(answer: Any) -> Any:
    """A response with its times as ISO 8601, in UTC. Values of jobs and events stay as they are."""
    if isinstance(answer, list):
        return [readable(item) for item in answer]
    if not isinstance(answer, dict):
        return answer
    shown = {}
    for key, value in answer.items():
        if key in _TIMES and isinstance(value, int) and not isinstance(value, bool):
            shown[key] = iso(value)
        else:
            shown[key] = value if key in _FOREIGN else readable(value)
    return shown


def iso(at: int) -> str | int:
    """Microseconds since 1970 as ISO 8601."""
    epoch = datetime.datetime(1970, 1, 1)
    try:
        return (
            f"{(epoch + datetime.timedelta(microseconds=at)).isoformat(timespec='microseconds')}Z"
        )
    except OverflowError:
        return at
