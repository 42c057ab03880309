"""
Job ids generated without the daemon, in Salt's form: 20 digits of time in UTC, and ``_<pid>`` with
``unique_jid``.

They are unique: each is the time of an odd microsecond, while the daemon uses even ones, and a file
beside the spool, under a lock, has the last one, so that processes cannot collide.

With several masters each daemon has a slot (``cluster.slot`` in its configuration), and its
extension the same one: of the microseconds modulo 2n, slot k has 2(k-1) for the daemon and the next
one for the extension. The daemon tells its slot with each new jid, and a file beside the spool
keeps it. Until the daemon told one, ``saltcellar.slot`` of Salt's configuration is used.
"""

import datetime
import os
import re
import time
import typing

from saltext.saltcellar.utils import logs

if typing.TYPE_CHECKING:
    from saltext.saltcellar.utils import settings as settings_
    from saltext.saltcellar.utils import spool as spool_

#: The largest number of slots. The daemon has the same limit.
SLOTS_MAX = 64

_EPOCH = datetime.datetime(1970, 1, 1)
#: The last time of a jid of this process.
_last = 0
#: What the daemon told last, by the spool's directory.
_told: dict[str, str | None] = {}


class Slot(typing.NamedTuple):
    """The slot of one of several masters; by default that of a single one."""

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: object) -> "Slot":
        """The slot ``k/n``. Raises ``ValueError``."""
        match = re.fullmatch(r"([0-9]{1,3})/([0-9]{1,3})", text if isinstance(text, str) else "")
        number, of = map(int, match.groups()) if match else (0, 0)
        if not 1 <= number <= of <= SLOTS_MAX:
            raise ValueError(
                f"{text!r} is not a slot k/n: the number n of masters, from 1 to {SLOTS_MAX}, "
                "and the number k of this one, from 1 to n, such as 2/3"
            )
        return cls(number, of)

    def first_from(self, now: int) -> int:
        """The first microsecond of the extension's part of this slot from ``now`` on."""
        return now + (2 * self.number - 1 - now) % (2 * self.of)


#: The slot of a single master.
SINGLE = Slot()


def learn(spool: "spool_.Spool", slot: str | None) -> None:
    """Keep the slot that the daemon told with a jid, ``None`` if it has none. Never raises."""
    if _told.get(spool.directory, ()) == slot:
        return
    try:
        if slot is not None:
            Slot.parse(slot)
        _told[spool.directory] = slot
        if spool.slot() != slot:
            spool.set_slot(slot)
    except (OSError, ValueError) as exc:
        logs.error(
            "slot",
            "saltcellar: cannot keep the slot of job ids in %s, ids made while the daemon is unreachable may equal "
            "those of another master: set saltcellar.slot: %s",
            spool.directory,
            exc,
        )


def slot_of(settings: "settings_.Settings", spool: "spool_.Spool") -> Slot:
    """
    The slot of local jids.

    What the daemon told last, or else the configured one, or else :data:`SINGLE`.
    """
    # Another process may have been told a later one, so the file comes first. Without a file this
    # process remembers.
    told = spool.slot() or _told.get(spool.directory)
    for text in (told, settings.slot):
        try:
            if text:
                return Slot.parse(text)
        except ValueError as exc:
            logs.error(
                "slot",
                "saltcellar: no slot of job ids in %s, ids made while the daemon is unreachable may equal those of "
                "another master: set saltcellar.slot: %s",
                spool.directory,
                exc,
            )
    return SINGLE


def local_jid(opts: "settings_.Opts", spool: "spool_.Spool", slot: Slot = SINGLE) -> str:
    """A unique job id. If the file cannot be used, it is unique within this process."""
    global _last
    now = time.time_ns() // 1000
    try:
        at = spool.next_jid_time(now, slot)
    except OSError:
        at = slot.first_from(max(now, _last + 1))
    _last = at
    return in_form_of(opts, f"{_EPOCH + datetime.timedelta(microseconds=at):%Y%m%d%H%M%S%f}")


def in_form_of(opts: "settings_.Opts", digits: str) -> str:
    """The jid with ``_<pid>`` if ``unique_jid`` is set."""
    return f"{digits}_{os.getpid()}" if opts.get("unique_jid") else digits


def forget() -> None:
    """Forget what daemons told. For tests."""
    _told.clear()
