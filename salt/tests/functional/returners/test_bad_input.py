"""Input that a master should never get, but does: the result is defined and counted, and Salt continues. With a real daemon."""

import concurrent.futures

import pytest
import salt.loader

from saltext.saltcellar.utils import calls
from saltext.saltcellar.utils import client
from saltext.saltcellar.utils import oversize
from saltext.saltcellar.utils import settings
from saltext.saltcellar.utils import wire
from tests.support.helpers import JID
from tests.support.helpers import RETURN
from tests.support.helpers import Bus

LIMIT = 64 * 1024
SMALL = f"store:\n  entry_bytes_max: {LIMIT}\n"
FULL = "store:\n  free_bytes_min: 1000000GiB\n  free_bytes_low: 1000000GiB\n"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    """Spooled entries are handed over with the next call, without the usual pause."""
    monkeypatch.setattr(client, "HANDOVER_PAUSE_S", 0)


@pytest.fixture
def at(master_opts, opts):
    """Connects Salt to this daemon."""

    def point(cellar):
        master_opts["saltcellar.socket"] = opts["saltcellar.socket"] = cellar.socket
        return cellar

    return point


@pytest.fixture
def returners(master_opts):
    """Loads the returners at each use, because 3006 and 3007 copy the options at load time."""

    class Returners:
        def __getitem__(self, name):
            return salt.loader.returners(master_opts, {})[name]

    return Returners()


def continues(store, returners, minion="next"):
    """The next return is stored normally."""
    store(dict(RETURN, id=minion), event=Bus(), job_cache_store_endtime=True)
    assert minion in returners["saltcellar.get_jid"](JID)
    assert returners["saltcellar.get_endtime"](JID)


def test_a_return_over_the_daemons_limit(make_cellar, at, store, returners, spool):
    cellar = at(make_cellar(SMALL))
    store(dict(RETURN, **{"return": "x" * LIMIT}), event=Bus(), job_cache_store_endtime=True)
    assert returners["saltcellar.get_jid"](JID)["web1"]["return"].startswith(oversize.TOO_LARGE)
    assert spool.counters() == {}, "the daemon itself leaves the value out"
    assert cellar.counter("returns_without_value") >= 1
    continues(store, returners)


def test_a_return_larger_than_any_request(cellar, at, store, returners, spool, caplog):
    """Above the socket's limit nothing is sent, so the connection stays usable."""
    at(cellar)
    store(
        dict(RETURN, **{"return": "x" * wire.REQUEST_BYTES_MAX}),
        event=Bus(),
        job_cache_store_endtime=True,
    )
    assert returners["saltcellar.get_jid"](JID)["web1"]["return"].startswith(oversize.TOO_LARGE)
    assert spool.counters() == {"value_too_large": 1}
    assert f"returner of web1 for job {JID} is stored without its value" in caplog.text
    assert [
        cellar.counter(name)
        for name in ("entries_rejected_too_large", "socket_connections_closed_protocol")
    ] == [0, 0]
    continues(store, returners)


def test_a_publish_over_the_daemons_limit(make_cellar, at, store, returners, spool):
    at(make_cellar(SMALL))
    load = {
        "cmd": "publish",
        "tgt": ["x" * LIMIT],
        "fun": "test.ping",
        "arg": [],
        "tgt_type": "list",
        "jid": JID,
        "ret": "",
    }
    returners["saltcellar.save_load"](JID, load, ["web1"])
    assert spool.counters() == {"too_large": 1}
    assert returners["saltcellar.get_load"](JID) == {}, "salt reports an unknown job and continues"
    continues(store, returners)


def test_a_publish_that_cannot_be_packed(cellar, at, store, returners, spool):
    at(cellar)
    load = {
        "cmd": "publish",
        "tgt": {"web1"},
        "fun": "test.arg",
        "arg": [Unpackable()],
        "tgt_type": "list",
        "jid": JID,
        "ret": "",
    }
    returners["saltcellar.save_load"](JID, load, {"web1"})
    got = returners["saltcellar.get_load"](JID)
    assert (got["arg"], got["tgt"], got["Minions"]) == (
        ["<Unpackable without a string form>"],
        ["web1"],
        ["web1"],
    )
    assert spool.counters() == {}, "nothing is lost"
    continues(store, returners)


class Unpackable:
    def __str__(self):
        raise RuntimeError("not even that")


def test_values_that_cannot_be_packed(cellar, at, store, returners):
    at(cellar)
    cycle, deep = [], []
    cycle.append(cycle)
    for _ in range(2000):
        deep = [deep]
    load = dict(
        RETURN,
        **{
            "return": {
                "cycle": cycle,
                "deep": deep,
                "object": Unpackable(),
                "huge": 2**200,
                b"k": {1, 2},
            }
        },
    )
    store(load, event=Bus())
    answer = returners["saltcellar.get_jid"](JID)["web1"]
    got = answer["return"]
    assert answer["retcode"] == 0
    assert got["cycle"] == ["<recursion>"]
    assert got["object"] == "<Unpackable without a string form>"
    assert got["huge"] == str(2**200)
    assert got[b"k"] == [1, 2]
    continues(store, returners)


@pytest.mark.parametrize("bad", ["../../etc/passwd", "a/b", "a\\b", "a\0b", ".", ".."])
def test_an_id_invalid_in_salt(cellar, at, store, returners, spool, bad):
    """Salt's `_store_job` does not pass it on; the daemon also rejects it from other callers."""
    at(cellar)
    store(dict(RETURN, id=bad), event=Bus())
    returners["saltcellar.returner"](dict(RETURN, id=bad))
    assert returners["saltcellar.get_jid"](JID) == {}
    assert returners["saltcellar.get_minions"]() == []
    assert spool.counters() == {"refused": 1}, "only the call that bypassed Salt"
    assert cellar.counter("calls_rejected") == 1
    continues(store, returners)


def test_a_jid_of_ten_thousand_bytes_is_valid_and_one_of_twenty_thousand_is_not(
    cellar, at, store, returners, spool
):
    at(cellar)
    for jid, stored in (("1" * 10_000, True), ("1" * 20_000, False)):
        store(dict(RETURN, jid=jid), event=Bus(), job_cache_store_endtime=True)
        assert (returners["saltcellar.get_jid"](jid) != {}) == stored
        assert (jid in returners["saltcellar.get_jids"]()) == stored
    assert set(spool.counters()) <= {"refused", "bad_args"} and sum(spool.counters().values()) == 3
    continues(store, returners)


@pytest.mark.parametrize("jid", ["20261121031733650864", "req"])
def test_the_daemon_dies_between_the_load_and_the_return(cellar, at, store, returners, spool, jid):
    at(cellar)
    load = store(dict(RETURN, jid=jid), event=Bus(does=cellar.kill), job_cache_store_endtime=True)
    assert spool.pending()
    cellar.start()
    continues(store, returners)
    assert returners["saltcellar.get_jid"](load["jid"]) == {"web1": {"return": True, "retcode": 0}}
    assert returners["saltcellar.get_endtime"](load["jid"])
    assert returners["saltcellar.get_load"](load["jid"])["id"] == "web1"
    assert not spool.pending() and spool.counters() == {}


def test_the_daemon_dies_between_the_publish_and_the_return(cellar, at, store, returners, spool):
    at(cellar)
    publish = {
        "cmd": "publish",
        "tgt": "*",
        "fun": "test.ping",
        "arg": [],
        "tgt_type": "glob",
        "jid": JID,
        "ret": "",
    }
    returners["saltcellar.save_load"](JID, publish, ["web1", "web2"])
    cellar.kill()
    store(event=Bus(), job_cache_store_endtime=True)
    assert spool.pending()
    cellar.start()
    continues(store, returners)
    load = returners["saltcellar.get_load"](JID)
    assert (load["cmd"], load["tgt"]) == ("publish", "*")
    assert {"web1", "web2"} <= set(load["Minions"])
    assert returners["saltcellar.get_jid"](JID)["web1"] == {"return": True, "retcode": 0}
    assert not spool.pending() and spool.counters() == {}


def test_the_daemon_dies_between_storing_a_return_and_answering(
    cellar, at, store, returners, spool, monkeypatch
):
    at(cellar)
    store(event=Bus())
    receive = wire.Connection.receive

    def killed(self, deadline):
        answer = receive(self, deadline)
        cellar.kill()
        monkeypatch.setattr(wire.Connection, "receive", receive)
        raise wire.Broken(f"the response {answer} was lost")

    monkeypatch.setattr(wire.Connection, "receive", killed)
    store(dict(RETURN, id="web2"), event=Bus(), job_cache_store_endtime=True)
    assert spool.pending()
    cellar.start()
    continues(store, returners)
    shown = cellar.ask("job_show", jid=JID)["returns"]
    assert {one["minion"]: one["duplicates"] for one in shown} == {"web1": 0, "web2": 0, "next": 0}
    assert not spool.pending()


def test_returns_wait_in_the_spool_while_the_disk_is_full(make_cellar, at, store, returners, spool):
    cellar = at(make_cellar(FULL))
    load = store(dict(RETURN, jid="req"), event=Bus(), job_cache_store_endtime=True)
    calls = [record.call()[0] for record in spool.records()]
    assert calls == ["save_load", "save_load", "returner", "update_endtime"]
    assert cellar.counter("entries_rejected_disk_full") >= 1
    assert returners["saltcellar.get_jid"](load["jid"]) == {}, "reads still work"
    cellar.stop()
    make_cellar()
    continues(store, returners)
    assert returners["saltcellar.get_jid"](load["jid"]) == {"web1": {"return": True, "retcode": 0}}
    assert not spool.pending() and spool.counters() == {}


def test_a_job_of_ten_thousand_minions(cellar, at, store, returners, spool, master_opts):
    at(cellar)
    minions = [f"web{n:05}" for n in range(10_000)]
    publish = {
        "cmd": "publish",
        "tgt": "*",
        "fun": "test.ping",
        "arg": [],
        "tgt_type": "glob",
        "jid": JID,
        "ret": "",
    }
    returners["saltcellar.save_load"](JID, publish, minions)
    answers = [dict(RETURN, id=minion, jid=JID) for minion in minions]
    # As a master's workers do: calls at the same time share a sync of the disk, which a busy host takes its time for.
    with concurrent.futures.ThreadPoolExecutor(16) as workers:
        list(workers.map(returners["saltcellar.returner"], answers[:500]))
    # The rest over one connection, without a pause between the calls.
    with calls.Link(settings.from_opts(master_opts)) as link:
        link.ask_all([("returner", {"load": answer}) for answer in answers[500:]])
    assert returners["saltcellar.get_load"](JID)["Minions"] == minions
    got = returners["saltcellar.get_jid"](JID)
    assert sorted(got) == minions and all(answer["return"] is True for answer in got.values())
    assert returners["saltcellar.get_fun"]("test.ping") == dict.fromkeys(minions, JID)
    assert returners["saltcellar.get_minions"]() == minions
    assert not spool.pending() and spool.counters() == {}
    continues(store, returners)
