"""
Copying jobs between the daemon and any of Salt's returners, through the returner interface.

Both sides have the same four methods: ``jids``, ``job``, ``known`` and ``store``. A copy asks the
target what it has of each job and stores only the rest, so it can be repeated. The position of an
interrupted copy is kept in Salt's cache (``salt.cache``), and is removed at the end.
"""

import collections.abc
import contextlib
import datetime
import logging
import multiprocessing
import os
import pathlib
import signal
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import salt.cache
import salt.minion
from salt.exceptions import CommandExecutionError
from salt.exceptions import SaltCacheError

from saltext.saltcellar.utils import calls
from saltext.saltcellar.utils import client
from saltext.saltcellar.utils import settings as settings_
from saltext.saltcellar.utils import wire

log = logging.getLogger(__name__)

Opts = settings_.Opts
#: Shows a line of progress.
Progress = Callable[[str], None]

#: Interval of progress reports, in seconds.
PROGRESS_INTERVAL_S = 5.0
#: Jobs or events of one page of the daemon.
PAGE = 1000
#: Seconds that a returner may take to read one job. ``local_cache`` tries for ever to read a
#: damaged return.
JOB_TIMEOUT_S = 60.0
#: Messages about skipped jobs that are returned; the log contains all.
SKIPPED_SHOWN = 20

_BANK = "saltcellar/transfer"
_EPOCH = datetime.datetime(1970, 1, 1)


class Skip(Exception):
    """One job cannot be copied; the others can."""


class Job:
    """A job: its load (``None`` if unknown), expected minions, returns by minion, and end time."""

    def __init__(
        self,
        jid: str,
        load: dict[str, Any] | None = None,
        minions: Iterable[str] = (),
        returns: dict[str, dict[str, Any]] | None = None,
        endtime: Any = None,
    ) -> None:
        self.jid = jid
        self.load = load
        self.minions = sorted(minions)
        self.returns = returns or {}
        self.endtime = endtime


class Known:
    """What a side has of a job."""

    def __init__(
        self,
        load: bool = False,
        minions: Iterable[str] = (),
        returned: Iterable[str] = (),
        endtime: bool = False,
    ) -> None:
        self.load = load
        self.minions = set(minions)
        self.returned = set(returned)
        self.endtime = endtime


class Reader:
    """
    A process that reads jobs: a returner may never return from a damaged one, and only a process
    can be ended.

    It is forked, so it has the loaded returner, and its alarm ends it, even if this process was
    killed meanwhile. The next job gets a new process.
    """

    def __init__(self, function: Callable[[str], Job]) -> None:
        self._function = function
        self._process: Any = None
        self._pipe: Any = None

    def read(self, jid: str) -> Job:
        """The job. Raises :class:`Skip` if it cannot be read, or not within :data:`JOB_TIMEOUT_S`."""
        if self._process is None:
            self._start()
        try:
            self._pipe.send(jid)
            job, failure = self._pipe.recv()
        except (EOFError, OSError) as exc:
            raise Skip(self._why_ended()) from exc
        if failure is not None:
            raise Skip(failure)
        return job

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._pipe.close()
            self._process.kill()
            self._process.join()
            self._process = None

    def _start(self) -> None:
        fork = multiprocessing.get_context("fork")
        self._pipe, theirs = fork.Pipe()
        self._process = fork.Process(target=self._serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def _why_ended(self) -> str:
        self._process.join()
        code = self._process.exitcode
        self.end()
        if code == -signal.SIGALRM:
            return f"it could not be read within {JOB_TIMEOUT_S:.0f} s"
        return f"the process that reads it ended with exit code {code}"

    def _serve(self, pipe: Any) -> None:
        # Closes the copy of the parent's end, which would hide the end of the parent.
        self._pipe.close()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        while True:
            try:
                jid = pipe.recv()
            except EOFError:
                os._exit(0)

            signal.setitimer(signal.ITIMER_REAL, JOB_TIMEOUT_S)
            try:
                answer: tuple[Job | None, str | None] = (self._function(jid), None)
            except Exception as exc:  # pylint: disable=broad-except
                # A returner may raise anything about one damaged job.
                log.debug("saltcellar: job %s cannot be read", jid, exc_info=True)
                answer = None, str(exc) if isinstance(exc, Skip) else f"{type(exc).__name__}: {exc}"
            signal.setitimer(signal.ITIMER_REAL, 0)
            pipe.send(answer)


class Returner:
    """One of Salt's returners."""

    def __init__(self, name: str, opts: Opts, needed: Iterable[str]) -> None:
        if name == "saltcellar":
            raise CommandExecutionError(
                "saltcellar cannot copy to or from itself: name another returner"
            )
        minion = salt.minion.MasterMinion(opts, states=False, rend=False, matcher=False)
        self.name = name
        self._functions = minion.returners
        self._minion = minion
        self._opts = opts
        self._reader = Reader(self._job)
        for function in needed:
            if f"{name}.{function}" not in self._functions:
                why = self._functions.missing_fun_string(f"{name}.{function}")
                self.close()
                raise CommandExecutionError(
                    f"the returner {name} cannot be used: {why}; check its name, its dependencies, "
                    f"and that it has the function {function}"
                )

    def __enter__(self) -> "Returner":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close Salt's loaders. 3008 logs a warning without it; earlier releases cannot."""
        self._reader.end()
        if hasattr(self._minion, "destroy"):
            self._minion.destroy()
            # 3008.3 also warns of a closed one, unless these are None.
            self._minion.returners = self._minion.functions = self._minion.utils = None

    def _call(self, function: str, *args: Any, **kwargs: Any) -> Any:
        return self._functions[f"{self.name}.{function}"](*args, **kwargs)

    def _has(self, function: str) -> bool:
        return f"{self.name}.{function}" in self._functions

    def jids(self) -> list[str]:
        """All jids, ascending."""
        try:
            # A mapping by jid; some returners give a list.
            return sorted({str(jid) for jid in self._call("get_jids") or ()})
        except Exception as exc:  # pylint: disable=broad-except
            # One job without its jid ends the whole list of local_cache.
            if self.name != "local_cache":
                raise CommandExecutionError(
                    f"the returner {self.name} cannot list its jobs: {exc}; "
                    f"`salt-run jobs.list_jobs ext_source={self.name}` must work first"
                ) from exc
            log.warning(
                "saltcellar: local_cache cannot list its jobs (%s), reading its directories", exc
            )
            return sorted(self._local_jids())

    def _local_jids(self) -> Iterator[str]:
        """The jids in the directories of ``local_cache``: each has a file ``jid``."""
        for path in pathlib.Path(self._opts["cachedir"], "jobs").glob("*/*/jid"):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                yield path.read_text(encoding="utf-8").strip()

    def job(self, jid: str) -> Job:
        """The whole job. Raises :class:`Skip` if the returner cannot read it, or not in time."""
        return self._reader.read(jid)

    def _job(self, jid: str) -> Job:
        load = self._call("get_load", jid)
        load = dict(load) if isinstance(load, collections.abc.Mapping) else {}
        minions = load.pop("Minions", ())
        found = self._call("get_jid", jid)
        if not isinstance(found, collections.abc.Mapping):
            raise Skip(f"get_jid returned {type(found).__name__}, not a map of minions")
        returns = {
            str(minion): _return(jid, str(minion), value, load) for minion, value in found.items()
        }
        endtime = self._call("get_endtime", jid) if self._has("get_endtime") else None
        return Job(jid, load or None, minions or (), returns, endtime or None)

    def known(self, jid: str) -> Known:
        """What the returner has of a job."""
        job = self.job(jid)
        return Known(job.load is not None, job.minions, job.returns, job.endtime is not None)

    def store(self, job: Job, known: Known) -> int:
        """Store what is missing. Returns the number of stored loads and returns."""
        stored = 0
        if self._has("prep_jid") and not known.load:
            self._call("prep_jid", nocache=False, passed_jid=job.jid)
        if job.load is not None and not known.load:
            self._call("save_load", job.jid, dict(job.load), minions=job.minions)
            stored += 1
        elif not known.minions.issuperset(job.minions) and self._has("save_minions"):
            self._call("save_minions", job.jid, job.minions)
        for minion, ret in sorted(job.returns.items()):
            if minion not in known.returned:
                self._call("returner", dict(ret))
                stored += 1
        if job.endtime and not known.endtime and self._has("update_endtime"):
            self._call("update_endtime", job.jid, job.endtime)
        return stored

    def store_events(self, events: list[dict[str, Any]]) -> None:
        """Store a batch of events."""
        self._call("event_return", events)


class Daemon:
    """The daemon, through one connection."""

    def __init__(self, link: calls.Link, opts: Opts) -> None:
        self._link = link
        self._confirmed = client.confirmed(opts)

    def jids(self) -> list[str]:
        """All jids, ascending."""
        found: set[str] = set()
        cursor = None
        while True:
            page = self._link.ask("jobs_list", limit=PAGE, cursor=cursor, include_polling=True)
            found.update(row["jid"] for row in page["jobs"])
            if not page["more"] or not page.get("next"):
                return sorted(found)
            cursor = page["next"]

    def job(self, jid: str) -> Job:
        """The whole job."""
        load = dict(self._link.ask("get_load", jid=jid) or {})
        minions = load.pop("Minions", ())
        found = self._link.ask("get_jid", jid=jid, full=True, **self._confirmed)
        returns = {minion: _return(jid, minion, value, load) for minion, value in found.items()}
        for ret in returns.values():
            ret.pop("bus_only", None)
        return Job(
            jid, load or None, minions, returns, self._link.ask("get_endtime", jid=jid) or None
        )

    def known(self, jid: str) -> Known:
        """What the store has of a job, seen on the bus or not."""
        known, start = Known(), None
        while True:
            page = self._link.ask("entries", jid=jid, **({"from": start} if start else {}))
            for entry in page["entries"]:
                kind = entry["kind"]
                known.load |= kind in ("load", "return_load")
                known.endtime |= kind == "endtime"
                if kind == "return" and entry.get("confirmed") is not False:
                    known.returned.add(entry.get("minion"))
            start = page["next"]
            if start is None:
                return known

    def store(self, job: Job, known: Known) -> int:
        """Store what is missing, with the time of the jid. Returns the number of stored loads and returns."""
        # A replay with the same time is stored once, also if a connection broke after it was
        # stored.
        about = {"at": _time_of(job.jid), "import": True, "replay": True}
        writes = []
        if job.load is not None and not known.load:
            writes.append(
                ("save_load", {**about, "jid": job.jid, "load": job.load, "minions": job.minions})
            )
        for minion, ret in sorted(job.returns.items()):
            if minion not in known.returned:
                writes.append(("returner", {**about, "load": ret}))
        stored = len(writes)
        if job.endtime and not known.endtime:
            writes.append(
                ("update_endtime", {**about, "jid": job.jid, "endtime": str(job.endtime)})
            )
        for answer in self._link.ask_all(writes):
            if isinstance(answer, wire.Refusal):
                if answer.code in ("unavailable", "internal"):
                    raise calls.DaemonError(
                        f"the daemon cannot store now: {answer.message}; run it again later"
                    )
                raise Skip(f"the daemon rejects an entry: {answer.message}")
        return stored

    def events(self, start: int) -> Iterator[tuple[list[dict[str, Any]], int | None]]:
        """Pages of stored events from a sequence number on: the events, and the position after them."""
        while start is not None:
            page = self._link.ask("entries", all=True, **({"from": start} if start else {}))
            events = [event for event in map(_event, page["entries"]) if event]
            start = page["next"]
            yield events, start


def copy(
    source: "Returner | Daemon",
    target: "Returner | Daemon",
    name: str,
    opts: Opts,
    progress: Progress,
    start: Any = None,
) -> dict[str, Any]:
    """Copy all jobs. ``name`` identifies the copy, ``progress`` takes a string. Returns a map of counts."""
    position = Position(opts, name)
    start = str(start) if start else position.read()
    jids = [jid for jid in source.jids() if not start or jid >= start]
    result: dict[str, Any] = {"jobs": 0, "stored": 0, "unchanged": 0, "skipped": 0, "problems": []}
    if start:
        result["resumed_at"] = start
    reported = time.monotonic()
    for number, jid in enumerate(jids):
        if time.monotonic() - reported >= PROGRESS_INTERVAL_S:
            reported = time.monotonic()
            position.write(jid)
            progress(f"{number} of {len(jids)} jobs, {result['stored']} entries stored, at {jid}")
        try:
            stored = target.store(source.job(jid), target.known(jid))
        except calls.DaemonError:
            # Every other job would fail as well.
            position.write(jid)
            raise
        except Exception as exc:  # pylint: disable=broad-except
            # A returner may raise anything about one damaged job.
            log.error(
                "saltcellar: job %s was not copied; correct the cause and repeat the copy: %s",
                jid,
                exc,
                exc_info=not isinstance(exc, Skip),
            )
            result["skipped"] += 1
            if len(result["problems"]) < SKIPPED_SHOWN:
                result["problems"].append(f"{jid}: {exc}")
            continue
        except BaseException:
            position.write(jid)
            raise
        result["jobs"] += 1
        result["stored"] += stored
        result["unchanged"] += not stored
    position.remove()
    return result


def copy_events(
    source: "Daemon", target: "Returner", name: str, opts: Opts, progress: Progress
) -> int:
    """Copy all events of the daemon. Returns their number."""
    position = Position(opts, name)
    count, reported = 0, time.monotonic()
    for events, after in source.events(int(position.read() or 0)):
        for first in range(0, len(events), PAGE):
            target.store_events(events[first : first + PAGE])
        count += len(events)
        if after is not None:
            position.write(str(after))
        if time.monotonic() - reported >= PROGRESS_INTERVAL_S:
            reported = time.monotonic()
            progress(f"{count} events, up to entry {after}")
    position.remove()
    return count


class Position:
    """Where an interrupted copy continues, in Salt's cache. A cache that cannot be used costs a repetition."""

    def __init__(self, opts: Opts, name: str) -> None:
        self._cache = salt.cache.factory(opts)
        self._name = name

    def read(self) -> str | None:
        """The position, or ``None``."""
        try:
            found = self._cache.fetch(_BANK, self._name)
        except SaltCacheError as exc:
            log.warning(
                "saltcellar: cannot read the position of %s, starting at the beginning; check the master's `cache`: %s",
                self._name,
                exc,
            )
            return None
        return found.get("at") if isinstance(found, dict) else None

    def write(self, at: str) -> None:
        """Remember the first job, or entry, that is not copied yet."""
        try:
            self._cache.store(_BANK, self._name, {"at": at})
        except SaltCacheError as exc:
            log.warning(
                "saltcellar: cannot keep the position of %s, an interrupted copy continues at an earlier one; "
                "check the master's `cache`: %s",
                self._name,
                exc,
            )

    def remove(self) -> None:
        """Forget the position: the copy is complete."""
        try:
            self._cache.flush(_BANK, self._name)
        except SaltCacheError as exc:
            log.warning(
                "saltcellar: cannot remove the position of %s, the next copy does not start at the beginning; "
                "correct the master's `cache`, or pass start=1 then: %s",
                self._name,
                exc,
            )


def _return(jid: str, minion: str, value: Any, load: Mapping[str, Any]) -> dict[str, Any]:
    """
    A whole return. ``get_jid`` of some returners yields only ``return`` and ``retcode``; the
    load contains the function.
    """
    known = {
        "jid": jid,
        "id": minion,
        "fun": load.get("fun", ""),
        "fun_args": load.get("arg") or [],
    }
    if not isinstance(value, collections.abc.Mapping) or "return" not in value:
        value = {"return": value}
    return {**known, **value}


def _time_of(jid: str) -> int:
    """The time in a jid, in microseconds since 1970; the present one if it has none."""
    try:
        at = datetime.datetime.strptime(jid[:20], "%Y%m%d%H%M%S%f")
    except ValueError:
        return time.time_ns() // 1000
    return (at - _EPOCH) // datetime.timedelta(microseconds=1)


def _event(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """An event as ``event_return`` has it; ``None`` for entries that were not on a bus."""
    if not entry.get("on_bus") or "tag" not in entry:
        return None
    try:
        data = wire.unpack(entry["body"])
    except ValueError as exc:
        log.error("saltcellar: event %s was not copied: %s", entry["seq"], exc)
        return None
    return {"tag": entry["tag"].decode("utf-8", "replace"), "data": data}
