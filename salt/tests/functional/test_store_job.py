"""Salt's own `_store_job` over the returner: one message for a return, and none that gets lost on the way."""

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


def test_a_return_that_came_without_a_job_is_one_message_behind_its_jid(daemon, store):
    load = store(dict(RETURN, jid="req"), event=Bus(), job_cache_store_endtime=True)
    assert names(daemon) == ["prep_jid", "returner"]
    stored = daemon.named("returner")[0]
    assert stored["load"] == load
    assert (stored["load"]["jid"], stored["load"]["tgt"]) == ("20261121031733650863", "web1")


@pytest.mark.parametrize("options", [{"job_cache": False}, {"ext_job_cache": "other"}])
def test_where_the_master_stores_no_returns_the_load_of_one_without_a_job_goes_out_at_once(daemon, store, options):
    seen = []
    store(dict(RETURN, jid="req"), event=Bus(does=lambda: seen.extend(names(daemon))), **options)
    assert seen == names(daemon) == ["prep_jid", "save_load"]
    daemon.calls.clear()
    store(**options)
    assert names(daemon) == []


def test_what_is_no_part_of_storing_a_job_goes_out_at_once(daemon, returners, master_opts):
    master_opts["job_cache_store_endtime"] = True
    returners["saltcellar.save_load"](JID, RETURN)
    returners["saltcellar.returner"](RETURN)
    assert names(daemon) == ["save_load", "returner"]


def test_an_older_daemon_gets_the_end_time_by_itself(daemon, store):
    daemon.answers["returner"] = None
    store(job_cache_store_endtime=True)
    assert names(daemon) == ["returner", "update_endtime"]
    assert daemon.named("update_endtime")[0]["endtime"] == daemon.named("returner")[0]["endtime"]


@pytest.mark.parametrize("code", ["unavailable", "refused"])
def test_a_return_that_is_not_taken_with_its_end_time_goes_by_itself_as_a_replay(daemon, store, spooled, code):
    def refuse(_):
        raise Refuse(code)

    daemon.answers["returner"] = refuse
    store(job_cache_store_endtime=True)
    if code == "unavailable":
        assert [(call, args["replay"]) for call, args in spooled()] == [("returner", True), ("update_endtime", True)]
    else:
        assert names(daemon) == ["update_endtime"]


def test_a_return_whose_answer_got_lost_goes_again_as_a_replay(daemon, store):
    daemon.hang_up = 1
    store(job_cache_store_endtime=True)
    assert names(daemon) == ["returner", "update_endtime"]
    assert daemon.named("returner")[0]["replay"] is True


def test_what_was_held_back_goes_out_first_when_the_rest_does_not_come(daemon, store, returners):
    with pytest.raises(RuntimeError):
        store(dict(RETURN, jid="req"), event=Bus(raises=RuntimeError("the bus is gone")))
    assert names(daemon) == ["prep_jid"]
    daemon.answers["get_jids"] = {}
    returners["saltcellar.get_jids"]()
    assert names(daemon) == ["prep_jid", "save_load", "get_jids"]
    assert daemon.named("save_load")[0]["load"]["id"] == "web1"


@pytest.mark.parametrize("reads", ["get_load", "prep_jid", "save_load", "event_return"])
def test_whatever_is_asked_in_between_comes_after_what_was_held_back(daemon, store, returners, reads):
    with pytest.raises(RuntimeError):
        store(dict(RETURN, jid="req"), event=Bus(raises=RuntimeError("the bus is gone")))
    daemon.answers["get_load"] = {}
    args = {"get_load": ("7",), "prep_jid": (), "save_load": (JID, LOAD, ["a"]), "event_return": ([{"tag": "a", "data": {}}],)}
    returners[f"saltcellar.{reads}"](*args[reads])
    assert names(daemon) == ["prep_jid", "save_load", reads]


def test_a_worker_told_to_end_in_the_middle_sends_what_it_holds(daemon, store):
    def work():
        store(dict(RETURN, jid="req"), event=Bus(raises=SystemExit(0)))

    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    worker.join(30)
    assert worker.exitcode == 0
    assert names(daemon) == ["prep_jid", "save_load"]


def test_a_child_forked_in_the_middle_does_not_send_what_its_parent_holds(daemon, store, in_child, returners):
    daemon.answers["get_jids"] = {}
    fork = Bus(does=lambda: in_child(returners["saltcellar.get_jids"]))
    store(dict(RETURN, jid="req"), event=fork)
    assert names(daemon) == ["prep_jid", "get_jids", "returner"]


@pytest.mark.parametrize("endtime", [False, True])
def test_a_return_is_spooled_whole_when_the_daemon_is_away(daemon, store, spooled, endtime):
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
def test_an_id_that_salt_refuses_never_comes_here(daemon, store, bad):
    store(dict(RETURN, id=bad))
    assert daemon.connections == 0


def test_a_value_that_cannot_be_packed_is_stored_as_far_as_it_can(daemon, store):
    cycle = {"object": object(), "set": {1}}
    cycle["self"] = cycle
    store(dict(RETURN, **{"return": cycle}), event=Bus(), job_cache_store_endtime=True)
    ((call, args),) = daemon.calls
    assert call == "returner" and args["endtime"]
    assert args["load"]["return"]["self"] == "<recursion>"
    assert args["load"]["return"]["object"].startswith("<object object at")
    assert cycle["self"] is cycle, "the master's own map is as it was"


def test_a_return_larger_than_the_maximum_is_counted_and_the_next_one_goes_out(daemon, store, spool, monkeypatch, caplog):
    from saltext.saltcellar.utils import wire

    monkeypatch.setattr(wire, "REQUEST_BYTES_MAX", 5000)
    store(dict(RETURN, **{"return": "x" * 6000}), event=Bus(), job_cache_store_endtime=True)
    assert names(daemon) == ["update_endtime"], "the job has ended all the same"
    assert spool.counters() == {"too_large": 1}
    assert "was not stored" in caplog.text
    store(dict(RETURN, id="web2"), event=Bus())
    assert daemon.named("returner")[0]["load"]["id"] == "web2"
