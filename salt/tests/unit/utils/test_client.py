"""The connection: kept open, lost, forked, slow, rejected."""

import os
import signal
import threading
import time

import pytest

from saltext.saltcellar.utils import client as client_
from saltext.saltcellar.utils import logs
from saltext.saltcellar.utils import oversize
from saltext.saltcellar.utils import pool
from saltext.saltcellar.utils import spool as spool_
from saltext.saltcellar.utils import wire
from tests.support.helpers import Refuse

RETURN = {"id": "web1", "jid": "20261121031733650863", "fun": "test.ping", "return": True}


def refuse(code):
    def answer(_):
        raise Refuse(code)

    return answer


def test_one_connection_serves_many_calls_with_one_greeting(daemon, client):
    for _ in range(5):
        client.write("returner", {"load": RETURN})
    assert daemon.connections == 1
    assert daemon.greetings == [b"SCWIRE\x00\x01"]
    assert len(daemon.named("returner")) == 5


def test_each_thread_has_its_own_connection(daemon, client):
    barrier = threading.Barrier(4)

    def work():
        client.write("returner", {"load": RETURN})
        barrier.wait(5)
        client.write("returner", {"load": RETURN})

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert daemon.connections == 4
    assert len(daemon.named("returner")) == 8


def test_a_forked_child_opens_its_own_connection_and_the_parent_keeps_its(daemon, client, in_child):
    client.write("returner", {"load": dict(RETURN, id="before")})

    def child():
        client.write("returner", {"load": dict(RETURN, id="child")})
        assert client.read("get_endtime", {"jid": "1"}, None) == "then"

    daemon.answers["get_endtime"] = "then"
    in_child(child)
    assert daemon.connections == 2
    client.write("returner", {"load": dict(RETURN, id="after")})
    assert daemon.connections == 2
    assert [args["load"]["id"] for args in daemon.named("returner")] == ["before", "child", "after"]


def test_a_child_that_exits_does_not_close_the_parents_connection(daemon, client, in_child):
    client.write("returner", {"load": RETURN})
    in_child(client_.forget)
    client.write("returner", {"load": RETURN})
    assert daemon.connections == 1


def test_a_dead_connection_is_replaced_and_the_write_is_marked_as_replay(daemon, client, spool):
    client.write("returner", {"load": RETURN})
    daemon.stop()
    daemon.start()
    client.write("returner", {"load": RETURN})
    first, second = daemon.named("returner")
    assert "replay" not in first and second["replay"] is True
    assert second["at"] > first["at"]
    assert not spool.pending()


def test_two_closed_connections_in_a_row_mean_unreachable(daemon, client, spooled):
    client.write("returner", {"load": RETURN})
    daemon.hang_up = 2
    client.write("returner", {"load": RETURN})
    assert [call for call, _ in spooled()] == ["returner"]
    assert daemon.connections == 2


def test_a_repeated_read_has_no_replay_mark(daemon, client):
    daemon.answers["get_jid"] = {}
    client.read("get_jid", {"jid": "1"}, None)
    daemon.stop()
    daemon.start()
    assert client.read("get_jid", {"jid": "1"}, None) == {}
    assert daemon.named("get_jid") == [{"jid": "1"}] * 2


def test_a_hung_daemon_costs_the_timeout_once_and_then_nothing_for_a_while(
    daemon, client, took, spooled, monkeypatch
):
    monkeypatch.setattr(pool, "PAUSE_S", 30)
    monkeypatch.setattr(pool, "PAUSE_MAX_S", 30)
    client.settings.timeout = 0.3
    daemon.hang = True
    with took() as first:
        client.write("returner", {"load": RETURN})
    with took() as others:
        for _ in range(20):
            client.write("returner", {"load": RETURN})
        assert client.read("get_jid", {"jid": "1"}, {}) == {}
    assert 0.25 < first() < 1.5
    assert others() < 3 < 20 * 0.3
    assert len(spooled()) == 21
    assert daemon.connections == 1


def test_a_daemon_that_accepts_no_connection_costs_at_most_the_timeout(
    run_dir, client, took, spooled
):
    import socket

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(run_dir / "s.sock"))
    listener.listen(0)
    fillers = []
    for _ in range(3):
        fillers.append(socket.socket(socket.AF_UNIX))
        fillers[-1].setblocking(False)
        fillers[-1].connect_ex(str(run_dir / "s.sock"))
    client.settings.timeout = 0.3
    with took() as long:
        client.write("returner", {"load": RETURN})
    assert 0.25 < long() < 1.5
    assert len(spooled()) == 1
    for one in (*fillers, listener):
        one.close()


def test_the_circuit_breaker_opens_longer_while_the_daemon_hangs(daemon, client):
    daemon.hang = True
    client.settings.timeout = 0.02
    pauses = []
    for _ in range(5):
        client.write("returner", {"load": RETURN})
        until, pause, why = client_.breaker.pauses[client.settings.socket]
        pauses.append(pause)
        client_.breaker.pauses[client.settings.socket] = (0, pause, why)
    assert pauses == [1, 2, 4, 8, 8]


def test_an_answer_closes_the_circuit_breaker(daemon, client):
    client_.breaker.pauses[client.settings.socket] = (0, 4, "hung")
    client.write("returner", {"load": RETURN})
    assert client_.breaker.pauses == {}


def test_a_missing_daemon_costs_no_wait_and_is_found_immediately_once_it_starts(
    daemon, client, took, spool
):
    daemon.stop()
    with took() as long:
        for _ in range(20):
            client.write("returner", {"load": RETURN})
    assert long() < 3 < 20 * client.settings.timeout
    daemon.start()
    client.write("returner", {"load": RETURN})
    assert len(daemon.named("returner")) == 21
    assert not spool.pending()


def test_a_listing_may_take_longer_than_other_calls(daemon, client):
    def slow(_):
        time.sleep(0.4)
        return {"1": {}}

    daemon.answers["get_jids"] = slow
    client.settings.timeout = 0.2
    assert client.read("get_jids", {}, {}, listing=True) == {"1": {}}


def test_an_answer_to_another_request_is_skipped(daemon, client):
    daemon.stray = [0, True, "stray"]
    daemon.answers["get_endtime"] = "then"
    assert client.read("get_endtime", {"jid": "1"}, None) == "then"


@pytest.mark.parametrize("code", ["refused", "bad_args", "too_large", "unknown_call"])
def test_a_permanent_rejection_is_counted_and_logged_once_and_not_spooled(
    daemon, client, spool, caplog, code
):
    daemon.answers["returner"] = refuse(code)
    for _ in range(3):
        client.write("returner", {"load": RETURN})
    assert not spool.pending()
    # A return that is too large is resent without its value.
    more = {"value_too_large": 3} if code == "too_large" else {}
    assert spool.counters() == {code: 3, **more}
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1 + len(more)
    assert daemon.connections == 1


@pytest.mark.parametrize(
    "code", ["unavailable", "internal", "version", "protocol", "from the future"]
)
def test_a_temporarily_rejected_entry_is_spooled(daemon, client, spool, spooled, code):
    daemon.answers["returner"] = refuse(code)
    client.write("returner", {"load": RETURN})
    ((call, args),) = spooled()
    assert (call, args["load"], args["replay"]) == ("returner", RETURN, True)
    assert spool.counters() == {}


@pytest.mark.parametrize("code", ["version", "protocol"])
def test_a_final_error_spools_the_entry_and_closes_the_connection(daemon, client, spooled, code):
    daemon.last_words = {"code": code, "message": "no", "server_version": 2}
    client.write("returner", {"load": RETURN})
    assert len(spooled()) == 1
    assert client.read("get_jid", {"jid": "1"}, {}) == {}
    daemon.last_words = None
    client.write("save_load", {"jid": "1", "load": {}})
    assert [call for call, _ in daemon.calls] == ["save_load", "returner"]


def test_an_entry_above_the_limit_is_not_sent_but_counted(daemon, client, spool, monkeypatch):
    monkeypatch.setattr(wire, "REQUEST_BYTES_MAX", 1000)
    client.write("save_load", {"jid": "1", "load": {"arg": ["x" * 2000]}})
    assert spool.counters() == {"too_large": 1}
    assert daemon.frames == []


@pytest.mark.parametrize("up", [True, False])
def test_a_return_above_the_limit_is_stored_without_its_value(
    daemon, client, spool, spooled, monkeypatch, up, caplog
):
    """It would otherwise be a missing return."""
    monkeypatch.setattr(wire, "REQUEST_BYTES_MAX", 1000)
    monkeypatch.setattr(spool_, "RECORD_BYTES_MAX", 900)
    if not up:
        daemon.stop()
    client.write("returner", {"load": dict(RETURN, **{"return": "x" * 2000})})
    (load,) = (
        [args["load"] for args in daemon.named("returner")]
        if up
        else [args["load"] for _, args in spooled()]
    )
    assert {**load, "return": True} == RETURN
    assert load["return"].startswith(oversize.TOO_LARGE)
    assert spool.counters() == {"value_too_large": 1}
    assert "is stored without its value" in caplog.text


def test_a_return_on_the_bus_above_the_limit_is_stored_without_its_value(
    daemon, client, spool, monkeypatch
):
    monkeypatch.setattr(wire, "REQUEST_BYTES_MAX", 1000)
    events = [
        {"tag": "a", "data": {"x": 1}},
        {"tag": "salt/job/1/ret/web1", "data": dict(RETURN, **{"return": "x" * 2000})},
    ]
    client.event_return(events)
    stored = [event for args in daemon.named("event_return") for event in args["events"]]
    assert [event["tag"] for event in stored] == ["a", "salt/job/1/ret/web1"]
    assert stored[1]["data"]["return"].startswith(oversize.TOO_LARGE)
    assert spool.counters() == {"value_too_large": 1}


def test_an_unexpected_exception_costs_no_entry(
    daemon, client, spool, spooled, monkeypatch, caplog
):
    with monkeypatch.context() as patch:
        patch.setattr(
            wire.Connection, "ask", lambda *_: (_ for _ in ()).throw(RuntimeError("unheard of"))
        )
        client.write("returner", {"load": RETURN})
    assert "unheard of" in caplog.text
    assert [args["load"] for _, args in spooled()] == [RETURN]
    client.write("returner", {"load": RETURN})
    assert len(daemon.named("returner")) == 2
    assert spool.counters() == {}


def test_a_value_that_cannot_be_packed_is_logged_and_counted(
    daemon, client, spool, monkeypatch, caplog
):
    def fail(_):
        raise MemoryError("no room")

    monkeypatch.setattr(wire, "pack", fail)
    client.write("returner", {"load": RETURN})
    assert spool.counters() == {"failed": 1}
    assert "NOT stored" in caplog.text


def test_a_signal_handler_that_calls_in_the_middle_of_a_call_gets_its_own_connection(
    daemon, client
):
    def slow(args):
        if args["jid"] == "slow":
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.05)
        return {"asked": args["jid"]}

    inner = []
    daemon.answers["get_jid"] = slow
    before = signal.signal(
        signal.SIGUSR1, lambda *_: inner.append(client.read("get_jid", {"jid": "inner"}, None))
    )
    try:
        assert client.read("get_jid", {"jid": "slow"}, None) == {"asked": "slow"}
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert inner == [{"asked": "inner"}]
    assert daemon.connections == 2


def test_a_call_interrupted_by_a_signal_leaves_no_answer_for_the_next_one(daemon, client):
    def slow(args):
        if args["jid"] == "slow":
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.05)
        return args["jid"]

    def leave(*_):
        raise SystemExit(0)

    daemon.answers["get_jid"] = slow
    before = signal.signal(signal.SIGUSR1, leave)
    try:
        with pytest.raises(SystemExit):
            client.read("get_jid", {"jid": "slow"}, None)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert client.read("get_jid", {"jid": "next"}, None) == "next"
    assert daemon.connections == 2


def test_a_repeated_error_is_logged_again_after_a_pause_with_a_count(caplog, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    for text in ("first", "second", "third"):
        logs.error("x", text)
    now[0] += logs.INTERVAL_S
    logs.error("x", "fourth of %s", "many")
    now[0] += logs.INTERVAL_S
    logs.error("x", "fifth")
    assert [r.message for r in caplog.records if r.levelname == "ERROR"] == [
        "first",
        "fourth of many (2 more like this since the last message)",
        "fifth",
    ]


def test_a_full_spool_logs_its_losses_once(daemon, client, spool, caplog):
    daemon.stop()
    spool.bytes_max = 1
    for _ in range(100):
        client.write("returner", {"load": RETURN})
    assert spool.counters() == {"spool_full": 100}
    lost = [
        record
        for record in caplog.records
        if record.levelname == "ERROR" and "LOST" in record.getMessage()
    ]
    assert len(lost) == 1


def test_a_slow_answer_to_get_jid_is_not_an_empty_job(daemon, opts, client):
    """`{}` means that no minion has returned. The returns of thousands of minions take longer than other answers."""
    client.settings.timeout, client.settings.listing_timeout = 0.2, 20
    daemon.answers["get_jid"] = lambda _: time.sleep(0.6) or {"web1": {"return": 1}}
    assert client.get_jid(opts, "1") == {"web1": {"return": 1}}
    client.settings.listing_timeout = 0.2
    with pytest.raises(client_.Unavailable):
        client.get_jid(opts, "2")


# ---- events


def test_a_batch_is_sent_unchanged_in_one_request(daemon, client):
    odd = [
        "no map",
        {"data": {}},
        {"tag": "", "data": {}},
        {"tag": "a", "data": "no map"},
        {"tag": "b", "data": {"x": b"\xff"}},
    ]
    client.event_return(odd)
    client.event_return({"tag": "alone", "data": {}})
    client.event_return([])
    assert [args["events"] for args in daemon.named("event_return")] == [
        odd,
        [{"tag": "alone", "data": {}}],
    ]
    assert len(daemon.frames) == 2
    assert client.spool.counters() == {}, "the daemon counts elements that are not events"


def test_events_are_packed_once_for_the_socket_and_once_for_the_spool(
    daemon, client, spooled, monkeypatch
):
    packed = []
    real = wire.pack
    monkeypatch.setattr(wire, "pack", lambda value: packed.append(value) or real(value))
    client.event_return([{"tag": "a", "data": {}}])
    daemon.stop()
    # Sent on the connection of the first, which is broken.
    client.event_return([{"tag": "b", "data": {}}])
    # There is no connection to pack it for.
    client.event_return([{"tag": "c", "data": {}}])
    seen = [args["events"][0]["tag"] for *_, args in packed if isinstance(args, dict)]
    assert seen == ["a", "b", "b", "c"]
    for tag, (call, args) in zip("bc", spooled()):
        assert (call, args["events"], args["replay"]) == (
            "event_return",
            [{"tag": tag, "data": {}}],
            True,
        )


def test_a_repeated_flush_is_marked_as_replay(daemon, client):
    queue = [{"tag": "a", "data": {}}, {"tag": "b", "data": {}}]
    client.event_return(queue)
    # Salt's behaviour on a SIGTERM before the queue is flushed.
    client.event_return(queue)
    first, again = daemon.named("event_return")
    assert "replay" not in first
    assert again == dict(first, replay=True)
    del queue[:]
    queue.extend([{"tag": "a", "data": {}}, {"tag": "b", "data": {}}])
    client.event_return(queue)
    assert "replay" not in daemon.named("event_return")[2]


def test_a_flush_within_a_flush_is_marked_as_replay(daemon, client):
    queue = [{"tag": "a", "data": {}}]
    handled = []

    def interrupt(_):
        if not handled:
            handled.append(True)
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.05)
        return 1

    daemon.answers["event_return"] = interrupt
    before = signal.signal(signal.SIGUSR1, lambda *_: client.event_return(queue))
    try:
        client.event_return(queue)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert sorted("replay" in args for args in daemon.named("event_return")) == [False, True]


def test_a_lost_batch_is_counted_by_event(daemon, opts):
    opts["saltcellar.spool_bytes_max"] = 10
    client = client_.get_client(opts)
    daemon.stop()
    client.event_return([{"tag": "a", "data": {}}] * 7)
    daemon.start()
    daemon.answers["event_return"] = refuse("refused")
    client.event_return([{"tag": "a", "data": {}}] * 5)
    assert client.spool.counters() == {"spool_full": 7, "refused": 5}


# ---- versions


def test_another_protocol_version_and_an_unreachable_daemon_are_distinguished(
    daemon, client, spooled, caplog
):
    words = "this daemon supports version 2 of the socket protocol, the client uses version 1"
    daemon.last_words = {"code": "version", "message": words, "server_version": 2}
    client.write("returner", {"load": RETURN})
    assert len(spooled()) == 1
    assert words in caplog.text and "update the older" in caplog.text
    assert "systemctl" not in caplog.text
    daemon.last_words = None
    client.write("save_load", {"jid": "1", "load": {}})
    assert [call for call, _ in daemon.calls] == ["save_load", "returner"], (
        "nothing is missing after the update"
    )


def test_the_preamble_contains_the_version(daemon, client):
    client.write("returner", {"load": RETURN})
    assert daemon.greetings == [b"SCWIRE\x00\x01"]


# ---- one client for one configuration


def test_clients_are_separate_per_configuration(opts, monkeypatch):
    assert client_.get_client(opts) is client_.get_client(dict(opts, other="key"))
    assert client_.get_client(dict(opts, **{"saltcellar.timeout": 9})).settings.timeout == 9
    assert (
        client_.get_client(dict(opts, saltcellar={"spool_age_max": 5})).settings.spool_age_max == 5
    )
    assert (
        client_.get_client(dict(opts, saltcellar={"spool_age_max": [5]})).settings.spool_age_max
        == 7 * 86400
    )
    monkeypatch.setenv("SALTCELLAR_SOCKET", "/elsewhere")
    assert client_.get_client(opts).settings.socket == "/elsewhere"


# ---- no destination


def test_without_a_known_destination_entries_wait_and_nothing_is_sent(daemon, opts, caplog):
    client = client_.get_client({**opts, "id": "web1", "saltcellar.url": {"not": "text"}})
    client.write("returner", {"load": RETURN})
    client.hand_over(5)
    assert client.read("get_jids", {}, {}) == {}
    assert (daemon.connections, client.spool.waiting()["entries"]) == (0, 1)
    assert client.spool.directory == opts["cachedir"] + "/saltcellar"
    assert "saltcellar.url: {'not': 'text'} is not a str" in caplog.text


def test_options_that_cannot_be_understood_keep_the_minions_id_and_spool(opts, monkeypatch):
    def fail(*_):
        raise TypeError("odd options")

    monkeypatch.setattr(client_.settings_, "from_opts", fail)
    client = client_.get_client({**opts, "id": "web1"})
    assert "odd options" in client.settings.error
    assert (client.settings.minion_id, client.spool.directory) == (
        "web1",
        opts["cachedir"] + "/saltcellar",
    )


# ---- messages


def errors_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


def test_each_reason_not_to_use_the_daemon_has_its_remedy(daemon, opts, client, caplog):
    client.write("returner", {"load": RETURN})
    daemon.stop()
    client.prep_jid(opts)
    assert "no daemon listens there" in errors_of(caplog)[-1]
    assert "`systemctl start saltcellar`" in errors_of(caplog)[-1]

    # Another host: no command of this one helps.
    client_.forget()
    far = {**opts, "saltcellar.url": "https://localhost:1", "saltcellar.spool_dir": None}
    client_.get_client(far).prep_jid(far)
    assert "check that the daemon runs on that host" in errors_of(caplog)[-1]
    assert "systemctl" not in errors_of(caplog)[-1]

    client_.forget()
    invalid = {**opts, "saltcellar.url": ["x"]}
    client_.get_client(invalid).prep_jid(invalid)
    assert "until it is corrected and Salt restarted: saltcellar.url" in errors_of(caplog)[-1]

    daemon.start()
    client_.forget()
    daemon.answers["prep_jid"] = refuse("refused")
    client.prep_jid(opts)
    assert "generating them locally: refused: " in errors_of(caplog)[-1]
    assert "systemctl" not in errors_of(caplog)[-1]


def test_a_pause_after_a_failure_keeps_its_cause(daemon, client, caplog):
    client.settings.timeout = 0.1
    daemon.answers["returner"] = lambda _: time.sleep(0.3)
    client.write("returner", {"load": RETURN})
    client.read("get_jids", {}, {})
    assert "get_jids failed" in errors_of(caplog)[-1]
    assert "no response in time: run `saltcellar doctor`" in errors_of(caplog)[-1]


def test_a_message_names_what_was_not_stored(daemon, client, caplog):
    daemon.answers["event_return"] = daemon.answers["save_load"] = refuse("bad_args")
    client.event_return([{"tag": "a/b", "data": {}}] * 3)
    assert "event_return (events: 3, first tag: a/b) was not stored" in errors_of(caplog)[-1]
    # A minion chose the tag.
    client_.forget()
    client.event_return([{"tag": "a\nfirst" * 100, "data": {}}])
    (last,) = errors_of(caplog)[-1].splitlines()
    assert "first tag: a\\nfirst" in last and len(last) < 400
    client_.forget()
    client.save_load("17", {"id": "web1", "jid": "17", "return": 1}, 5)
    assert "job 17 is stored without its minions, because 5" in errors_of(caplog)[-2]
    assert "save_load of web1 for job 17 was not stored" in errors_of(caplog)[-1]
