"""The engine that hands the reactor over: reports, tokens, and when the fallback may run."""

import logging
import multiprocessing
import os
import signal
import time

import pytest

from saltext.saltcellar.engines import saltcellar_reactor as engine_
from saltext.saltcellar.utils import settings as settings_
from tests.support.helpers import Refuse


class NoFallback:
    """Counts instead of starting a process."""

    def __init__(self, granted=False):
        self.started, self.acting, self.grant = 0, False, granted

    def runs(self):
        return self.acting

    def start(self):
        self.started, self.acting = self.started + 1, True

    def stop(self):
        self.acting = False

    def interval(self):
        return (
            {"began": 1, "ended": 2}
            if self.started and not self.acting
            else {"began": 1}
            if self.acting
            else {}
        )

    def granted(self):
        self.grant = True

    def is_granted(self):
        return self.grant

    def forget(self):
        self.grant = False


@pytest.fixture
def make(opts, daemon):
    fired = []

    def build(fallback=True, blocked=None, **more):
        settings = settings_.from_opts(
            {**opts, "saltcellar.reactor_fallback": fallback, "saltcellar.timeout": 1}
        )
        one = engine_.Engine(
            settings,
            more.pop("process", None) or NoFallback(),
            lambda tag, data: fired.append((tag, data)),
        )
        one.fired = fired
        tokens = iter(range(100))
        daemon.answers["reactor_lease"] = lambda _: {
            "token": f"t{next(tokens)}",
            "lease_ms": 15000,
            "blocked": blocked,
            "version": "0",
        }
        return one

    return build


def after(engine, seconds):
    """A time so many seconds after the latest token."""
    return engine._granted_at + seconds


def test_each_report_has_the_token_of_the_answer_before(make, daemon, caplog):
    caplog.set_level(logging.INFO)
    engine = make()
    engine.step(time.monotonic())
    engine.step(time.monotonic())
    assert daemon.named("reactor_lease") == [
        {"fallback": True, "acts": False, "salts_reactor": False},
        {"token": "t0", "fallback": True, "acts": False, "salts_reactor": False},
        {"token": "t1", "fallback": True, "acts": False, "salts_reactor": False},
    ]
    assert [record.message for record in caplog.records if "acts" in record.message] == [
        "saltcellar reactor: saltcellar 0 acts"
    ]
    assert engine.fallback.grant


def test_the_fallback_starts_after_the_lease_and_a_margin_and_ends_with_the_next_answer(
    make, daemon, caplog
):
    engine = make()
    engine.step(time.monotonic())
    daemon.stop()
    engine.step(after(engine, 14.9))
    assert (engine.fired, engine.fallback.started) == ([], 0)
    engine.step(after(engine, 15))
    ((tag, data),) = engine.fired
    assert (
        tag == "saltcellar/reactor/unreachable"
        and data["fallback"] is True
        and "no response" in data["error"]
    )
    engine.step(after(engine, 19.9))
    assert engine.fallback.started == 0
    engine.step(after(engine, 20))
    engine.step(after(engine, 30))
    assert (engine.fallback.started, engine.fallback.acting, len(engine.fired)) == (1, True, 1)
    assert "Salt's reactor acts, as the fallback" in caplog.text
    daemon.start()
    before = len(daemon.named("reactor_lease"))
    engine.step(after(engine, 40))
    acting, ended = daemon.named("reactor_lease")[before:]
    # It ends before the report of its end, and in the same step.
    assert (acting["acts"], acting["began"], ended["acts"], ended["ended"]) == (True, 1, False, 2)
    assert engine.fired[1:] == [("saltcellar/reactor/reachable", {})]
    assert not engine.fallback.acting


def test_without_a_lease_there_is_no_fallback(make, daemon, caplog):
    engine = make()
    daemon.stop()
    engine.step(after(engine, 100))
    assert engine.fallback.started == 0
    assert "no reactor acts: the daemon has never granted a lease" in caplog.text
    # An engine before this one had one.
    engine = make(process=NoFallback(granted=True))
    engine.step(after(engine, 100))
    assert engine.fallback.started == 1


def test_a_fallback_that_is_not_enabled_never_starts(make, daemon, caplog):
    engine = make(fallback=False, process=NoFallback(granted=True))
    engine.step(time.monotonic())
    assert not engine.fallback.grant
    daemon.stop()
    engine.step(after(engine, 100))
    assert (engine.fallback.started, engine.fired[0][1]["fallback"]) == (0, False)
    assert "no reactor acts" in caplog.text


def test_a_refusal_is_logged_and_is_no_reason_for_the_fallback(make, daemon, caplog):
    engine = make(process=NoFallback(granted=True))

    def refuse(_):
        raise Refuse("unknown_call", "no such call")

    daemon.answers["reactor_lease"] = refuse
    engine.step(after(engine, 100))
    engine.step(after(engine, 200))
    assert engine.fallback.started == 0
    assert caplog.text.count("upgrade the older of the two: no such call (unknown_call)") == 1


def test_a_reactor_that_does_not_act_is_logged_with_the_reason(make, caplog):
    make(blocked="shadow mode").step(time.monotonic())
    assert "saltcellar 0 does not act: shadow mode" in caplog.text


def test_an_event_that_cannot_be_fired_does_not_stop_the_engine(make, daemon, caplog):
    engine = make()

    def broken(*_):
        raise OSError("no bus")

    engine._fire = broken
    daemon.stop()
    engine.step(after(engine, 15))
    assert "cannot fire saltcellar/reactor/unreachable, so nothing that waits" in caplog.text
    assert "restart salt-master: no bus" in caplog.text


# ---- the process


class Endless:
    """Instead of Salt's reactor."""

    def __init__(self, opts):
        self.started = opts["started"]

    def run(self):
        self.started.set()
        time.sleep(60)


@pytest.fixture
def process(run_dir, monkeypatch):
    monkeypatch.setattr(engine_.salt.utils.reactor, "Reactor", Endless)
    started = multiprocessing.Event()
    return engine_.Fallback({"started": started}, str(run_dir / "spool")), started


def test_the_fallback_holds_its_lock_and_records_its_interval(process, run_dir):
    fallback, started = process
    other = engine_.Fallback({}, str(run_dir / "spool"))
    assert not fallback.runs() and fallback.interval() == {}
    before = time.time_ns() // 1000
    fallback.start()
    assert started.wait(30)
    assert fallback.runs() and other.runs()
    assert before <= fallback.interval()["began"] and "ended" not in fallback.interval()
    fallback.stop()
    assert not fallback.runs() and not other.runs()
    assert engine_.Fallback({}, str(run_dir / "spool")).interval() == fallback.interval()
    assert fallback.interval()["ended"] >= fallback.interval()["began"]


def test_the_fallback_ends_when_its_engine_is_killed(process, run_dir, in_child):
    fallback, started = process

    def engine():
        fallback.start()
        time.sleep(60)

    pid = in_child(engine, wait=False)
    assert started.wait(30)
    assert fallback.runs(), "the lock is held by the child of the child"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    until = time.monotonic() + 30
    while fallback.runs():
        assert time.monotonic() < until, "the fallback outlived its engine"
        time.sleep(0.01)
    later = engine_.Fallback({}, str(run_dir / "spool"))
    later.runs()
    assert later.interval()["ended"] >= later.interval()["began"]


def test_a_fallback_that_ended_on_its_own_may_start_again(process, caplog):
    fallback, started = process
    fallback.start()
    assert started.wait(30)
    fallback._process.kill()
    fallback._process.join()
    assert not fallback.runs()
    assert "Salt's reactor, ended with exit code -9" in caplog.text
    fallback.start()
    assert fallback.runs()
    fallback.stop()


def test_a_damaged_state_file_needs_a_new_lease(run_dir, caplog):
    directory = run_dir / "spool"
    fallback = engine_.Fallback({}, str(directory))
    fallback.granted()
    assert engine_.Fallback({}, str(directory)).is_granted()
    (directory / "reactor.json").write_text("{")
    assert not engine_.Fallback({}, str(directory)).is_granted()
    assert "a fallback needs a new lease" in caplog.text


def test_a_full_disk_is_shown_and_reported_once_and_does_not_end_the_engine(
    make, daemon, caplog, opts, run_dir, monkeypatch
):
    """Salt would start an engine that raises anew, which would wait for the lease again, for ever."""
    engine = make(process=engine_.Fallback(opts, str(run_dir / "cache" / "saltcellar")))
    engine.step(time.monotonic())
    daemon.stop()
    real = os.replace

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(engine_.os, "replace", full)
    for waited in (16, 21, 24, 27):
        engine.step(after(engine, waited))
    assert caplog.text.count("the state of the fallback cannot be stored") == 1
    assert [data["fallback"] for tag, data in engine.fired if tag.endswith("unreachable")] == [
        True,
        False,
    ]
    assert not engine.fallback.runs()
    monkeypatch.setattr(engine_.os, "replace", real)
    daemon.start()
    engine.step(after(engine, 30))
    assert engine.fired[-1] == ("saltcellar/reactor/reachable", {})


def test_a_full_disk_does_not_keep_the_engine_from_renewing_the_lease(
    make, daemon, opts, run_dir, monkeypatch
):
    engine = make(process=engine_.Fallback(opts, str(run_dir / "cache" / "saltcellar")))

    def full(*_args, **_more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(engine_.os, "makedirs", full)
    engine.step(time.monotonic())
    engine.step(time.monotonic())
    assert [report.get("token") for report in daemon.named("reactor_lease")] == [None, "t0", "t1"]
    assert engine.fallback.is_granted()


@pytest.mark.parametrize(
    "engines, both",
    [
        (["saltcellar_reactor"], False),
        (["saltcellar_reactor", {"reactor": {}}], True),
        ([{"saltcellar_reactor": {}}, {"reactor": {}}], True),
        (["reactor", "saltcellar_reactor"], True),
        ({"saltcellar_reactor": {}, "reactor": {}}, True),
        ({"saltcellar_reactor": {}}, False),
        ([], False),
        (None, False),
    ],
)
def test_salts_own_reactor_is_found_in_the_engines_that_run(engines, both):
    assert engine_.has_salts_reactor({"engines": engines}) is both


def test_salts_own_reactor_is_logged_and_reported_with_the_lease(opts, daemon, caplog):
    daemon.answers["reactor_lease"] = {
        "token": "t",
        "lease_ms": 15000,
        "blocked": None,
        "version": "0",
    }
    engine = engine_.Engine(
        settings_.from_opts(opts), NoFallback(), lambda *_: None, salts_reactor=True
    )
    engine.step(time.monotonic())
    assert daemon.named("reactor_lease")[0]["salts_reactor"] is True
    (record,) = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert "runs Salt's reactor as well" in record.getMessage()
