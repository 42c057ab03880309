"""
The spool: entries that wait while the daemon is unreachable.

One directory, written by every Salt process of one user (and by root on their behalf).

``spool``
    Records, one after the other: u32 length of the payload, u32 number of its entries, u32 crc32 of
    that number and the payload, payload (msgpack ``[call, args]``). Integers are big-endian.
``spool.state``
    u64 offset handed over so far, u64 end of the last good record, u64 entries between the two, u32
    failed attempts at the record at ``offset``, u32 crc32 of the former four.
``spool.dead-letter``
    Records that the daemon kept failing on, in the same form, for manual inspection.
``spool.counters``
    A JSON map of reasons to numbers of entries that were not stored.
``spool.reported``
    The same map, as the beacon ``saltcellar_spool`` last reported it.
``spool.handover``
    Empty; its lock is held during a handover.
``jid``
    The last jid generated without the daemon: u64, microseconds since 1970 UTC.
``slot``
    The daemon's ``cluster.slot`` as it last told it, for jids generated without it; no file if it
    has none.

Invariants, all under an exclusive flock on ``spool``:

* a record is on disk before :meth:`Spool.append` returns, and before the next one is written, so
  that after a crash at most the last record is torn; the next append cuts it off;
* ``offset`` moves only past records that were answered. It may lag behind after a power failure
  (records are then handed over again, marked ``replay``); it never runs ahead;
* the file is emptied, never removed or replaced, so no process writes to a deleted inode.

The limit in bytes applies between ``offset`` and the end. The file itself may grow to twice that
during a handover, and is empty afterwards. The limit in age moves ``offset`` past expired records.
The age comes from two arguments of a record: ``at``, microseconds since 1970 UTC, and ``uptime``,
microseconds since the host's boot. See ``_waited_s``.
"""

import contextlib
import errno
import json
import logging
import multiprocessing
import multiprocessing.util
import os
import signal
import stat
import struct
import time
import typing
import zlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import TYPE_CHECKING
from typing import Any
from typing import BinaryIO

from saltext.saltcellar.utils import wire

if TYPE_CHECKING:
    from saltext.saltcellar.utils import jids

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

#: Timeout of the lock, in seconds.
LOCK_WAIT_S = 5.0
#: The largest record; a greater length is damage. The rest of the request needs some room.
RECORD_BYTES_MAX = wire.REQUEST_BYTES_MAX - 64
#: Interval of the search for expired records, per process, in seconds.
EXPIRY_INTERVAL_S = 60.0
#: A record on which the daemon failed this many times is dead-lettered.
TRIES_MAX = 20
#: A last jid further ahead of the clock than this is ignored, in microseconds. The daemon does the
#: same.
JIDS_AHEAD_US = 3600 * 1000000
#: More than the text of any slot has.
SLOT_CHARS_MAX = 32

_HEADER = struct.Struct(">III")
_STATE = struct.Struct(">QQQI")
_ENTRIES = struct.Struct(">I")
_CRC = struct.Struct(">I")
_SIGNALS = {
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)
}

#: Why the extension cannot be used on this system, for ``__virtual__``; ``None`` if it can.
UNSUPPORTED = None
if fcntl is None or not hasattr(os, "pwrite"):
    UNSUPPORTED = "saltcellar needs a POSIX system: its spool uses flock and pwrite, which Python lacks here (Windows)"

#: Counts that could not be written yet, by directory.
_uncounted: dict[str, dict[str, int]] = {}
#: Directories with a finalizer that writes counts at the end of the process.
_at_exit: set[str] = set()
#: Time of the next search for expired records, by path.
_expiry_not_before: dict[str, float] = {}


class SpoolError(Exception):
    """The entry is not spooled. ``reason`` is the counter it belongs to."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class State(typing.NamedTuple):
    """Which part of the file waits. ``entries`` are those between ``offset`` and ``end``."""

    offset: int = 0
    #: The end of the last good record; -1 if it must be searched.
    end: int = 0
    entries: int = 0
    #: Failed attempts at the record at ``offset``.
    tries: int = 0


class Record:
    """One spooled call: where it ends in the file, the packed ``[call, args]``, and the number of its entries."""

    def __init__(self, end: int, payload: bytes, number: int) -> None:
        self.end = end
        self.payload = payload
        self.entries = number

    def call(self) -> tuple[str, dict[str, Any]]:
        """``(call, args)``. Raises ``ValueError`` if they cannot be decoded."""
        try:
            call, args = wire.unpack(self.payload)
            return str(call), dict(args)
        except (TypeError, ValueError) as exc:
            raise ValueError(f"not a call: {exc}") from exc

    def request(self, number: int) -> bytes:
        """The request's bytes. An array of two becomes one of three, without packing the values again."""
        return b"\x93" + wire.pack(number) + self.payload[1:]


class Spool:
    """
    The spool in ``directory``, holding at most ``bytes_max`` bytes, none of them for longer than
    ``age_max`` seconds.

    Cheap to make; opens nothing.
    """

    def __init__(self, directory: str, bytes_max: int, age_max: float) -> None:
        self.directory = directory
        self.bytes_max = bytes_max
        self.age_max = age_max
        self.path = os.path.join(directory, "spool")

    # ---- writing

    def pending(self) -> bool:
        """Whether the spool has entries: one ``stat``. False also if this user has no access."""
        try:
            return os.stat(self.path).st_size > 0
        except OSError:
            return False

    def append(self, call: str, args: dict[str, Any]) -> None:
        """Append a call, durably. Raises only :class:`SpoolError`."""
        self.append_packed(wire.pack([call, args]), entries(call, args))

    def append_packed(self, payload: bytes, number: int) -> None:
        """As :meth:`append`, with packed ``[call, args]`` and the number of its entries."""
        if len(payload) > RECORD_BYTES_MAX:
            raise SpoolError(
                "too_large",
                f"an entry of {len(payload)} bytes exceeds the fixed limit of {RECORD_BYTES_MAX}: send less",
            )
        try:
            with self._locked(create=True) as fd:
                self._append(fd, _framed(payload, number), number)
        except OSError as exc:
            raise SpoolError(
                "spool_failed", f"cannot write {self.path}: {exc}{_remedy(exc, self.directory)}"
            ) from exc

    def _append(self, fd: int, record: bytes, number: int) -> None:
        state = self._good_state(fd)
        if self._expire(fd, state):
            state = self._good_state(fd)

        waiting = state.end - state.offset
        if waiting + len(record) > self.bytes_max or state.end + len(record) > 2 * self.bytes_max:
            raise SpoolError(
                "spool_full",
                f"{self.path} has no room for {len(record)} bytes: {waiting} of at most {self.bytes_max} bytes wait, "
                f"the file has {state.end} bytes: raise saltcellar.spool_bytes_max",
            )

        try:
            _write_all(fd, record, state.end)
            os.fsync(fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, state.end)
            raise

        # If this fails, the entry is safe: the next process reads the whole file.
        after = state._replace(end=state.end + len(record), entries=state.entries + number)
        with contextlib.suppress(OSError):
            self._write_state(after, durable=state.end == 0)

    def _good_state(self, fd: int) -> State:
        """The state, after cutting the file to its last valid record and correcting a state that does not match."""
        size = os.fstat(fd).st_size
        state = self._read_state(size)
        if size == 0 and self._read_raw_state().offset:
            # Left by a crash between emptying the file and writing the state. It must be reset
            # before the file grows past the stale offset.
            self._write_state(State(), durable=True)

        if state.end != size:
            end, number = state.offset, 0
            with open(fd, "rb", buffering=1 << 20, closefd=False) as file:
                for record in _records(file, state.offset, size):
                    end = record.end
                    number += record.entries
            if end < size:
                log.error(
                    "saltcellar: the last %d bytes of %s are an incomplete entry, which is LOST: a process was "
                    "killed while it wrote it, or the host lost power",
                    size - end,
                    self.path,
                )
                os.ftruncate(fd, end)
                os.fsync(fd)
                self.count("torn", max(1, state.entries - number))
            state = state._replace(end=end, entries=number)
        return state

    # ---- reading

    def records(self) -> Iterator[Record]:
        """The waiting records, oldest first, at this moment. Without a lock, so for display only."""
        try:
            with open(self.path, "rb", buffering=1 << 20) as file:
                size = os.fstat(file.fileno()).st_size
                yield from _records(file, self._read_state(size)[0], size)
        except OSError:
            return

    def waiting(self) -> dict[str, Any]:
        """
        The waiting entries for display: ``entries``, ``bytes``, ``oldest_s`` (age of the oldest),
        ``lost`` by reason.

        Reads the state and the first record, without a lock: a minion's main loop calls this.
        """
        number, size, oldest = 0, 0, 0.0
        try:
            with open(self.path, "rb", buffering=1 << 16) as file:
                length = os.fstat(file.fileno()).st_size
                state = self._read_state(length)
                size = length - state.offset
                number = state.entries
                if state.end != length:
                    # Written a moment ago, or left by a crash: the next append corrects the state.
                    number = sum(record.entries for record in _records(file, state.offset, length))
                first = next(_records(file, state.offset, length), None)
                at = _times_of(first)[0] if first else None
                if at is not None:
                    oldest = max(0.0, time.time() - at / 1e6)
        except OSError:
            # No spool, or none that this user may read.
            pass
        return {"entries": number, "bytes": size, "oldest_s": oldest, "lost": self.counters()}

    # ---- expiry

    def expire(self) -> None:
        """Drop and count expired records. Never raises."""
        try:
            with self._locked() as fd:
                self._expire(fd, self._good_state(fd))
        except OSError as exc:
            log.debug("saltcellar: cannot search %s for expired entries: %s", self.path, exc)

    def _expire(self, fd: int, state: State) -> bool:
        """Drop expired records from the front, at most once per interval. Returns whether any were dropped."""
        now = time.monotonic()
        if state.offset >= state.end or now < _expiry_not_before.get(self.path, 0):
            return False
        _expiry_not_before[self.path] = now + EXPIRY_INTERVAL_S

        offset, lost = state.offset, 0
        with open(fd, "rb", buffering=1 << 16, closefd=False) as file:
            for record in _records(file, state.offset, state.end):
                waited = _waited_s(record)
                if waited is None or waited <= self.age_max:
                    break
                offset = record.end
                lost += record.entries
        if offset == state.offset:
            return False

        log.error(
            "saltcellar: %d entries of %s are LOST: they waited for longer than %s s (saltcellar.spool_age_max); the "
            "messages of saltcellar before this one show why the daemon does not take them",
            lost,
            self.path,
            self.age_max,
        )
        self.count("spool_expired", lost)
        self._move(fd, state, offset)
        return True

    # ---- handing over

    @contextlib.contextmanager
    def handover_lock(self) -> Iterator[bool]:
        """Yields true in one process at a time, and false at once in the others."""
        with contextlib.ExitStack() as stack:
            try:
                fd = self._open(f"{self.path}.handover")
                stack.callback(_close, fd)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                mine = False
            else:
                mine = True
            yield mine

    def first(self, count: int, bytes_max: int) -> tuple[list[Record], int]:
        """
        Up to ``count`` records, of ``bytes_max`` in total or else a single one, and the number of
        tries of the first.

        A record that failed before is returned alone, so that the next failure is certainly its
        own.
        """
        with self._locked() as fd:
            state = self._good_state(fd)
            count = 1 if state.tries else count
            found: list[Record] = []
            taken = 0
            with open(fd, "rb", buffering=1 << 16, closefd=False) as file:
                for record in _records(file, state.offset, state.end):
                    if found and taken + len(record.payload) > bytes_max:
                        break
                    found.append(record)
                    taken += len(record.payload)
                    if len(found) == count:
                        break
            if not found and state.end:
                self._pass(fd, state.offset, state.end, state.entries)
                self._empty(fd)
            return found, state.tries

    def advance(self, offset: int) -> None:
        """Everything before ``offset`` has been answered. Empties the file once nothing is left."""
        with self._locked() as fd:
            state = self._good_state(fd)
            # Another process may have dropped more, for its age.
            if offset > state.offset:
                self._move(fd, state, offset)

    def _move(self, fd: int, state: State, offset: int) -> None:
        passed = self._pass(fd, state.offset, min(offset, state.end))
        if offset >= state.end:
            self._empty(fd)
        else:
            left = max(0, state.entries - passed)
            self._write_state(State(offset, state.end, left), durable=True)

    def _pass(self, fd: int, start: int, end: int, entries: int = 1) -> int:
        """
        The number of entries between two offsets that are skipped now. Damaged records are logged,
        and counted as ``entries``, which are unknown behind the damage.
        """
        length, number = 0, 0
        with open(fd, "rb", buffering=1 << 16, closefd=False) as file:
            for record in _records(file, start, end):
                length += _HEADER.size + len(record.payload)
                number += record.entries
        if start + length < end:
            log.error(
                "saltcellar: skipped %d damaged bytes of %s, the entries in them are LOST: check the disk",
                end - start - length,
                self.path,
            )
            self.count("damaged", max(1, entries - number))
        return number

    def count_try(self) -> None:
        """Count a failure of the daemon on the first record."""
        with self._locked() as fd:
            state = self._good_state(fd)
            self._write_state(state._replace(tries=state.tries + 1))

    def dead_letter(self, record: Record) -> bool:
        """Append a record that cannot be handed over to ``spool.dead-letter``. False if that is full."""
        data = _framed(record.payload, record.entries)
        fd = self._open(f"{self.path}.dead-letter")
        try:
            end = os.fstat(fd).st_size
            if end + len(data) > self.bytes_max:
                return False
            _write_all(fd, data, end)
            os.fsync(fd)
            return True
        finally:
            _close(fd)

    def _empty(self, fd: int) -> None:
        os.ftruncate(fd, 0)
        os.fsync(fd)
        self._write_state(State(), durable=True)

    # ---- jids

    def next_jid_time(self, now: int, slot: "jids.Slot") -> int:
        """
        The first microsecond of ``slot`` (:class:`jids.Slot`) from ``now`` on that was not returned
        before. Raises ``OSError``.

        Not durable: after a power failure the clock has advanced.
        """
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            fd = self._open(os.path.join(self.directory, "jid"))
            try:
                _lock(fd)
                last = int.from_bytes(os.pread(fd, 8, 0), "big")
                # Written while the clock was far ahead.
                if last > now + JIDS_AHEAD_US:
                    last = 0
                now = slot.first_from(max(now, last + 1))
                _write_all(fd, now.to_bytes(8, "big"), 0)
                return now
            finally:
                _close(fd)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def slot(self) -> str | None:
        """The text that :meth:`set_slot` stored; ``None`` without one. Never raises."""
        try:
            fd = os.open(
                os.path.join(self.directory, "slot"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
            )
        except OSError:
            return None
        try:
            text = os.read(fd, SLOT_CHARS_MAX).decode("ascii", "replace")
        except OSError:
            return None
        finally:
            os.close(fd)
        # The rest may be that of a longer text, which a writer is about to cut off.
        return text.partition("\n")[0] or None

    def set_slot(self, slot: str | None) -> None:
        """Remember the daemon's slot, or that it has none (``None``). Raises ``OSError``."""
        path = os.path.join(self.directory, "slot")
        if slot is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        fd = self._open(path)
        try:
            _lock(fd)
            text = f"{slot}\n".encode("ascii")
            _write_all(fd, text, 0)
            os.ftruncate(fd, len(text))
            os.fsync(fd)
        finally:
            _close(fd)

    # ---- counting

    def count(self, reason: str, number: int = 1) -> None:
        """Count entries that were not stored because of ``reason``. Never raises."""
        self._keep_counts({reason: number})
        self.write_counts()

    def write_counts(self) -> None:
        """Write the counts, also those that could not be written before. Never raises."""
        counts = _uncounted.pop(self.directory, None)
        if not counts:
            return
        try:
            self._write_counters("counters", lambda total: _sum(total, counts))
        except OSError as exc:
            self._keep_counts(counts)
            # The last attempt, unless another call succeeds before.
            if self.directory not in _at_exit:
                _at_exit.add(self.directory)
                at_exit(self.write_counts)
            log.debug("saltcellar: cannot count in %s: %s", self.directory, exc)

    def _keep_counts(self, counts: dict[str, int]) -> None:
        _uncounted[self.directory] = _sum(_uncounted.get(self.directory, {}), counts)

    def counters(self) -> dict[str, int]:
        """The counts by reason."""
        return _read_counters(f"{self.path}.counters")

    def reported(self) -> dict[str, int]:
        """The counts that :meth:`set_reported` stored last."""
        return _read_counters(f"{self.path}.reported")

    def set_reported(self, counts: dict[str, int]) -> None:
        """Remember counts as reported. Raises ``OSError``."""
        self._write_counters("reported", lambda _: counts)

    def _write_counters(
        self, name: str, change: Callable[[dict[str, int]], dict[str, int]]
    ) -> None:
        fd = self._open(f"{self.path}.{name}")
        try:
            _lock(fd)
            text = json.dumps(change(_counters(fd)), sort_keys=True).encode() + b"\n"
            _write_all(fd, text, 0)
            os.ftruncate(fd, len(text))
        finally:
            _close(fd)

    # ---- files

    @contextlib.contextmanager
    def _locked(self, create: bool = False) -> Iterator[int]:
        """
        The records' file, open and locked.

        Signals are blocked meanwhile: Salt's event process flushes its queue within its handler for
        SIGTERM, and would wait for a lock that the interrupted code holds.
        """
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            fd = self._open(self.path, create)
            try:
                _lock(fd)
                yield fd
            finally:
                _close(fd)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _open(self, path: str, create: bool = True) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)
        if not create:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._make_directory()
        fd = os.open(path, flags | os.O_CREAT, 0o600)
        _chown(fd, self.directory)
        _sync_directory(self.directory)
        return fd

    def _make_directory(self) -> None:
        if os.path.isdir(self.directory):
            return
        parent = os.path.dirname(os.path.abspath(self.directory))
        above, new = parent, []
        while not os.path.isdir(above):
            above = os.path.dirname(above)
            new.append(above)
        os.makedirs(parent, mode=0o700, exist_ok=True)
        for directory in new:
            _sync_directory(directory)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.directory, 0o700)
            fd = os.open(
                self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
            )
            try:
                _chown(fd, parent)
            finally:
                os.close(fd)
            _sync_directory(parent)

    # ---- state

    def _read_raw_state(self) -> State:
        try:
            with open(f"{self.path}.state", "rb") as file:
                data = file.read(_STATE.size + _CRC.size)
        except OSError:
            return State(end=-1)
        body, crc = data[: _STATE.size], data[_STATE.size :]
        if len(crc) != _CRC.size or _CRC.unpack(crc)[0] != zlib.crc32(body):
            return State(end=-1)
        return State(*_STATE.unpack(body))

    def _read_state(self, size: int) -> State:
        """The state; the start of the file if it is missing or does not match the file."""
        state = self._read_raw_state()
        if size == 0 or state.offset > size:
            return State(end=0 if size == 0 else -1)
        return state

    def _write_state(self, state: State, durable: bool = False) -> None:
        body = _STATE.pack(*state)
        fd = self._open(f"{self.path}.state")
        try:
            _write_all(fd, body + _CRC.pack(zlib.crc32(body)), 0)
            if durable:
                os.fsync(fd)
        finally:
            _close(fd)


def _remedy(exc: OSError, directory: str) -> str:
    """What to do about a spool that cannot be written, as the end of a message."""
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return ": free space"
    if exc.errno in (errno.EACCES, errno.EPERM):
        return f": correct the owner of {directory} and of the files in it"
    if exc.errno == errno.EAGAIN:
        return f" (another process has its lock for {LOCK_WAIT_S:.0f} s): look for disk errors in `dmesg`"
    return ": look for disk errors in `dmesg`" if exc.errno in (errno.EIO, errno.EROFS) else ""


def at_exit(function: Callable[[], object]) -> None:
    """
    Call a function at the end of this process, even when SIGTERM ends it.

    Salt's processes end in ``os._exit``, which runs neither ``atexit`` nor ``multiprocessing``'s
    finalizers. They have a list of their own.
    """
    register = getattr(multiprocessing.current_process(), "register_finalize_method", None)
    if register is not None:
        register(function)
    else:
        multiprocessing.util.Finalize(None, function, exitpriority=100)


def entries(call: str, args: dict[str, Any]) -> int:
    """The number of entries of a call: its events, or one."""
    events = args.get("events") if call == "event_return" else None
    return len(events) if isinstance(events, (list, tuple)) else 1


def _crc(payload: bytes, number: int) -> int:
    return zlib.crc32(payload, zlib.crc32(_ENTRIES.pack(number)))


def _framed(payload: bytes, number: int) -> bytes:
    """A record as it is in the file."""
    return _HEADER.pack(len(payload), number, _crc(payload, number)) + payload


def _times_of(record: Record) -> tuple[int | None, int | None]:
    """When a record was spooled, as its ``at`` and ``uptime``; ``None`` for what cannot be read."""
    try:
        _, args = record.call()
    except ValueError:
        return None, None
    at, uptime = (args.get(name) for name in ("at", "uptime"))
    return at if isinstance(at, int) else None, uptime if isinstance(uptime, int) else None


def _waited_s(record: Record) -> float | None:
    """
    The time that a record has certainly waited while the host ran, in seconds; ``None`` if unknown.

    The clock may be set forward while the record waits, which makes it no older. So the clock
    counts only as far as the uptime agrees, which stands still while the host is suspended. The
    uptime begins again at a boot, which nothing here has to notice: a record from before has waited
    for the whole uptime, and the difference of the two uptimes is never longer than that.
    """
    at, spooled = _times_of(record)
    if at is None:
        return None
    waited = time.time() - at / 1e6
    # Spooled by an earlier version.
    if spooled is None:
        return waited
    uptime = time.monotonic()
    since = uptime - spooled / 1e6
    return min(waited, since if since >= 0 else uptime)


def _sum(counts: dict[str, int], more: dict[str, int]) -> dict[str, int]:
    """Two counts by reason, added."""
    return {name: counts.get(name, 0) + more.get(name, 0) for name in {*counts, *more}}


def _read_counters(path: str) -> dict[str, int]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        return _counters(fd)
    finally:
        os.close(fd)


def _records(file: BinaryIO, offset: int, size: int) -> Iterator[Record]:
    """Valid records from ``offset`` on. Ends at the first incomplete one; skips damaged ones."""
    file.seek(offset)
    while offset + _HEADER.size < size:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return
        length, number, crc = _HEADER.unpack(header)
        end = offset + _HEADER.size + length
        # A record is never empty; zeros left by a power failure would otherwise be valid.
        if not 0 < length <= RECORD_BYTES_MAX or end > size:
            return
        payload = file.read(length)
        if len(payload) == length and _crc(payload, number) == crc:
            yield Record(end, payload, number)
        elif end >= size:
            return
        offset = end


def _forget_counts() -> None:
    """After a fork: the parent writes its own counts."""
    _uncounted.clear()
    _at_exit.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_counts)


def _lock(fd: int) -> None:
    until = time.monotonic() + LOCK_WAIT_S
    pause = 0.0005
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
        time.sleep(pause)
        pause = min(pause * 2, 0.01)


def _close(fd: int) -> None:
    # Explicit: a child forked in between holds the descriptor too, so closing ours would not free
    # the lock.
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _write_all(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, at)
        view = view[done:]
        at += done


def _counters(fd: int) -> dict[str, int]:
    try:
        found = json.loads(os.pread(fd, 1 << 16, 0) or b"{}")
    except ValueError:
        return {}
    return (
        {str(k): v for k, v in found.items() if isinstance(v, int)}
        if isinstance(found, dict)
        else {}
    )


def _chown(fd: int, directory: str) -> None:
    """Give a file that root created to the owner of the directory: the master's user also needs it."""
    if os.geteuid() == 0 and stat.S_ISDIR(os.stat(directory).st_mode):
        owner = os.stat(directory)
        os.fchown(fd, owner.st_uid, owner.st_gid)


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
