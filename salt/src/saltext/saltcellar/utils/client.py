"""
The client: every call of the returner, and the behaviour while the daemon is unreachable.

* One connection per process and thread, opened when first needed. After a fork the child closes
  its copy of the descriptor and opens a new connection.
* A **write** that the daemon cannot accept now goes to the spool (``spool.py``) and counts as done.
  One that the daemon rejects permanently is counted there and logged. A write never raises.
* A **read** returns a default instead, and logs it.
* After any response, if the spool is not empty, this process hands spooled entries over for a moment.

Invariant: an entry from the master is stored by the daemon, or in the spool, or counted and logged.
"""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import salt.utils.jid
import salt.utils.job
from salt.exceptions import CommandExecutionError

from saltext.saltcellar.utils import jids
from saltext.saltcellar.utils import logs
from saltext.saltcellar.utils import mirror
from saltext.saltcellar.utils import oversize
from saltext.saltcellar.utils import pool as pool_
from saltext.saltcellar.utils import settings as settings_
from saltext.saltcellar.utils import spool as spool_
from saltext.saltcellar.utils import wire

log = logging.getLogger(__name__)

#: Arguments of a call, or a map that a call returned.
Args = dict[str, Any]

#: Time that one call may spend on handing over spooled entries, in seconds.
HANDOVER_BUDGET_S = 0.2
#: The same for the master's maintenance process.
HANDOVER_BUDGET_IDLE_S = 2.0
#: Pause after a failed handover, in seconds.
HANDOVER_PAUSE_S = 1.0
#: Records sent before waiting for their responses.
WINDOW_RECORDS = 64
#: The same in bytes, small enough that one window does not hold up the call that carries it.
WINDOW_BYTES = 256 * 1024
#: Cached clients, one per configuration.
CLIENTS_MAX = 16

#: Codes of refusals that a retry does not change.
FINAL_CODES = frozenset({"refused", "bad_args", "too_large", "unknown_call"})
#: Codes of refusals that say nothing about the record that was sent.
NOT_OF_A_RECORD = frozenset({"unavailable", "version"})
#: Calls that overwrite earlier ones. They queue behind a spool that is not empty, so that an older
#: one from the spool does not overwrite a newer one.
LAST_WINS = frozenset({"update_endtime", "save_reg"})

#: The pool of each thread, and the pauses of all.
pool = pool_.Pool()
breaker = pool_.Breaker()

#: The latest batch of events of each thread.
_batches = threading.local()
_clients: dict[Any, "Client"] = {}
#: The latest options and their client: one value, because other threads replace it.
_latest: tuple[Any, "Client | None"] = (None, None)
#: By path of a spool: the end of the pause after a failed handover.
_handover_not_before: dict[str, float] = {}


def confirmed(opts: settings_.Opts) -> dict[str, bool]:
    """
    Arguments that restrict a response to returns of ``returner`` calls, if saltcellar is the job
    cache: Salt then makes that call for every authenticated return, and any client that may fire
    events can put others on the bus.
    """
    caches = (opts.get("ext_job_cache"), opts.get("master_job_cache"))
    return {"confirmed": True} if settings_.NAME in caches else {}


class Unreachable(Exception):
    """The daemon cannot process the call now. Retry later."""


class Unavailable(CommandExecutionError):
    """
    Raised to Salt if the response is unknown.

    Not a ``KeyError`` or ``TypeError``: the master interprets those as "no such returner".
    """


def get_client(opts: settings_.Opts, functions: Any = None, ret: Any = None) -> "Client":
    """The client for ``opts``. Cheap: connections belong to the process, not to the client."""
    global _latest
    key = None
    # Since 3008 a loader's options are one map object, and the lookups for its key take tens of
    # microseconds.
    latest, client = _latest
    if client is not None and opts is latest:
        return client
    try:
        key = settings_.cache_key(opts)
        client = _clients.get(key) if key else None
        if client is None:
            client = Client(settings_.from_opts(opts, functions, ret))
    except Exception as exc:  # pylint: disable=broad-except
        # Whatever this is, the destination is unknown. Entries keep the id and the spool of these
        # options.
        why = f"invalid configuration: {exc}"
        return Client(settings_.Settings(opts.get("id"), why, opts.get("cachedir")))
    if key and key not in _clients:
        # A process has few configurations; tests have more.
        if len(_clients) >= CLIENTS_MAX:
            _clients.clear()
        _clients[key] = client
    if key and type(opts) is not dict:  # pylint: disable=unidiomatic-typecheck
        _latest = opts, client
    return client


class Client:
    """The daemon's calls, with Salt's names and arguments."""

    def __init__(self, settings: settings_.Settings) -> None:
        self.settings = settings
        self.spool = spool_.Spool(
            settings.spool_dir, settings.spool_bytes_max, settings.spool_age_max
        )

    # ---- jobs

    def prep_jid(self, opts: settings_.Opts, nocache: bool = False, passed_jid: Any = None) -> str:
        """A jid; never raises. A passed jid needs no round trip: Salt calls this for every return."""
        jid = str(passed_jid) if passed_jid else None
        try:
            if nocache:
                # Made before the write: an entry in the spool must have its jid.
                jid = jid or self._new_jid(opts)
                self.write("prep_jid", {"nocache": True, "passed_jid": jid})
                return jid
            return jid or self._new_jid(opts)
        except Exception:  # pylint: disable=broad-except
            logs.error(
                "prep_jid failed",
                "saltcellar: unexpected error in prep_jid, using a job id of Salt: please report the traceback",
                exc_info=True,
            )
            return jid or salt.utils.jid.gen_jid({})

    def _new_jid(self, opts: settings_.Opts) -> str:
        try:
            answer = self._ask(
                wire.Call("prep_jid", {"nocache": False, "passed_jid": None, "slot": True})
            )
            self.hand_over()
            # A daemon that knows no slots answers with the jid alone.
            jid = answer
            if isinstance(answer, dict):
                jid = answer.get("jid")
                jids.learn(self.spool, answer.get("slot"))
            if isinstance(jid, str) and jid:
                return jids.in_form_of(opts, jid)
            logs.error(
                "prep_jid",
                "saltcellar: the daemon returned no job id but %r, generating job ids locally: "
                "please report this message",
                answer,
            )
        except (Unreachable, wire.Refusal) as exc:
            logs.error(
                "prep_jid",
                "saltcellar: the daemon makes no job ids now, generating them locally: %s",
                exc,
            )
        return jids.local_jid(opts, self.spool, jids.slot_of(self.settings, self.spool))

    def get_load(self, opts: settings_.Opts, jid: Any) -> Args:
        """
        The load of a job, ``{}`` if there is no such job; raises :class:`Unavailable` if this is
        unknown, except in a syndic.

        It must be an exception. ``salt`` interprets ``{}`` as "jid does not exist" and shows no
        results, whereas it warns about an exception and waits for the minions as usual
        (``get_iter_returns`` of 3006, 3007 and 3008). ``--static`` fails either way, but shows the
        reason of an exception.

        A syndic asks before it takes the job's first return, and with an exception it forwards
        neither (``SyndicManager._process_event`` of the same). It forwards a return without a load,
        which the master above has of the jobs that it published itself. A load that it did not get
        once is never forwarded.
        """
        try:
            load = self._ask(wire.Call("get_load", {"jid": str(jid)}))
        except (Unreachable, wire.Refusal) as exc:
            load = self._spooled_load(jid)
            if not load:
                logs.error(
                    "get_load",
                    "saltcellar: cannot look up the job %s, Salt shows no results: %s",
                    jid,
                    exc,
                )
                if opts.get("__role") == "syndic":
                    return {}
                raise Unavailable(f"saltcellar cannot look up the job {jid}: {exc}") from exc
            return load
        # The daemon may be back while the publish still waits in the spool.
        if not load and self.spool.pending():
            load = self._spooled_load(jid)
        self.hand_over()
        return load if isinstance(load, dict) else {}

    def _spooled_load(self, jid: Any) -> Args:
        """The publish load of ``jid`` from the spool, with ``Minions``, or ``{}``."""
        jid = str(jid)
        needle = jid.encode("utf-8", "saltcellar.surrogates")
        load: Args = {}
        minions: set[str] = set()
        try:
            for record in self.spool.records():
                if needle not in record.payload:
                    continue
                call, args = wire.unpack(record.payload)
                if args.get("jid") != jid:
                    continue
                if call == "save_load" and "return" not in args["load"]:
                    load = args["load"]
                if call in ("save_load", "save_minions"):
                    minions.update(args.get("minions") or ())
        except Exception as exc:  # pylint: disable=broad-except
            logs.error(
                "spooled_load",
                "saltcellar: cannot read the spool %s, jobs that wait in it are not found: "
                "please report this message: %s",
                self.spool.path,
                exc,
            )
        return dict(load, Minions=sorted(minions)) if load else {}

    def event_return(self, events: Any) -> None:
        """
        Store events of the bus unchecked: the daemon counts those without tag or data
        (``event_return_malformed``).

        Salt's event process flushes its queue once more within its handler for SIGTERM. If that
        interrupts or follows a flush, the same events arrive a second time, and are marked as a
        replay.
        """
        if not isinstance(events, (list, tuple)):
            events = [events]
        if not events:
            return
        again = getattr(_batches, "latest", None)
        if again is not None and again.is_of(events):
            self.write("event_return", {"at": again.at, "events": events, "replay": True})
            return
        _batches.latest = batch = _Batch(events)
        self.write("event_return", {"at": batch.at, "events": events})

    def get_jid(self, opts: settings_.Opts, jid: Any) -> Args:
        """
        The returns of a job, by minion; raises :class:`Unavailable` if they are unknown.

        ``{}`` would mean that no minion has returned. A job of thousands of minions may take longer
        to read than the other calls, so it has the timeout of listings.
        """
        args = self._with_full(opts, {"jid": str(jid)})
        try:
            found = self._ask(wire.Call("get_jid", args), self.settings.listing_timeout)
        except (Unreachable, wire.Refusal) as exc:
            logs.error(
                "get_jid",
                "saltcellar: cannot read the returns of job %.100s, Salt shows none: %s",
                jid,
                exc,
            )
            if getattr(exc, "code", None) in FINAL_CODES:
                # Such as a jid that no job can have.
                return {}
            raise Unavailable(
                f"saltcellar cannot read the returns of job {str(jid)[:100]}: {exc}"
            ) from exc
        self.hand_over()
        return found if isinstance(found, dict) else {}

    def get_fun(self, opts: settings_.Opts, fun: str) -> Any:
        """The last jid of a function by minion, or its return."""
        return self.read("get_fun", self._with_full(opts, {"fun": fun}), {}, listing=True)

    def get_minions(self, opts: settings_.Opts) -> Any:
        """All minions with a return."""
        return self.read("get_minions", confirmed(opts), [], listing=True)

    def _with_full(self, opts: settings_.Opts, args: Args) -> Args:
        args.update(confirmed(opts))
        return {**args, "full": True} if self.settings.full_ret else args

    def save_load(self, jid: Any, load: Any, minions: Any) -> None:
        """
        Store the load of a job and its targeted minions.

        Salt calls this for each return as well; the daemon distinguishes them.
        """
        self.write("save_load", {"jid": str(jid), "load": load, "minions": _names(jid, minions)})

    def returner(self, opts: settings_.Opts, load: Any) -> None:
        """
        Store a minion's return.

        A masterless minion passes the results of its startup states with the jid ``req``: such a
        return gets a new jid, which is written back into ``load`` (``local_cache.returner`` does
        the same).
        """
        if isinstance(load, dict) and load.get("jid") == "req":
            load["jid"] = self.prep_jid(opts, bool(load.get("nocache")))
            if load.get("nocache"):
                # Salt asked for a jid of a job that is not stored.
                return
        self.write("returner", {"load": load})

    def update_endtime(self, jid: Any, endtime: Any) -> None:
        """Store the end time of a job; the last one wins."""
        self.write("update_endtime", {"jid": str(jid), "endtime": str(endtime)})

    def save_minions(self, jid: Any, minions: Any, syndic_id: Any) -> None:
        """Add to the minions that a job targeted."""
        syndic_id = None if syndic_id is None else str(syndic_id)
        self.write(
            "save_minions",
            {"jid": str(jid), "minions": _names(jid, minions) or [], "syndic_id": syndic_id},
        )

    # ---- writes and reads

    def write(self, call: str, args: Args) -> None:
        """Store an entry: in the daemon, or in the spool. Never raises."""
        # The first key, so that readers of the spool find it at the start of a record.
        args = {"at": time.time_ns() // 1000, **args, **mirror.marks(call)}
        try:
            packed = wire.Call(call, args)
            if call in LAST_WINS and self.spool.pending():
                self._keep(call, args, packed, None)
                self.hand_over()
                return
            try:
                self._ask(packed, writes=True)
            except Unreachable as exc:
                self._keep(call, args, packed, exc)
                return
            except wire.Refusal as exc:
                parts = self._smaller(call, args, exc) if exc.code == "too_large" else ()
                for part in parts:
                    self.write(call, part)
                if not parts and not self._write_readable(call, args, packed, exc):
                    self._rejected(call, args, packed, exc)
                return
            except Exception as exc:  # pylint: disable=broad-except
                logs.error(
                    f"failed {call}",
                    "saltcellar: unexpected error in %s, spooling to %s: please report the traceback",
                    call,
                    self.spool.path,
                    exc_info=True,
                )
                self._keep(call, args, packed, exc)
                return
            self.hand_over()
        except Exception:  # pylint: disable=broad-except
            about = f"not stored {call}"
            logs.error(
                about,
                "saltcellar: unexpected error, %s for job %s was NOT stored: please report the traceback",
                call,
                args.get("jid"),
                exc_info=True,
            )
            self.spool.count("failed", spool_.entries(call, args))

    def _smaller(self, call: str, args: Args, refusal: Exception) -> list[Args]:
        """See :func:`oversize.parts`. Counts and logs a value that is left out."""
        parts = oversize.parts(args, refusal)
        # The load of a job that is a return: the `returner` call that follows is counted.
        if len(parts) == 1 and call != "save_load":
            self.spool.count("value_too_large")
            logs.error(
                "value too large",
                "saltcellar: %s is stored without its value: %s",
                oversize.about(call, args),
                refusal,
            )
        return parts

    def _write_readable(
        self, call: str, args: Args, packed: wire.Call, refusal: wire.Refusal
    ) -> bool:
        """
        Send a call that was refused for its map keys again, with keys as strings.

        Returns whether it is stored or spooled.
        """
        readable = packed.readable() if refusal.code == "refused" else None
        if readable is None:
            return False
        try:
            self._ask(readable, writes=True)
        except Unreachable as exc:
            self._keep(call, args, readable, exc)
        except wire.Refusal:
            return False
        return True

    def read(self, call: str, args: Args, otherwise: Any, listing: bool = False) -> Any:
        """The daemon's response; ``otherwise`` without one. Never raises."""
        try:
            answer = self._ask(
                wire.Call(call, args), self.settings.listing_timeout if listing else None
            )
            self.hand_over()
            return answer
        except (Unreachable, wire.Refusal) as exc:
            logs.error(
                call,
                "saltcellar: %s failed, Salt gets an empty result: %s",
                call,
                exc,
            )
        except Exception:  # pylint: disable=broad-except
            logs.error(
                f"failed {call}",
                "saltcellar: unexpected error in %s, Salt gets an empty result: please report the traceback",
                call,
                exc_info=True,
            )
        return otherwise

    def maintain(self, opts: settings_.Opts) -> None:
        """Pass ``keep_jobs_seconds`` on, and empty the spool. Called by Salt's maintenance."""
        try:
            # Salt's reading of its two options: 3006 and 3007 still honour ``keep_jobs``, 3008
            # does not.
            keep_jobs_seconds = int(salt.utils.job.get_keep_jobs_seconds(opts))
            if keep_jobs_seconds < 0:
                raise ValueError(f"{keep_jobs_seconds} is negative")
        except Exception as exc:  # pylint: disable=broad-except
            logs.error(
                "keep_jobs",
                "saltcellar: invalid keep_jobs_seconds, the daemon keeps its value: write a whole number of seconds, 0 "
                "or more (Salt 3006 and 3007 read keep_jobs, in hours, if keep_jobs_seconds is unset): %s",
                exc,
            )
            keep_jobs_seconds = None
        self.read("clean_old_jobs", {"keep_jobs_seconds": keep_jobs_seconds}, None)
        self.hand_over(HANDOVER_BUDGET_IDLE_S)
        self.spool.write_counts()
        if self.spool.pending():
            self.spool.expire()

    # ---- calls that the daemon did not accept

    def _keep(self, call: str, args: Args, packed: wire.Call, why: Exception | None) -> None:
        try:
            # The daemon may have stored it before it stopped answering, so the record is marked as
            # a replay.
            self.spool.append_packed(packed.record(), spool_.entries(call, args))
        except spool_.SpoolError as exc:
            parts = self._smaller(call, args, exc) if exc.reason == "too_large" else ()
            for part in parts:
                self._keep(call, part, wire.Call(call, part), why)
            if parts:
                return
            self.spool.count(exc.reason, spool_.entries(call, args))
            logs.error(
                f"lost {exc.reason}",
                "saltcellar: %s is LOST: %s; not stored by the daemon: %s",
                oversize.about(call, args),
                exc,
                why or "earlier entries wait in the spool",
            )
        else:
            if isinstance(why, (Unreachable, wire.Refusal)):
                logs.error(
                    "unreachable",
                    "saltcellar: the daemon does not take entries now, spooling to %s: %s",
                    self.spool.path,
                    why,
                )

    def _rejected(self, call: str, args: Args, packed: wire.Call, refusal: wire.Refusal) -> None:
        if refusal.code in FINAL_CODES:
            self.spool.count(refusal.code, spool_.entries(call, args))
            logs.error(
                f"refusal {refusal.code}",
                "saltcellar: %s was not stored and is not sent again; correct what the daemon rejects: %s",
                oversize.about(call, args),
                refusal,
            )
        else:
            # Different versions, or an unknown code: spool until one side is updated.
            self._keep(call, args, packed, refusal)

    # ---- one call

    def _ask(self, call: wire.Call, timeout: float | None = None, writes: bool = False) -> Any:
        """
        The daemon's response. Raises :class:`Unreachable`, or :class:`wire.Refusal` for permanent
        refusals.

        A pooled connection may be broken because the daemon restarted: then one new connection is
        tried.
        """
        if self.settings.error:
            raise Unreachable(self.settings.nothing_is_sent)
        path = self.settings.address
        now = time.monotonic()
        paused = breaker.reason(path, now)
        if paused is not None:
            raise Unreachable(f"{path}, a moment ago: {paused}")
        deadline = now + (timeout or self.settings.timeout)
        try:
            while True:
                pooled = pool.take(path)
                # Connecting has the normal timeout, also for calls that may take longer.
                connection = pooled or pool_.connect(
                    self.settings, min(deadline, now + self.settings.timeout)
                )
                try:
                    answer = connection.ask(call, deadline)
                except wire.Refusal:
                    if connection.usable:
                        pool.put(path, connection)
                    else:
                        connection.close()
                    raise
                except wire.Broken:
                    connection.close()
                    if pooled is None:
                        raise
                    if writes:
                        call.repeated()
                    continue
                except BaseException:
                    # A response may still be in flight, even if a signal handler raised.
                    connection.close()
                    raise
                pool.put(path, connection)
                breaker.reset(path)
                return answer
        except wire.Broken as exc:
            raise Unreachable(f"{path}: {exc}") from exc
        except wire.TimedOut as exc:
            breaker.trip(path, str(exc))
            raise Unreachable(f"{path}: {exc}") from exc
        except wire.Refusal as exc:
            if exc.code in ("unavailable", "internal"):
                raise Unreachable(f"{path}: {exc}") from exc
            raise

    # ---- handing over

    def hand_over(self, budget: float = HANDOVER_BUDGET_S) -> None:
        """Send spooled entries for about ``budget`` seconds at most, unless another process does. Never raises."""
        if self.settings.error or not self.spool.pending():
            return
        path = self.settings.address
        now = time.monotonic()
        if now < _handover_not_before.get(self.spool.path, 0):
            return
        if breaker.reason(path, now) is not None:
            return
        connection = None
        try:
            with self.spool.handover_lock() as mine:
                if not mine:
                    return
                connection = pool.take(path) or pool_.connect(
                    self.settings, now + self.settings.timeout
                )
                if self._hand_over(connection, now + budget):
                    pool.put(path, connection)
                    connection = None
                    return
        except wire.TimedOut as exc:
            breaker.trip(path, str(exc))
            log.debug("saltcellar: handover stopped: %s", exc)
        except (wire.Broken, wire.Refusal, OSError) as exc:
            log.debug("saltcellar: handover stopped: %s", exc)
        except Exception:  # pylint: disable=broad-except
            logs.error(
                "handover",
                "saltcellar: unexpected error, the spool %s is not delivered for now: please report the traceback",
                self.spool.path,
                exc_info=True,
            )
        finally:
            if connection is not None:
                connection.close()
        _handover_not_before[self.spool.path] = time.monotonic() + HANDOVER_PAUSE_S

    def _hand_over(self, connection: wire.Connection, until: float) -> bool:
        """Send window by window. False if the daemon could not accept a record now."""
        while time.monotonic() < until:
            records, tries = self.spool.first(WINDOW_RECORDS, WINDOW_BYTES)
            if not records:
                return True
            if tries >= spool_.TRIES_MAX:
                self._dead_letter(records[0])
                continue
            if not self._hand_over_window(connection, records):
                return False
        return True

    def _hand_over_window(self, connection: wire.Connection, records: list[spool_.Record]) -> bool:
        deadline = time.monotonic() + self.settings.timeout
        ids: list[int] = []
        answers: dict[int, Any] = {}
        try:
            ids = connection.send([record.request for record in records], deadline)
            while len(answers) < len(ids):
                number, value = connection.receive(deadline)
                answers[number] = value
        except (wire.Broken, wire.Refusal) as exc:
            # The daemon closed the connection. The first record is sent alone next time, which
            # shows whether it is the cause. A refused connection says nothing about the record.
            done = self._settle(records, [answers.get(number, _MISSING) for number in ids])
            if not done and getattr(exc, "code", None) not in NOT_OF_A_RECORD:
                self.spool.count_try()
            raise
        done = self._settle(records, [answers.get(number, _MISSING) for number in ids])
        if done == len(records):
            return True
        if getattr(answers.get(ids[done]), "code", None) not in NOT_OF_A_RECORD:
            self.spool.count_try()
        return False

    def _settle(self, records: list[spool_.Record], answers: list[Any]) -> int:
        """Advance past the leading records with a final answer. Returns their number."""
        done = 0
        for record, answer in zip(records, answers):
            if isinstance(answer, wire.Refusal):
                if answer.code not in FINAL_CODES:
                    break
                if not self._split(record, answer):
                    self._refused(record, answer)
            elif answer is _MISSING:
                break
            done += 1
        if done:
            self.spool.advance(records[done - 1].end)
        return done

    def _split(self, record: spool_.Record, refusal: wire.Refusal) -> bool:
        """
        Hand a call that is too large over in parts, see :func:`oversize.parts`.

        True if each part is stored, in the spool, or counted; false if there are none.
        """
        try:
            call, args = record.call()
        except ValueError:
            return False
        parts = self._smaller(call, args, refusal) if refusal.code == "too_large" else ()
        if not parts and self._write_readable(call, args, wire.Call(call, args), refusal):
            return True
        for part in parts:
            packed = wire.Call(call, part).repeated()
            try:
                self._ask(packed, writes=True)
            except Unreachable as exc:
                self._keep(call, part, packed, exc)
            except wire.Refusal as exc:
                smaller = spool_.Record(0, packed.record(), spool_.entries(call, part))
                if exc.code not in FINAL_CODES:
                    self._keep(call, part, packed, exc)
                elif not self._split(smaller, exc):
                    self._refused(smaller, exc)
        return bool(parts)

    def _refused(self, record: spool_.Record, refusal: wire.Refusal) -> None:
        """Count a permanently rejected record, and dead-letter it if it is too large, for manual inspection."""
        self.spool.count(refusal.code, record.entries)
        logs.error(
            f"refusal {refusal.code}",
            "saltcellar: spooled %s was not stored and is not sent again; correct what the daemon rejects: %s",
            _about(record),
            refusal,
        )
        if refusal.code == "too_large" and not self.spool.dead_letter(record):
            self._no_room_for_dead_letters(record)

    def _dead_letter(self, record: spool_.Record) -> None:
        if self.spool.dead_letter(record):
            logs.error(
                "dead letter",
                "saltcellar: the daemon keeps failing on %s, moved to %s.dead-letter: "
                "see `journalctl -u saltcellar` on the daemon's host",
                _about(record),
                self.spool.path,
            )
            self.spool.count("dead_lettered", record.entries)
        else:
            self._no_room_for_dead_letters(record)
            self.spool.count("dead_letter_full", record.entries)
        self.spool.advance(record.end)

    def _no_room_for_dead_letters(self, record: spool_.Record) -> None:
        logs.error(
            "dead letter full",
            "saltcellar: %s is LOST, the daemon does not take it and %s.dead-letter is full: "
            "move that file away",
            _about(record),
            self.spool.path,
        )


_MISSING = object()


def _about(record: spool_.Record) -> str:
    """A spooled record, for a message."""
    try:
        return oversize.about(*record.call())
    except ValueError:
        return "an unreadable call"


def _names(jid: Any, minions: Any) -> list[str] | None:
    """Minion ids of a job as a list; ``None`` (unknown) stays ``None``."""
    if minions is None:
        return None
    try:
        return [
            str(minion) for minion in ([minions] if isinstance(minions, (str, bytes)) else minions)
        ]
    except TypeError:
        logs.error(
            "minions",
            "saltcellar: job %.100s is stored without its minions, because %.200r is not a list of ids: "
            "correct the program that calls save_load or save_minions of the returner saltcellar",
            jid,
            minions,
        )
        return []


class _Batch:
    """The events of the latest call, to recognise them by identity."""

    def __init__(self, events: Sequence[Any]) -> None:
        self._events = events
        self._ends = len(events), events[0], events[-1]
        self.at = time.time_ns() // 1000

    def is_of(self, events: Sequence[Any]) -> bool:
        """Whether these are the same objects in the same list."""
        count, first, last = self._ends
        return (
            events is self._events
            and len(events) == count
            and events[0] is first
            and events[-1] is last
        )


def forget() -> None:
    """Close this thread's connections and forget past failures. For tests."""
    global _latest
    pool.clear()
    breaker.clear()
    _batches.latest = None
    _clients.clear()
    _latest = None, None
    _handover_not_before.clear()
    jids.forget()
    logs.forget()
