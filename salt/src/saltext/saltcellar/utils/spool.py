"""
The spool: where entries wait while the daemon is away.

One directory, written by every Salt process of one user (and by root on their behalf).

``spool``
    Records, one after the other: u32 length, u32 crc32 of the payload, payload (msgpack
    ``[call, args]``). Integers are big-endian.
``spool.state``
    u64 offset handed over so far, u64 end of the last good record, u32 failed attempts at the
    record at ``offset``, u32 crc32 of the former three.
``spool.aside``
    Records that the daemon kept failing on, in the same form, for a person to look at.
``spool.counters``
    A JSON map of how many entries were not stored, by reason.
``spool.handover``
    Empty. Whoever holds its lock is handing over.
``jid``
    The last jid that was made without the daemon: u64, microseconds since 1970 UTC.

Invariants, all under an exclusive flock on ``spool``:

* a record is on disk before :meth:`Spool.append` returns, and before the next one is begun, so
  that after a crash at most the last record is torn; the next append cuts it off;
* ``offset`` moves only past records that were answered. It may lag behind after a power failure
  (records are then handed over again, marked ``replay``); it never runs ahead;
* the file is emptied, never removed or replaced, so nobody can be left writing to a dead inode.

The bound in bytes is on what waits, between ``offset`` and the end. The file itself may grow to twice that while it is
handed over, and is empty afterwards. The bound in age moves ``offset`` past what has waited too long.
"""

import contextlib
import errno
import fcntl
import json
import logging
import multiprocessing.util
import os
import signal
import stat
import struct
import time
import zlib

from saltext.saltcellar.utils import wire

log = logging.getLogger(__name__)

#: How long to wait for other processes that are spooling, in seconds.
LOCK_WAIT_S = 5.0
#: No record is longer; a length above it is damage. Some room is left for what makes a request of it.
RECORD_BYTES_MAX = wire.REQUEST_BYTES_MAX - 64
#: How often a process looks whether the oldest records have waited too long, in seconds.
EXPIRY_INTERVAL_S = 60.0
#: A record that made the daemon fail so many times, with the daemon well otherwise, is set aside.
TRIES_MAX = 20
#: The last jid made here counts unless it is so far ahead of the clock, in microseconds. The daemon does the same.
JIDS_AHEAD_US = 3600 * 1000000

_HEADER = struct.Struct(">II")
_STATE = struct.Struct(">QQI")
_CRC = struct.Struct(">I")
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}

#: Counts that could not be written yet, by directory.
_uncounted = {}
#: Directories whose counts are to be written when the process ends.
_at_exit = set()
#: When to look for records that are too old again, by path.
_expiry_not_before = {}


class SpoolError(Exception):
    """The entry is not spooled. ``reason`` is the counter it belongs to."""

    def __init__(self, reason, message):
        super().__init__(message)
        self.reason = reason


class Record:
    """One spooled call: where it ends in the file, and the packed ``[call, args]``."""

    def __init__(self, end, payload):
        self.end = end
        self.payload = payload

    def call(self):
        """What was spooled: ``(call, args)``. Raises ``ValueError`` if nobody can tell."""
        try:
            call, args = wire.unpack(self.payload)
            return str(call), dict(args)
        except (TypeError, ValueError) as exc:
            raise ValueError(f"no call: {exc}") from exc

    def request(self, number):
        """The request's bytes. An array of two becomes one of three: what Salt gave us is not packed anew."""
        return b"\x93" + wire.pack(number) + self.payload[1:]


class Spool:
    """
    The spool in ``directory``, holding at most ``bytes_max`` bytes, none of them for longer than ``age_max`` seconds.

    Cheap to make; opens nothing.
    """

    def __init__(self, directory, bytes_max, age_max):
        self.directory = directory
        self.bytes_max = bytes_max
        self.age_max = age_max
        self.path = os.path.join(directory, "spool")

    # ---- writing

    def pending(self):
        """Whether anything waits: one ``stat``. False also where this user may not look."""
        try:
            return os.stat(self.path).st_size > 0
        except OSError:
            return False

    def append(self, call, args):
        """Put a call at the end, on disk. Raises :class:`SpoolError` and nothing else."""
        self.append_packed(wire.pack([call, args]))

    def append_packed(self, payload):
        """As :meth:`append`, of ``[call, args]`` that is packed already."""
        if len(payload) > RECORD_BYTES_MAX:
            raise SpoolError("too_large", f"an entry of {len(payload)} bytes")
        record = _HEADER.pack(len(payload), zlib.crc32(payload)) + payload
        try:
            with self._locked(create=True) as fd:
                self._append(fd, record)
        except OSError as exc:
            raise SpoolError("spool_failed", f"cannot write {self.path}: {exc}") from exc

    def _append(self, fd, record):
        offset, end, tries = self._good_end(fd)
        if self._expire(fd, offset, end):
            offset, end, tries = self._good_end(fd)
        if end - offset + len(record) > self.bytes_max or end + len(record) > 2 * self.bytes_max:
            raise SpoolError("spool_full", f"{self.path} holds {end - offset} of at most {self.bytes_max} bytes")
        try:
            _write_all(fd, record, end)
            os.fsync(fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, end)
            raise
        # Should this fail, the entry is safe all the same: whoever comes next reads the file through.
        with contextlib.suppress(OSError):
            self._write_state(offset, end + len(record), tries, durable=end == 0)

    def _good_end(self, fd):
        """The state, with the file cut to its last good record and the state made to fit the file."""
        size = os.fstat(fd).st_size
        offset, end, tries = self._read_state(size)
        if size == 0 and self._read_raw_state()[0]:
            # Left by a crash between emptying the file and saying so. It must go before the file
            # grows past the stale offset.
            self._write_state(0, 0, 0, durable=True)
        if end != size:
            end = offset
            with open(fd, "rb", buffering=1 << 20, closefd=False) as file:
                for record in _records(file, offset, size):
                    end = record.end
            if end < size:
                log.error("saltcellar: cut a torn record of %d bytes off %s", size - end, self.path)
                os.ftruncate(fd, end)
                os.fsync(fd)
                self.count("torn")
        return offset, end, tries

    # ---- reading

    def records(self):
        """What waits, oldest first, as it is at this moment. For looking only: takes no lock."""
        try:
            with open(self.path, "rb", buffering=1 << 20) as file:
                size = os.fstat(file.fileno()).st_size
                yield from _records(file, self._read_state(size)[0], size)
        except OSError:
            return

    # ---- too old

    def expire(self):
        """Let go of what has waited too long, and count it. Never raises."""
        try:
            with self._locked() as fd:
                offset, end, _ = self._good_end(fd)
                self._expire(fd, offset, end)
        except OSError as exc:
            log.debug("saltcellar: cannot look for old entries in %s: %s", self.path, exc)

    def _expire(self, fd, offset, end):
        """True if anything went. Looks once in a while, and no further than to the first record that is young enough."""
        now = time.monotonic()
        if offset >= end or now < _expiry_not_before.get(self.path, 0):
            return False
        _expiry_not_before[self.path] = now + EXPIRY_INTERVAL_S
        oldest = (time.time() - self.age_max) * 1e6
        start, lost = offset, 0
        with open(fd, "rb", buffering=1 << 16, closefd=False) as file:
            for record in _records(file, offset, end):
                try:
                    call, args = record.call()
                except ValueError:
                    break
                at = args.get("at")
                if not isinstance(at, int) or at >= oldest:
                    break
                offset = record.end
                lost += entries(call, args)
        if offset == start:
            return False
        log.error("saltcellar: %d entries are LOST: the daemon has been away for longer than %s s", lost, self.age_max)
        self.count("spool_expired", lost)
        self._move(fd, start, offset, end)
        return True

    # ---- handing over

    @contextlib.contextmanager
    def turn(self):
        """Gives true to one process at a time, and false at once to the others."""
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

    def first(self, count, bytes_max):
        """
        Up to ``count`` records, of ``bytes_max`` together or else a single one, and the tries spent on the first.

        A record that failed before comes alone: what happens then is about it and nothing else.
        """
        with self._locked() as fd:
            offset, end, tries = self._good_end(fd)
            count = 1 if tries else count
            found, taken = [], 0
            with open(fd, "rb", buffering=1 << 16, closefd=False) as file:
                for record in _records(file, offset, end):
                    if found and taken + len(record.payload) > bytes_max:
                        break
                    found.append(record)
                    taken += len(record.payload)
                    if len(found) == count:
                        break
            if not found and end:
                self._count_damage(fd, offset, end)
                self._empty(fd)
            return found, tries

    def advance(self, offset):
        """Everything before ``offset`` has been answered. Empties the file once nothing is left."""
        with self._locked() as fd:
            start, end, _ = self._good_end(fd)
            # Somebody else may have let go of more, for its age.
            if offset > start:
                self._move(fd, start, offset, end)

    def _move(self, fd, start, offset, end):
        self._count_damage(fd, start, min(offset, end))
        if offset >= end:
            self._empty(fd)
        else:
            self._write_state(offset, end, 0, durable=True)

    def _count_damage(self, fd, start, end):
        """Damaged records between two offsets are passed for good now: say so, once."""
        passed = 0
        with open(fd, "rb", buffering=1 << 16, closefd=False) as file:
            for record in _records(file, start, end):
                passed += _HEADER.size + len(record.payload)
        if start + passed < end:
            log.error("saltcellar: skipped %d damaged bytes of %s", end - start - passed, self.path)
            self.count("damaged")

    def note_try(self):
        """The daemon failed on the first record."""
        with self._locked() as fd:
            offset, end, tries = self._good_end(fd)
            self._write_state(offset, end, tries + 1)

    def set_aside(self, record):
        """Keep a record that cannot be handed over, out of the way of the others."""
        data = _HEADER.pack(len(record.payload), zlib.crc32(record.payload)) + record.payload
        fd = self._open(f"{self.path}.aside")
        try:
            end = os.fstat(fd).st_size
            if end + len(data) <= self.bytes_max:
                _write_all(fd, data, end)
                os.fsync(fd)
        finally:
            _close(fd)

    def _empty(self, fd):
        os.ftruncate(fd, 0)
        os.fsync(fd)
        self._write_state(0, 0, 0, durable=True)

    # ---- jids

    def next_jid_time(self, now):
        """
        The first odd microsecond from ``now`` on that no process has got from here. Raises ``OSError``.

        Not durable: after a power failure the clock has moved on.
        """
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            fd = self._open(os.path.join(self.directory, "jid"))
            try:
                _lock(fd)
                last = int.from_bytes(os.pread(fd, 8, 0), "big")
                # Of a clock that was wrong, and ran far ahead.
                if last > now + JIDS_AHEAD_US:
                    last = 0
                now = max(now | 1, last + 2)
                _write_all(fd, now.to_bytes(8, "big"), 0)
                return now
            finally:
                _close(fd)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    # ---- counting

    def count(self, reason, number=1):
        """One more entry that was not stored because of ``reason``. Never raises."""
        self._keep_counts({reason: number})
        self.write_counts()

    def write_counts(self):
        """Write down what could not be counted when it happened. Never raises."""
        counts = _uncounted.pop(self.directory, None)
        if not counts:
            return
        try:
            fd = self._open(f"{self.path}.counters")
            try:
                _lock(fd)
                total = _counters(fd)
                for name, more in counts.items():
                    total[name] = total.get(name, 0) + more
                text = json.dumps(total, sort_keys=True).encode() + b"\n"
                _write_all(fd, text, 0)
                os.ftruncate(fd, len(text))
            finally:
                _close(fd)
        except OSError as exc:
            self._keep_counts(counts)
            # The last chance, should nobody else ask before.
            if self.directory not in _at_exit:
                _at_exit.add(self.directory)
                multiprocessing.util.Finalize(None, self.write_counts, exitpriority=90)
            log.debug("saltcellar: cannot count in %s: %s", self.directory, exc)

    def _keep_counts(self, counts):
        kept = _uncounted.setdefault(self.directory, {})
        for name, more in counts.items():
            kept[name] = kept.get(name, 0) + more

    def counters(self):
        """The counts so far."""
        try:
            fd = os.open(f"{self.path}.counters", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return {}
        try:
            return _counters(fd)
        finally:
            os.close(fd)

    # ---- files

    @contextlib.contextmanager
    def _locked(self, create=False):
        """
        The records' file, open and locked.

        Signals wait meanwhile: Salt's event process flushes its queue from within its handler for
        SIGTERM, and would wait for a lock that the code it interrupted holds.
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

    def _open(self, path, create=True):
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)
        if not create:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._make_directory()
        fd = os.open(path, flags | os.O_CREAT, 0o600)
        _give(fd, self.directory)
        _sync_directory(self.directory)
        return fd

    def _make_directory(self):
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
            fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                _give(fd, parent)
            finally:
                os.close(fd)
            _sync_directory(parent)

    # ---- state

    def _read_raw_state(self):
        try:
            with open(f"{self.path}.state", "rb") as file:
                data = file.read(_STATE.size + _CRC.size)
        except OSError:
            return 0, -1, 0
        body, crc = data[: _STATE.size], data[_STATE.size :]
        if len(crc) != _CRC.size or _CRC.unpack(crc)[0] != zlib.crc32(body):
            return 0, -1, 0
        return _STATE.unpack(body)

    def _read_state(self, size):
        """``(offset, end, tries)``; from the start if there is none, or if it does not fit the file."""
        offset, end, tries = self._read_raw_state()
        if size == 0 or offset > size:
            return 0, 0 if size == 0 else -1, 0
        return offset, end, tries

    def _write_state(self, offset, end, tries, durable=False):
        body = _STATE.pack(offset, end, tries)
        fd = self._open(f"{self.path}.state")
        try:
            _write_all(fd, body + _CRC.pack(zlib.crc32(body)), 0)
            if durable:
                os.fsync(fd)
        finally:
            _close(fd)


def entries(call, args):
    """How many entries a call is about: as many as there are events in it, or one."""
    events = args.get("events") if call == "event_return" else None
    return len(events) if isinstance(events, (list, tuple)) else 1


def _records(file, offset, size):
    """Good records from ``offset`` on. Ends at the first that is not whole; jumps over damage within."""
    file.seek(offset)
    while offset + _HEADER.size < size:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return
        length, crc = _HEADER.unpack(header)
        end = offset + _HEADER.size + length
        # No record is empty; a run of zeros, as a power failure may leave, would otherwise pass.
        if not 0 < length <= RECORD_BYTES_MAX or end > size:
            return
        payload = file.read(length)
        if len(payload) == length and zlib.crc32(payload) == crc:
            yield Record(end, payload)
        elif end >= size:
            return
        offset = end


def _forget_counts():
    """In a child: what its parent has not counted yet is not the child's to count."""
    _uncounted.clear()
    _at_exit.clear()


os.register_at_fork(after_in_child=_forget_counts)


def _lock(fd):
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


def _close(fd):
    # Said aloud: a child forked in between holds the descriptor too, and closing ours would not free the lock.
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _write_all(fd, data, at):
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, at)
        view = view[done:]
        at += done


def _counters(fd):
    try:
        found = json.loads(os.pread(fd, 1 << 16, 0) or b"{}")
    except ValueError:
        return {}
    return {str(k): v for k, v in found.items() if isinstance(v, int)} if isinstance(found, dict) else {}


def _give(fd, directory):
    """What root makes belongs to whoever owns the directory: the master's user comes here too."""
    if os.geteuid() == 0 and stat.S_ISDIR(os.stat(directory).st_mode):
        owner = os.stat(directory)
        os.fchown(fd, owner.st_uid, owner.st_gid)


def _sync_directory(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
