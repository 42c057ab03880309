"""The execution module and the beacon of minions, loaded by Salt."""

import time

import pytest
import salt.config
import salt.loader
from conftest import JID, RETURN, Refuse, with_dirs


@pytest.fixture
def minion_opts(run_dir, opts):
    conf = with_dirs(dict(salt.config.DEFAULT_MINION_OPTS, __role="minion", id="web1"), run_dir, opts)
    conf.update(grains={}, pillar={}, file_client="local")
    return conf


@pytest.fixture
def functions(minion_opts):
    return salt.loader.minion_mods(minion_opts)


def test_status_flush_and_send_while_the_daemon_is_away_and_back(functions, daemon, minion_opts):
    daemon.answers["status"] = {"version": "0.9.1"}
    assert functions["saltcellar.status"]()["version"] == "0.9.1"
    daemon.stop()
    jid = functions["saltcellar.send"]("backup.nightly", {"bytes": 5}, success=False)
    shown = functions["saltcellar.status"]()
    assert (shown["reachable"], shown["spool"]["entries"]) == (False, 1) and "no answer" in shown["error"]
    assert functions["saltcellar.flush"](timeout=0.3)["entries"] == 1
    daemon.start()
    assert functions["saltcellar.flush"]()["entries"] == 0
    (stored,) = daemon.named("returner")
    expected = {"id": "web1", "jid": jid, "fun": "backup.nightly", "fun_args": [], "return": {"bytes": 5}}
    assert stored["load"] == {**expected, "success": False, "retcode": 1}


def test_a_refused_status_shows_a_daemon_that_answers(functions, daemon):
    def refuse(_):
        raise Refuse("refused")

    daemon.answers["status"] = refuse
    shown = functions["saltcellar.status"]()
    assert shown["reachable"] and "version" not in shown


def test_the_beacon_reports_old_and_many_entries_and_losses(functions, minion_opts, daemon, monkeypatch):
    beacons = salt.loader.beacons(minion_opts, functions)
    check = beacons["saltcellar_spool.beacon"]
    assert check([]) == []
    daemon.stop()
    functions["saltcellar.send"]("backup.nightly", 1)
    assert check([]) == []
    assert check([{"bytes": 10_000}]) == []
    (report,) = check([{"bytes": 10}, {"interval": 5}])
    assert (report["entries"], report["lost"]) == (1, {})
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 400)
    assert check([])[0]["oldest_s"] > 300
    assert check([{"age": 1000}]) == []
    minion_opts["saltcellar.spool_bytes_max"] = 1
    salt.loader.returners(minion_opts, functions)["saltcellar.returner"](dict(RETURN, jid=JID))
    (report,) = check([{"age": 1000}])
    assert report["lost"] == {"spool_full": 1}
    assert check([{"age": 1000}]) == [], "only once"


def test_the_beacon_validates_its_configuration(functions, minion_opts):
    validate = salt.loader.beacons(minion_opts, functions)["saltcellar_spool.validate"]
    assert validate([{"age": 5}, {"bytes": 7}]) == (True, "valid")
    for bad, message in (("x", "a list or a map"), ([{"age": "5m"}], "age must be a number"), ([{"bytes": -1}], "bytes must")):
        good, why = validate(bad)
        assert not good and message in why
