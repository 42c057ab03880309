"""
The client: every call the returner makes, and what happens when the daemon is away.

* One connection per process and thread, opened when first needed. After a fork the child closes
  its copy of the descriptor and opens a connection of its own.
* A **write** that the daemon cannot take now goes to the spool (``spool.py``) and counts as done.
  One that the daemon refuses for good is counted there and logged. A write never raises.
* A **read** gives a stated value instead, and logs it.
* After any answer, if the spool holds something, this process hands over for a moment.

The invariant behind it: an entry the master gave us is stored by the daemon, or in the spool, or
counted. Nothing disappears without a line in the log.
"""

import logging
import os
import threading
import time

import salt.utils.jid
import salt.utils.job
from salt.exceptions import CommandExecutionError
from saltext.saltcellar.utils import fold, jids, peer
from saltext.saltcellar.utils import settings as settings_
from saltext.saltcellar.utils import spool as spool_
from saltext.saltcellar.utils import wire

log = logging.getLogger(__name__)

#: After a call that ran out of time: how long not to try again, in seconds. Doubles up to the second number
#: while it goes on, because a hung daemon costs a master worker the whole timeout each time.
BREAKER_S = (1.0, 8.0)
#: How long one call may spend on handing over what others spooled, in seconds.
HANDOVER_BUDGET_S = 0.2
#: The same for the master's maintenance process, which nobody waits for.
HANDOVER_BUDGET_IDLE_S = 2.0
#: After a handover that failed: how long not to try again, in seconds.
HANDOVER_PAUSE_S = 1.0
#: Records sent before waiting for their answers.
WINDOW_RECORDS = 64
#: The same in bytes, small enough that one window does not hold up the call that carries it.
WINDOW_BYTES = 256 * 1024
#: Clients that are kept, one for each configuration.
CLIENTS_MAX = 16
#: The same complaint is logged once in so many seconds.
COMPLAINT_INTERVAL_S = 60.0

#: Answers that will not change by asking again.
FINAL_CODES = frozenset({"refused", "bad_args", "too_large", "unknown_call"})
#: Calls of which the last one wins. They queue behind a spool that is not empty, so that an older one from the
#: spool does not undo a newer one.
LAST_WINS = frozenset({"update_endtime", "save_reg"})

_pool = threading.local()
_clients = {}
#: The opts asked for last, and their client.
_latest = [None, None]
_breakers = {}
_handover_not_before = {}
_complaints = {}


def _confirmed(opts):
    """
    Asks for returns that a ``returner`` call brought, and no others, where saltcellar is the job cache: there Salt makes that call for
    every return that it authenticated, and anybody who may fire events can put others on the bus.
    """
    caches = (opts.get("ext_job_cache"), opts.get("master_job_cache"))
    return {"confirmed": True} if settings_.NAME in caches else {}


class Away(Exception):
    """The daemon cannot do it now. Ask again later."""


class Unavailable(CommandExecutionError):
    """
    Raised to Salt where no answer is better than a wrong one.

    Not a ``KeyError`` or ``TypeError``: the master takes those for "no such returner".
    """


def of(opts, functions=None, ret=None):
    """The client that ``opts`` describe. Cheap: connections live in the process, not in the client."""
    said = None
    # Since 3008 a loader's options are a map of a kind that takes a microsecond a look, and stay the same one.
    if opts is _latest[0]:
        return _latest[1]
    try:
        said = settings_.said(opts)
        client = _clients.get(said) if said else None
        if client is None:
            client = Client(settings_.from_opts(opts, functions, ret))
    except Exception:  # pylint: disable=broad-except
        log.exception("saltcellar: the configuration is not usable, taking the defaults")
        return Client(settings_.Settings())
    if said and said not in _clients:
        # A process has one configuration, or a few; tests have more.
        if len(_clients) >= CLIENTS_MAX:
            _clients.clear()
        _clients[said] = client
    if said and type(opts) is not dict:
        _latest[:] = opts, client
    return client


class Client:
    """All that can be asked of the daemon, in Salt's words."""

    def __init__(self, settings):
        self.settings = settings
        self.spool = spool_.Spool(settings.spool_dir, settings.spool_bytes_max, settings.spool_age_max)

    # ---- jobs

    def prep_jid(self, opts, nocache=False, passed_jid=None):
        """A jid, whatever happens. One that was passed needs no round trip: Salt asks this for every return."""
        jid = str(passed_jid) if passed_jid else None
        try:
            fold.settle()
            if nocache:
                # Made here if need be: an entry in the spool must know its jid.
                jid = jid or self._new_jid(opts)
                self.write("prep_jid", {"nocache": True, "passed_jid": jid})
                return jid
            return jid or self._new_jid(opts)
        except Exception:  # pylint: disable=broad-except
            log.exception("saltcellar: cannot prepare a jid as asked")
            return jid or salt.utils.jid.gen_jid({})

    def _new_jid(self, opts):
        try:
            answer = self._ask(wire.Call("prep_jid", {"nocache": False, "passed_jid": None}))
            self.hand_over()
            if isinstance(answer, str) and answer:
                return jids.in_form_of(opts, answer)
            complain("prep_jid", "saltcellar: the daemon made no jid but %r", answer)
        except (Away, wire.Refusal) as exc:
            complain("prep_jid", "saltcellar: making a jid without the daemon: %s", exc)
        return jids.local_jid(opts, self.spool)

    def get_load(self, jid):
        """
        The load of a job, ``{}`` if there is no such job; raises :class:`Unavailable` if nobody knows.

        It has to be an exception. ``salt`` takes ``{}`` for "jid does not exist" and shows no results,
        whereas it warns about an exception and waits for the minions as usual (``get_iter_returns``,
        the same in 3006, 3007 and 3008). ``--static`` fails either way, but with an exception it says
        why; and a syndic that got ``{}`` would not ask again, and never forward that load.
        """
        fold.settle()
        try:
            load = self._ask(wire.Call("get_load", {"jid": str(jid)}))
        except (Away, wire.Refusal) as exc:
            load = self._spooled_load(jid)
            if not load:
                complain("get_load", "saltcellar: cannot look up the job %s: %s", jid, exc)
                raise Unavailable(f"saltcellar cannot look up the job {jid}: {exc}") from exc
            return load
        # The daemon may be back while the publish still waits in the spool.
        if not load and self.spool.pending():
            load = self._spooled_load(jid)
        self.hand_over()
        return load if isinstance(load, dict) else {}

    def _spooled_load(self, jid):
        """The publish load of ``jid`` as it lies in the spool, with ``Minions``, or ``{}``."""
        jid = str(jid)
        needle = jid.encode("utf-8", "saltcellar.surrogates")
        load, minions = {}, set()
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
            complain("spooled_load", "saltcellar: cannot read the spool: %s", exc)
        return dict(load, Minions=sorted(minions)) if load else {}

    def event_return(self, events):
        """
        Store events off the bus, as they are: the daemon counts those without tag or data (``event_return_malformed``).

        Salt's event process flushes its queue once more from within its handler for SIGTERM. If it was about to
        flush, or had just done so, the same events come a second time, and say that they do.
        """
        if not isinstance(events, (list, tuple)):
            events = [events]
        if not events:
            return
        again = getattr(_pool, "batch", None)
        if again is not None and again.is_of(events):
            self.write("event_return", {"at": again.at, "events": events, "replay": True})
            return
        _pool.batch = batch = _Batch(events)
        self.write("event_return", {"at": batch.at, "events": events})

    def get_jid(self, opts, jid):
        """What each minion returned for a job."""
        return self.read("get_jid", self._shaped(opts, {"jid": str(jid)}), {})

    def get_fun(self, opts, fun):
        """The last jid of a function by minion, or the last return."""
        return self.read("get_fun", self._shaped(opts, {"fun": fun}), {}, listing=True)

    def get_minions(self, opts):
        """Minions that returned something."""
        return self.read("get_minions", _confirmed(opts), [], listing=True)

    def _shaped(self, opts, args):
        args.update(_confirmed(opts))
        return {**args, "full": True} if self.settings.full_ret else args

    def save_load(self, opts, jid, load, minions):
        """Keep the load of a job, and whom it went to. Salt calls this for each return as well, see ``fold.py``."""
        args = {"at": time.time_ns() // 1000, "jid": str(jid), "load": load, "minions": _names(minions)}
        if minions is None and fold.returner_follows(opts, args["jid"], load):
            if fold.take("save_load", load) is None:
                fold.settle()
            fold.hold(self, "save_load", args, load)
            return
        self.write("save_load", args)

    def returner(self, opts, load):
        """Keep a minion's return."""
        args = {"at": time.time_ns() // 1000, "load": load}
        # The same map was to be the load: it says so again now.
        fold.take("save_load", load)
        if isinstance(load, dict) and fold.endtime_follows(opts):
            fold.settle()
            fold.hold(self, "returner", args, load)
            return
        self.write("returner", args)

    def update_endtime(self, jid, endtime):
        """Keep when a job ended, together with the return that is the occasion, if it was held back for this."""
        args = {"jid": str(jid), "endtime": str(endtime)}
        held = fold.take("returner", jid=args["jid"])
        kept = self._write_both(held.args, args["endtime"]) if held else None
        if held and not kept:
            self.write("returner", held.args)
        if kept != "both":
            self.write("update_endtime", args)

    def _write_both(self, args, endtime):
        """A return and its end time in one message. What of it is stored: ``both``, the ``return``, or nothing yet."""
        # An end time does not overtake others that wait in the spool, see LAST_WINS.
        if self.spool.pending():
            return None
        try:
            answer = self._ask(wire.Call("returner", {**args, "endtime": endtime}), writes=True)
        except (Away, wire.Refusal):
            # Again by itself: each has a record of its own in the spool, or is refused by itself.
            args["replay"] = True
            return None
        except Exception:  # pylint: disable=broad-except
            log.debug("saltcellar: a return and its end time go in two messages", exc_info=True)
            return None
        self.hand_over()
        # An older daemon does not see the end time, and says nothing.
        return "both" if answer is True else "return"

    def save_minions(self, jid, minions, syndic_id):
        """Add to the minions a job went to."""
        syndic_id = None if syndic_id is None else str(syndic_id)
        self.write("save_minions", {"jid": str(jid), "minions": _names(minions) or [], "syndic_id": syndic_id})

    # ---- the two ways to ask

    def write(self, call, args):
        """Have something stored: by the daemon, or in the spool. Never raises."""
        fold.settle()
        # First, so that whoever looks into the spool need not read further.
        args = {"at": time.time_ns() // 1000, **args}
        try:
            packed = wire.Call(call, args)
            if call in LAST_WINS and self.spool.pending():
                self._keep(call, args, packed, None)
                self.hand_over()
                return
            try:
                self._ask(packed, writes=True)
            except Away as exc:
                self._keep(call, args, packed, exc)
                return
            except wire.Refusal as exc:
                halves = _halves(args) if exc.code == "too_large" else ()
                for half in halves:
                    self.write(call, half)
                if not halves and not self._write_readable(call, args, packed, exc):
                    self._set_down(call, args, packed, exc)
                return
            except Exception as exc:  # pylint: disable=broad-except
                log.exception("saltcellar: cannot ask for %s", call)
                self._keep(call, args, packed, exc)
                return
            self.hand_over()
        except Exception:  # pylint: disable=broad-except
            log.exception("saltcellar: %s for job %s was NOT stored", call, args.get("jid"))
            self.spool.count("failed", spool_.entries(call, args))

    def _write_readable(self, call, args, packed, refusal):
        """Whether a call that was refused for its map keys is stored with keys as text."""
        readable = packed.readable(call, args) if refusal.code == "refused" else None
        if readable is None:
            return False
        try:
            self._ask(readable, writes=True)
        except Away as exc:
            self._keep(call, args, readable, exc)
        except wire.Refusal:
            return False
        return True

    def read(self, call, args, otherwise, listing=False):
        """Ask for something; ``otherwise`` is what it is when the daemon cannot say. Never raises."""
        fold.settle()
        try:
            answer = self._ask(wire.Call(call, args), self.settings.listing_timeout if listing else None)
            self.hand_over()
            return answer
        except (Away, wire.Refusal) as exc:
            complain(call, "saltcellar: no answer to %s: %s", call, exc)
        except Exception:  # pylint: disable=broad-except
            log.exception("saltcellar: %s failed", call)
        return otherwise

    def tidy(self, opts):
        """Salt's maintenance calls once in a while: pass on how long to keep jobs, and empty the spool."""
        try:
            # Salt's own reading of its two options: 3006 and 3007 still honour ``keep_jobs``, 3008 does not.
            keep_jobs_seconds = int(salt.utils.job.get_keep_jobs_seconds(opts))
            if keep_jobs_seconds < 0:
                raise ValueError(f"{keep_jobs_seconds} is negative")
        except Exception as exc:  # pylint: disable=broad-except
            complain("keep_jobs", "saltcellar: keep_jobs_seconds is not usable, leaving it to the daemon: %s", exc)
            keep_jobs_seconds = None
        self.read("clean_old_jobs", {"keep_jobs_seconds": keep_jobs_seconds}, None)
        self.hand_over(HANDOVER_BUDGET_IDLE_S)
        self.spool.write_counts()
        if self.spool.pending():
            self.spool.expire()

    # ---- when the daemon does not take it

    def _keep(self, call, args, packed, why):
        try:
            # Whether the daemon stored it before it went silent, nobody knows: the record says that it is a replay.
            self.spool.append_packed(packed.record())
        except spool_.SpoolError as exc:
            halves = _halves(args) if exc.reason == "too_large" else ()
            for half in halves:
                self._keep(call, half, wire.Call(call, half), why)
            if halves:
                return
            self.spool.count(exc.reason, spool_.entries(call, args))
            log.error("saltcellar: %s for job %s is LOST: %s (%s)", call, _jid_of(args), exc, why or "spool in use")
        else:
            if getattr(why, "code", None) == "version":
                complain("version", "saltcellar: %s: update the older of the two; spooling to %s", why, self.spool.path)
            elif why is not None:
                complain("away", "saltcellar: the daemon is away, spooling to %s: %s", self.spool.path, why)

    def _set_down(self, call, args, packed, refusal):
        if refusal.code in FINAL_CODES:
            self.spool.count(refusal.code, spool_.entries(call, args))
            complain(
                f"refusal {refusal.code}",
                "saltcellar: %s for job %s was not stored: %s",
                call,
                _jid_of(args),
                refusal,
            )
        else:
            # Two that do not speak the same language, or a code from the future: one side will be updated.
            self._keep(call, args, packed, refusal)

    # ---- one call

    def _ask(self, call, timeout=None, writes=False):
        """
        The daemon's answer. Raises :class:`Away`, or :class:`wire.Refusal` for what asking again will not change.

        A connection that was open before may have died since, with the daemon: that one failure is
        answered by one new connection.
        """
        path = self.settings.address
        now = time.monotonic()
        if now < _breakers.get(path, (0, 0))[0]:
            raise Away(f"{path} did not answer a moment ago")
        deadline = now + (timeout or self.settings.timeout)
        try:
            while True:
                pooled = _take(path)
                # Not reaching the daemon at all shows sooner than it being slow with a long list.
                connection = pooled or _connect(self.settings, min(deadline, now + self.settings.timeout))
                try:
                    answer = connection.ask(call, deadline)
                except wire.Refusal:
                    if connection.usable:
                        _put(path, connection)
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
                    # An answer may still come; also when a signal handler left by raising.
                    connection.close()
                    raise
                _put(path, connection)
                _breakers.pop(path, None)
                return answer
        except wire.Broken as exc:
            raise Away(f"{path}: {exc}") from exc
        except wire.TimedOut as exc:
            _trip(path)
            if isinstance(exc, peer.Untrusted):
                complain("untrusted", "saltcellar: %s: %s", path, exc)
            raise Away(f"{path}: {exc}") from exc
        except wire.Refusal as exc:
            if exc.code in ("unavailable", "internal"):
                raise Away(f"{path}: {exc}") from exc
            raise

    # ---- handing over

    def hand_over(self, budget=HANDOVER_BUDGET_S):
        """Send spooled entries for at most about ``budget`` seconds, unless another process is at it. Never raises."""
        if not self.spool.pending():
            return
        path = self.settings.address
        now = time.monotonic()
        if now < _handover_not_before.get(self.spool.path, 0) or now < _breakers.get(path, (0, 0))[0]:
            return
        connection = None
        try:
            with self.spool.turn() as mine:
                if not mine:
                    return
                connection = _take(path) or _connect(self.settings, now + self.settings.timeout)
                if self._hand_over(connection, now + budget):
                    _put(path, connection)
                    connection = None
                    return
        except wire.TimedOut as exc:
            _trip(path)
            log.debug("saltcellar: handing over stopped: %s", exc)
        except (wire.Broken, wire.Refusal, OSError) as exc:
            log.debug("saltcellar: handing over stopped: %s", exc)
        except Exception:  # pylint: disable=broad-except
            log.exception("saltcellar: handing over failed")
        finally:
            if connection is not None:
                connection.close()
        _handover_not_before[self.spool.path] = time.monotonic() + HANDOVER_PAUSE_S

    def _hand_over(self, connection, until):
        """Window by window. True if all went well, false if the daemon could not take a record now."""
        while time.monotonic() < until:
            records, tries = self.spool.first(WINDOW_RECORDS, WINDOW_BYTES)
            if not records:
                return True
            if tries >= spool_.TRIES_MAX:
                self._give_up(records[0])
                continue
            if not self._hand_over_window(connection, records):
                return False
        return True

    def _hand_over_window(self, connection, records):
        deadline = time.monotonic() + self.settings.timeout
        ids, answers = [], {}
        try:
            ids = connection.send([record.request for record in records], deadline)
            while len(answers) < len(ids):
                number, value = connection.receive(deadline)
                answers[number] = value
        except (wire.Broken, wire.Refusal):
            # It hung up on us. If on account of the first record, that will show by its being alone next time.
            if not self._settle(records, [answers.get(number, _NONE) for number in ids]):
                self.spool.note_try()
            raise
        done = self._settle(records, [answers.get(number, _NONE) for number in ids])
        if done == len(records):
            return True
        if getattr(answers.get(ids[done]), "code", None) != "unavailable":
            self.spool.note_try()
        return False

    def _settle(self, records, answers):
        """Move past the records answered for good, from the front. How many those were."""
        done = 0
        for record, answer in zip(records, answers):
            if isinstance(answer, wire.Refusal):
                if answer.code not in FINAL_CODES:
                    break
                if not self._split(record, answer):
                    self._refused(record, answer)
            elif answer is _NONE:
                break
            done += 1
        if done:
            self.spool.advance(records[done - 1].end)
        return done

    def _split(self, record, refusal):
        """
        Hand a list of events over in parts: one event in it is too large, and the others are not to go with it.

        True if each part is stored, in the spool, or counted; false if it is no list, or a list of one.
        """
        try:
            call, args = record.call()
        except ValueError:
            return False
        halves = _halves(args) if refusal.code == "too_large" else ()
        if not halves and self._write_readable(call, args, wire.Call(call, args), refusal):
            return True
        for half in halves:
            packed = wire.Call(call, half).repeated()
            try:
                self._ask(packed, writes=True)
            except Away as exc:
                self._keep(call, half, packed, exc)
            except wire.Refusal as exc:
                part = spool_.Record(None, packed.record())
                if exc.code not in FINAL_CODES:
                    self._keep(call, half, packed, exc)
                elif not self._split(part, exc):
                    self._refused(part, exc)
        return bool(halves)

    def _refused(self, record, refusal):
        """The daemon will never take this: count it, and keep what is too large for a person to look at."""
        self.spool.count(refusal.code, _entries_of(record))
        complain(f"refusal {refusal.code}", "saltcellar: a spooled entry was not stored: %s", refusal)
        if refusal.code == "too_large":
            self.spool.set_aside(record)

    def _give_up(self, record):
        log.error("saltcellar: the daemon keeps failing on a spooled entry, moved to %s.aside", self.spool.path)
        self.spool.set_aside(record)
        self.spool.count("set_aside", _entries_of(record))
        self.spool.advance(record.end)


_NONE = object()


def _entries_of(record):
    try:
        return spool_.entries(*record.call())
    except ValueError:
        return 1


def complain(about, message, *args):
    """Log an error, but the same one only once in a while: a master makes hundreds of calls a second."""
    now = time.monotonic()
    if now >= _complaints.get(about, 0):
        _complaints[about] = now + COMPLAINT_INTERVAL_S
        log.error(message, *args)
    else:
        log.debug(message, *args)


def _names(minions):
    """Minion ids as a list; ``None`` stays what it is, for "not said"."""
    if minions is None:
        return None
    try:
        return [str(minion) for minion in ([minions] if isinstance(minions, (str, bytes)) else minions)]
    except TypeError:
        log.error("saltcellar: %.200r is no list of minions", minions)
        return []


class _Batch:
    """The events of one call, as long as they are the latest: to know them again by who they are, not by what they say."""

    def __init__(self, events):
        self._events = events
        self._ends = len(events), events[0], events[-1]
        self.at = time.time_ns() // 1000

    def is_of(self, events):
        """Whether these are the same maps in the same list."""
        count, first, last = self._ends
        return events is self._events and len(events) == count and events[0] is first and events[-1] is last


def _halves(args):
    """The same for half of the events each, or nothing where there is only one, or none."""
    events = args.get("events", ())
    half = len(events) // 2
    if not half:
        return []
    first, second = dict(args, events=events[:half]), dict(args, events=events[half:])
    # The events of a list that is handed over count from its time on, a microsecond each.
    if isinstance(args.get("at"), int):
        second["at"] = args["at"] + half
    return [first, second]


def _jid_of(args):
    load = args.get("load")
    return args.get("jid") or (load.get("jid") if isinstance(load, dict) else None)


# ---- connections


def _connect(settings, deadline):
    """A new connection to the daemon, wherever it is."""
    if settings.url:
        # Only here: a master needs neither TLS nor HTTP for this.
        from saltext.saltcellar.utils import https

        return https.Connection(settings, deadline)
    return peer.Connection(settings, deadline)


def _take(path):
    """
    This thread's open connection, taken out of the pool for the length of a call.

    Out, so that a signal handler that calls us in the middle of a call finds none and opens another.
    """
    held = getattr(_pool, "held", {}).pop(path, None)
    if held is None:
        return None
    pid, connection = held
    if pid != os.getpid():
        # The parent's. Nothing is sent over it and nothing shut down: just let go.
        connection.close()
        return None
    return connection


def _put(path, connection):
    if not hasattr(_pool, "held"):
        _pool.held = {}
    old = _pool.held.get(path)
    if old is not None:
        old[1].close()
    _pool.held[path] = (os.getpid(), connection)


def _trip(path):
    first, most = BREAKER_S
    pause = min(max(first, _breakers.get(path, (0, 0))[1] * 2), most)
    _breakers[path] = (time.monotonic() + pause, pause)


def forget():
    """Close this thread's connections and forget past failures. For tests."""
    for _, connection in getattr(_pool, "held", {}).values():
        connection.close()
    _pool.held = {}
    _pool.batch = None
    fold.forget()
    _clients.clear()
    _latest[:] = None, None
    for memory in (_breakers, _handover_not_before, _complaints):
        memory.clear()
