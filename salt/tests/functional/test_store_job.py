"""Salt's own `_store_job` with the returner: one message per return, and no message is lost."""

import multiprocessing
import re

import pytest
from conftest import JID, RETURN, Bus, Refuse

LOAD = {"cmd": "publish", "tgt": "*", "fun": "test.ping", "arg": [], "tgt_type": "glob", "ret": "", "jid": JID, "user": "root"}


def names(daemon):
    return [call for call, _ in daemon.calls]


def test_a_return_is_one_message(daemon, store):
    store(event=Bus())
    ((call, args),) = daemon.calls
    assert (call, args["load"]["return"], set(args)) == ("returner", True, {"at", "load"})


def test_a_return_and_its_end_time_are_one_message(daemon, store):
    store(event=Bus(), job_cache_store_endtime=True)
    ((call, args),) = daemon.calls
    assert (call, args["load"]["id"]) == ("returner", "web1")
    assert re.fullmatch(r"\d{4}, \w{3} \d\d \d\d:\d\d:\d\d\.\d{6}", args["endtime"])


def test_a_return_without_a_publish_is_one_message_after_its_jid(daemon, store):
    load = store(dict(RETURN, jid="req"), event=Bus(), job_cache_store_endtime=True)
    assert names(daemon) == ["prep_jid", "returner"]
    stored = daemon.named("returner")[0]
    assert stored["load"] == load
    assert (stored["load"]["jid"], stored["load"]["tgt"]) == ("20261121031733650863", "web1")


@pytest.mark.parametrize("options", [{"job_cache": False}, {"ext_job_cache": "other"}])
def test_without_stored_returns_a_return_load_is_sent_immediately(daemon, store, options):
    seen = []
    store(dict(RETURN, jid="req"), event=Bus(does=lambda: seen.extend(names(daemon))), **options)
    assert seen == names(daemon) == ["prep_jid", "save_load"]
    daemon.calls.clear()
    store(**options)
    assert names(daemon) == []


def test_other_calls_are_sent_immediately(daemon, returners, master_opts):
    master_opts["job_cache_store_endtime"] = True
    returners["saltcellar.save_load"](JID, RETURN)
    returners["saltcellar.returner"](RETURN)
    assert names(daemon) == ["save_load", "returner"]


def test_an_older_daemon_gets_a_separate_end_time_call(daemon, store):
    daemon.answers["returner"] = None
    store(job_cache_store_endtime=True)
    assert names(daemon) == ["returner", "update_endtime"]
    assert daemon.named("update_endtime")[0]["endtime"] == daemon.named("returner")[0]["endtime"]


@pytest.mark.parametrize("code", ["unavailable", "refused"])
def test_a_return_rejected_with_its_end_time_is_sent_alone_as_a_replay(daemon, store, spooled, code):
    def refuse(_):
        raise Refuse(code)

    daemon.answers["returner"] = refuse
    store(job_cache_store_endtime=True)
    if code == "unavailable":
        assert [(call, args["replay"]) for call, args in spooled()] == [("returner", True), ("update_endtime", True)]
    else:
        assert names(daemon) == ["update_endtime"]


def test_a_return_whose_answer_was_lost_is_resent_as_a_replay(daemon, store):
    daemon.hang_up = 1
    store(job_cache_store_endtime=True)
    assert names(daemon) == ["returner", "update_endtime"]
    assert daemon.named("returner")[0]["replay"] is True


def test_a_pending_call_is_sent_first_if_the_rest_is_missing(daemon, store, returners):
    with pytest.raises(RuntimeError):
        store(dict(RETURN, jid="req"), event=Bus(raises=RuntimeError("the bus is gone")))
    assert names(daemon) == ["prep_jid"]
    daemon.answers["get_jids"] = {}
    returners["saltcellar.get_jids"]()
    assert names(daemon) == ["prep_jid", "save_load", "get_jids"]
    assert daemon.named("save_load")[0]["load"]["id"] == "web1"


@pytest.mark.parametrize("reads", ["get_load", "prep_jid", "save_load", "event_return"])
def test_another_call_is_sent_after_the_pending_one(daemon, store, returners, reads):
    with pytest.raises(RuntimeError):
        store(dict(RETURN, jid="req"), event=Bus(raises=RuntimeError("the bus is gone")))
    daemon.answers["get_load"] = {}
    args = {"get_load": ("7",), "prep_jid": (), "save_load": (JID, LOAD, ["a"]), "event_return": ([{"tag": "a", "data": {}}],)}
    returners[f"saltcellar.{reads}"](*args[reads])
    assert names(daemon) == ["prep_jid", "save_load", reads]


def test_a_terminated_worker_sends_its_pending_call(daemon, store):
    def work():
        store(dict(RETURN, jid="req"), event=Bus(raises=SystemExit(0)))

    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    worker.join(30)
    assert worker.exitcode == 0
    assert names(daemon) == ["prep_jid", "save_load"]


def test_a_child_forked_within_a_job_does_not_send_the_parents_pending_call(daemon, store, in_child, returners):
    daemon.answers["get_jids"] = {}
    fork = Bus(does=lambda: in_child(returners["saltcellar.get_jids"]))
    store(dict(RETURN, jid="req"), event=fork)
    assert names(daemon) == ["prep_jid", "get_jids", "returner"]


@pytest.mark.parametrize("endtime", [False, True])
def test_a_return_is_spooled_as_one_record_if_the_daemon_is_unreachable(daemon, store, spooled, endtime):
    daemon.stop()
    load = store(dict(RETURN, jid="req"), job_cache_store_endtime=endtime)
    assert re.fullmatch(r"\d{20}", load["jid"])
    assert [call for call, _ in spooled()] == ["returner", "update_endtime"][: 1 + endtime]
    assert spooled()[0][1]["load"] == load


def test_a_daemon_that_dies_between_load_and_return_leaves_the_return_in_the_spool(daemon, store, spooled):
    store(dict(RETURN, jid="req"), event=Bus(does=daemon.stop))
    assert [call for call, _ in spooled()] == ["returner"]


def test_an_end_time_waits_behind_older_ones_in_the_spool(daemon, store, spooled, monkeypatch):
    daemon.stop()
    store(job_cache_store_endtime=True)
    daemon.start()
    from saltext.saltcellar.utils import client

    monkeypatch.setattr(client, "HANDOVER_BUDGET_S", -1)
    store(dict(RETURN, id="web2"), job_cache_store_endtime=True)
    assert names(daemon) == ["returner"]
    assert [call for call, _ in spooled()] == ["returner", "update_endtime", "update_endtime"]


@pytest.mark.parametrize("bad", ["../web1", "a/b", "a\0b", "a\\b", ".."])
def test_an_id_rejected_by_salt_is_not_stored(daemon, store, bad):
    store(dict(RETURN, id=bad))
    assert daemon.connections == 0


def test_the_packable_part_of_a_value_is_stored(daemon, store):
    cycle = {"object": object(), "set": {1}}
    cycle["self"] = cycle
    store(dict(RETURN, **{"return": cycle}), event=Bus(), job_cache_store_endtime=True)
    ((call, args),) = daemon.calls
    assert call == "returner" and args["endtime"]
    assert args["load"]["return"]["self"] == "<recursion>"
    assert args["load"]["return"]["object"].startswith("<object object at")
    assert cycle["self"] is cycle, "the master's own map is unchanged"


def test_a_return_over_the_limit_is_counted_and_the_next_one_is_sent(daemon, store, spool, monkeypatch, caplog):
    from saltext.saltcellar.utils import wire

    monkeypatch.setattr(wire, "REQUEST_BYTES_MAX", 5000)
    store(dict(RETURN, **{"return": "x" * 6000}), event=Bus(), job_cache_store_endtime=True)
    assert names(daemon) == ["update_endtime"], "the end time is still sent"
    assert spool.counters() == {"too_large": 1}
    assert "was not stored" in caplog.text
    store(dict(RETURN, id="web2"), event=Bus())
    assert daemon.named("returner")[0]["load"]["id"] == "web2"
