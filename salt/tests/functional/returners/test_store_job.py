"""Salt's `_store_job` with the returner: which messages a return becomes, and that none is lost."""

import re

import pytest

from tests.support.helpers import RETURN
from tests.support.helpers import Bus


def names(daemon):
    return [call for call, _ in daemon.calls]


def test_a_return_is_sent_as_salt_calls(daemon, store):
    store(event=Bus())
    assert names(daemon) == ["save_load", "returner"]
    returned = daemon.named("returner")[0]
    assert (returned["load"]["return"], set(returned)) == (True, {"at", "load"})


def test_an_end_time_follows_its_return(daemon, store):
    store(event=Bus(), job_cache_store_endtime=True)
    assert names(daemon) == ["save_load", "returner", "update_endtime"]
    endtime = daemon.named("update_endtime")[0]["endtime"]
    assert re.fullmatch(r"\d{4}, \w{3} \d\d \d\d:\d\d:\d\d\.\d{6}", endtime)


def test_a_return_without_a_publish_gets_its_jid_first(daemon, store):
    load = store(dict(RETURN, jid="req"), event=Bus())
    assert names(daemon) == ["prep_jid", "save_load", "save_load", "returner"]
    stored = daemon.named("returner")[0]
    assert stored["load"] == load
    assert (stored["load"]["jid"], stored["load"]["tgt"]) == ("20261121031733650863", "web1")


def test_every_call_is_acknowledged_before_salt_continues(daemon, store):
    """Nothing that Salt believes stored waits in the memory of a process."""
    seen = []
    with pytest.raises(RuntimeError):
        store(
            dict(RETURN, jid="req"),
            event=Bus(
                does=lambda: seen.extend(names(daemon)), raises=RuntimeError("the bus is gone")
            ),
        )
    assert seen == names(daemon) == ["prep_jid", "save_load"]


def test_a_return_whose_answer_was_lost_is_resent_as_a_replay(daemon, store):
    store(event=Bus())
    daemon.calls.clear()
    daemon.hang_up = 1
    store(dict(RETURN, id="web2"))
    assert names(daemon) == ["save_load", "returner"]
    assert daemon.named("save_load")[0]["replay"] is True


@pytest.mark.parametrize("endtime", [False, True])
def test_a_return_is_spooled_if_the_daemon_is_unreachable(daemon, store, spooled, endtime):
    daemon.stop()
    load = store(dict(RETURN, jid="req"), job_cache_store_endtime=endtime)
    assert re.fullmatch(r"\d{20}", load["jid"])
    assert [call for call, _ in spooled()] == [
        "save_load",
        "save_load",
        "returner",
        "update_endtime",
    ][: 3 + endtime]
    assert spooled()[2][1]["load"] == load


def test_a_daemon_that_dies_between_load_and_return_leaves_the_return_in_the_spool(
    daemon, store, spooled
):
    store(dict(RETURN, jid="req"), event=Bus(does=daemon.stop))
    assert [call for call, _ in spooled()] == ["save_load", "returner"]


def test_an_end_time_waits_behind_older_ones_in_the_spool(daemon, store, spooled, monkeypatch):
    daemon.stop()
    store(job_cache_store_endtime=True)
    daemon.start()
    from saltext.saltcellar.utils import client

    monkeypatch.setattr(client, "HANDOVER_BUDGET_S", -1)
    store(dict(RETURN, id="web2"), job_cache_store_endtime=True)
    assert names(daemon) == ["save_load", "returner"]
    assert [call for call, _ in spooled()] == [
        "save_load",
        "returner",
        "update_endtime",
        "update_endtime",
    ]


@pytest.mark.parametrize("bad", ["../web1", "a/b", "a\0b", "a\\b", ".."])
def test_an_id_rejected_by_salt_is_not_stored(daemon, store, bad):
    store(dict(RETURN, id=bad))
    assert daemon.connections == 0


def test_the_packable_part_of_a_value_is_stored(daemon, store):
    cycle = {"object": object(), "set": {1}}
    cycle["self"] = cycle
    store(dict(RETURN, **{"return": cycle}), event=Bus())
    stored = daemon.named("returner")[0]["load"]["return"]
    assert stored["self"] == "<recursion>"
    assert stored["object"].startswith("<object object at")
    assert cycle["self"] is cycle, "the master's own map is unchanged"


def test_a_return_over_the_limit_is_counted_and_the_next_one_is_sent(
    daemon, store, spool, monkeypatch, caplog
):
    from saltext.saltcellar.utils import wire

    monkeypatch.setattr(wire, "REQUEST_BYTES_MAX", 5000)
    store(dict(RETURN, **{"return": "x" * 6000}), event=Bus(), job_cache_store_endtime=True)
    assert names(daemon) == ["save_load", "returner", "update_endtime"]
    assert spool.counters() == {"value_too_large": 1}
    assert "is stored without its value" in caplog.text
    store(dict(RETURN, id="web2"), event=Bus())
    assert [args["load"]["id"] for args in daemon.named("returner")] == ["web1", "web2"]
