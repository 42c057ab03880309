"""
Hand the reactor over to saltcellar, and watch over it.

.. versionadded:: 0.1.0

:depends: the saltcellar daemon with ``reactor.master``, running on the same host

In the master's configuration:

.. code-block:: yaml

    engines:
      - saltcellar_reactor

The item must be this text, not a map with options: Salt searches the list for text that contains
``reactor``, and adds its own reactor otherwise. Rules stay in ``reactor``. If the list that Salt
runs has its own reactor all the same, this engine logs that as critical and reports it, and the
daemon makes no calls.

The engine reports to the daemon every three seconds. It logs which reactor acts, and fires these
events:

``saltcellar/reactor/unreachable``
    The daemon has not answered for 15 seconds. ``error`` is the reason, ``fallback`` whether Salt's
    own reactor is started.
``saltcellar/reactor/reachable``
    It answers again.

Salt's reactor can act while the daemon does not answer:

.. code-block:: yaml

    # Start Salt's reactor 20 seconds after the daemon's last response, and end it when the daemon answers again.
    saltcellar.reactor_fallback: True

At no time do both act: with this setting the daemon acts only under a lease of 15 seconds that this
engine renews, and after its own start waits for this engine. The fallback starts only if the daemon
has granted a lease before.
"""

import json
import logging
import multiprocessing
import os
import threading
import time

import salt.utils.event
import salt.utils.process
import salt.utils.reactor
from salt.exceptions import CommandExecutionError

from saltext.saltcellar.utils import calls
from saltext.saltcellar.utils import settings as settings_
from saltext.saltcellar.utils import wire

try:
    import fcntl
except ImportError:
    fcntl = None

log = logging.getLogger(__name__)

__virtualname__ = "saltcellar_reactor"

#: Interval of reports to the daemon, in seconds.
REPORT_INTERVAL_S = 3.0
#: The daemon's lease, in seconds, until a response contains the real one.
LEASE_S = 15.0
#: Time between the end of the lease and the start of the fallback, in seconds.
MARGIN_S = 5.0
#: Time for the fallback to end, in seconds, before it is killed.
STOP_S = 5.0

TAG = "saltcellar/reactor/"


def __virtual__():
    why = settings_.unsupported(__opts__)
    if why:
        return False, why
    if __opts__.get("__role") != "master":
        return False, "the reactor of a minion is configured with reactor.minion of the daemon"
    return __virtualname__


def start():
    """
    Report to the daemon until the master ends.
    """
    opts = dict(__opts__)
    settings = settings_.from_opts(opts)
    fallback = Fallback(opts, settings.spool_dir)
    engine = Engine(
        settings, fallback, lambda tag, data: _fire(opts, tag, data), has_salts_reactor(opts)
    )
    while True:
        engine.step(time.monotonic())
        time.sleep(REPORT_INTERVAL_S)


def has_salts_reactor(opts):
    """
    Whether the master also runs Salt's reactor engine.

    ``engines`` is the list that Salt starts: if ``reactor`` has rules, the master adds its engine
    before, unless it takes an item for one (``Master.start`` in ``salt/master.py``).
    """
    engines = opts.get("engines") or ()
    names = [name for item in engines for name in ([item] if isinstance(item, str) else item)]
    return "reactor" in names


def _fire(opts, tag, data):
    with salt.utils.event.get_master_event(opts, opts["sock_dir"], listen=False) as bus:
        bus.fire_event(data, tag)


class Engine:
    """
    Reports to the daemon, and starts and ends the fallback.

    Invariant: the fallback runs only after ``granted_at + lease_s``, when the lease of the daemon
    has certainly ended, because it counts from the issue of the token that was received at
    ``granted_at``.
    """

    def __init__(self, settings, fallback, fire, salts_reactor=False):
        self.enabled = settings.reactor_fallback
        self.fallback = fallback
        # A daemon that hangs must not delay the next report.
        self._link = calls.Link(settings.with_short_listings())
        self._fire = fire
        self._token = None
        self._lease_s = LEASE_S
        # A token of an engine before this one was received before this moment.
        self._granted_at = time.monotonic()
        self._unreachable = False
        self._shown = None
        self._salts_reactor = salts_reactor
        if salts_reactor:
            log.critical(
                "saltcellar reactor: this master runs Salt's reactor as well, so saltcellar makes no calls. Remove "
                "`reactor` from `engines`, and write saltcellar_reactor there as text, not as a map"
            )

    def step(self, now):
        """
        One report and its consequences.

        Never raises ``OSError``: Salt would restart the engine, and no reactor would act.
        """
        try:
            self._step(now)
        except OSError as exc:
            if self._show(
                logging.ERROR,
                "no reactor acts, because the daemon does not respond and the state of the fallback cannot be stored: "
                "free space, correct the owner of its directory, or see `saltcellar doctor` for the daemon: %s",
                exc,
            ):
                self._announce("unreachable", {"error": str(exc), "fallback": False})

    def _step(self, now):
        if not self.enabled:
            self.fallback.forget()
        try:
            answer = self._report()
        except CommandExecutionError as exc:
            self._link.close()
            self._no_answer(str(exc), now)
            return
        if isinstance(answer, wire.Refusal):
            # The daemon runs, and may act without a lease, if it is older than this engine. So
            # there is no fallback.
            self._show(
                logging.ERROR,
                "the daemon rejects the reports of this engine, so there is no fallback: upgrade the older of "
                "the two: %s (%s)",
                answer.message,
                answer.code,
            )
            return
        if self._unreachable:
            self._unreachable = False
            self._announce("reachable", {})
        blocked = answer.get("blocked")
        if blocked:
            self._show(
                logging.WARNING, "saltcellar %s does not act: %s", answer["version"], blocked
            )
        else:
            self._show(logging.INFO, "saltcellar %s acts", answer["version"])

    def _report(self):
        """The daemon's response to the latest report. It ends a fallback, and reports that."""
        # At most three: without a token, with one, and after the end of the fallback.
        for _ in range(3):
            acts = self.fallback.runs()
            about = {
                "token": self._token,
                "fallback": self.enabled,
                "acts": acts,
                **self.fallback.interval(),
            }
            about["salts_reactor"] = self._salts_reactor
            about = {key: value for key, value in about.items() if value is not None}
            (answer,) = self._link.ask_all([("reactor_lease", about)])
            if isinstance(answer, wire.Refusal):
                return answer
            had_token, self._token = self._token, answer["token"]
            self._granted_at, self._lease_s = time.monotonic(), answer["lease_ms"] / 1000
            if self.enabled:
                self.fallback.granted()
            if acts:
                log.warning("saltcellar: the daemon responds again, ending Salt's reactor")
                self.fallback.stop()
            elif had_token is not None:
                break
        return answer

    def _no_answer(self, why, now):
        waited = now - self._granted_at
        if waited >= self._lease_s and not self._unreachable:
            self._unreachable = True
            self._announce("unreachable", {"error": why, "fallback": self.enabled})
        if self.fallback.runs():
            self._show(logging.WARNING, "Salt's reactor acts, as the fallback")
        elif not self.enabled:
            self._show(
                logging.ERROR,
                "no reactor acts, unless the daemon runs and only this engine cannot reach it: %s",
                why,
            )
        elif not self.fallback.is_granted():
            self._show(
                logging.ERROR,
                "no reactor acts: the daemon has never granted a lease, so there is no fallback: %s",
                why,
            )
        elif waited < self._lease_s + MARGIN_S:
            self._show(
                logging.WARNING,
                "no response, Salt's reactor may act in %.0f s: %s",
                self._lease_s + MARGIN_S,
                why,
            )
        else:
            self.fallback.start()
            self._show(logging.WARNING, "Salt's reactor acts, as the fallback")

    def _announce(self, what, data):
        try:
            self._fire(TAG + what, data)
        except Exception as exc:  # pylint: disable=broad-except
            log.error(
                "saltcellar: cannot fire %s%s, so nothing that waits for this event acts: if it repeats, restart "
                "salt-master: %s",
                TAG,
                what,
                exc,
            )

    def _show(self, level, state, *about):
        """Log a state when it changes, whatever it is about. Returns whether it did."""
        if state == self._shown:
            return False
        self._shown = state
        log.log(level, "saltcellar reactor: " + state, *about)
        return True


class Fallback:
    """
    Salt's reactor in a process of its own, and what must survive this engine.

    The process holds a lock on ``reactor.lock`` while it runs, so that a new engine knows of one
    that an engine before it started. It ends with its engine, also if that is killed.
    ``reactor.json`` has the latest interval of a fallback, and whether a lease was ever granted.
    """

    def __init__(self, opts, directory):
        self._opts = opts
        self._directory = directory
        self._lock = os.path.join(directory, "reactor.lock")
        self._file = os.path.join(directory, "reactor.json")
        self._process = None
        self._alive = None
        self._state = self._read()

    def interval(self):
        """``began`` and ``ended`` of the latest fallback, in microseconds since 1970."""
        return {key: self._state[key] for key in ("began", "ended") if key in self._state}

    def granted(self):
        """The daemon has granted a lease."""
        if not self.is_granted():
            self._note(granted=True)

    def is_granted(self):
        """Whether the daemon has ever granted a lease."""
        return self._state.get("granted") is True

    def forget(self):
        """The fallback is not enabled: a later one needs a new lease."""
        if self.is_granted():
            self._note(granted=None)

    def runs(self):
        """Whether Salt's reactor runs, started by this or an earlier engine."""
        if self._process is not None:
            if self._process.is_alive():
                return True
            log.error(
                "saltcellar: the fallback, Salt's reactor, ended with exit code %s; it is restarted if the daemon is "
                "still unreachable: see the messages before this one, or `dmesg` if it was killed (-9)",
                self._process.exitcode,
            )
            self._ended()
        try:
            fd = os.open(self._lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            # A fallback creates it before it acts.
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        if "began" in self._state and "ended" not in self._state:
            # An earlier engine was killed, and its fallback has ended with it.
            self._note(ended=time.time_ns() // 1000)
        return False

    def start(self):
        """Start Salt's reactor. Raises ``OSError`` if its beginning cannot be stored; then it has not started."""
        # Stored before it can act: events of this time are Salt's.
        self._write(began=time.time_ns() // 1000, ended=None)
        reads, self._alive = multiprocessing.Pipe(duplex=False)
        self._process = salt.utils.process.SignalHandlingProcess(
            target=_react,
            args=(self._opts, self._lock, reads, self._alive),
            name="SaltcellarFallbackReactor",
        )
        self._process.start()
        reads.close()

    def stop(self):
        """End Salt's reactor. One of an earlier engine ends without this."""
        if self._process is None:
            return
        self._process.terminate()
        self._process.join(STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._ended()

    def _ended(self):
        self._process = None
        self._alive.close()
        self._alive = None
        self._note(ended=time.time_ns() // 1000)

    def _read(self):
        try:
            with open(self._file, encoding="utf-8") as file:
                found = json.load(file)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as exc:
            log.error(
                "saltcellar: cannot read %s, a fallback needs a new lease of the daemon: correct the owner of the file "
                "(a damaged one is replaced with that lease): %s",
                self._file,
                exc,
            )
            return {}
        return found if isinstance(found, dict) else {}

    def _note(self, **values):
        """Store what this engine may also go by from memory, if the disk is full: the next engine then knows less."""
        try:
            self._write(**values)
        except OSError as exc:
            self._state = _merged(self._state, values)
            log.error(
                "saltcellar reactor: cannot write %s, after a restart of the master the state of the fallback is "
                "unknown: free space, or correct the owner of its directory: %s",
                self._file,
                exc,
            )

    def _write(self, **values):
        """Store values, ``None`` to remove one, durably. Raises ``OSError``, and then nothing has changed."""
        state = _merged(self._state, values)
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        scratch = f"{self._file}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(scratch, flags, 0o600), "w", encoding="utf-8") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, self._file)
        self._state = state


def _merged(state, values):
    return {key: value for key, value in {**state, **values}.items() if value is not None}


def _react(opts, lock, engine_alive, engines_end):
    """Salt's reactor, until the engine ends."""
    # The engine's end of the pipe: otherwise this process would keep it open.
    engines_end.close()
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.error("saltcellar: another fallback already runs, this one ends")
        return
    threading.Thread(target=_end_with, args=(engine_alive,), daemon=True).start()
    salt.utils.reactor.Reactor(opts).run()


def _end_with(engine_alive):
    """End this process when the engine ends, by any cause."""
    try:
        engine_alive.recv_bytes()
    except (EOFError, OSError):
        pass
    os._exit(0)
