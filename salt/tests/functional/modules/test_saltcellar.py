"""The execution module and the beacon of minions, loaded by Salt."""

import re
import time

import pytest
import salt.config
import salt.loader

from tests.support.helpers import JID
from tests.support.helpers import RETURN
from tests.support.helpers import Refuse
from tests.support.helpers import with_dirs


@pytest.fixture
def minion_opts(run_dir, opts):
    conf = with_dirs(
        dict(salt.config.DEFAULT_MINION_OPTS, __role="minion", id="web1"), run_dir, opts
    )
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
    assert (shown["reachable"], shown["spool"]["entries"]) == (False, 1)
    assert "no response" in shown["error"]
    # `salt-call` ends with it.
    assert functions.pack["__context__"]["retcode"] == 1
    assert functions["saltcellar.flush"](timeout=0.3)["entries"] == 1
    daemon.start()
    assert functions["saltcellar.flush"]()["entries"] == 0
    (stored,) = daemon.named("returner")
    expected = {
        "id": "web1",
        "jid": jid,
        "fun": "backup.nightly",
        "fun_args": [],
        "return": {"bytes": 5},
    }
    assert stored["load"] == {**expected, "success": False, "retcode": 1}


def test_a_refused_status_shows_a_daemon_that_answers(functions, daemon):
    def refuse(_):
        raise Refuse("refused")

    daemon.answers["status"] = refuse
    shown = functions["saltcellar.status"]()
    assert shown["reachable"] and "version" not in shown


def test_the_beacon_reports_old_and_many_entries_and_losses(
    functions, minion_opts, daemon, monkeypatch
):
    beacons = salt.loader.beacons(minion_opts, functions)

    def check(config):
        """As Salt calls a beacon with an `interval`: it validates the whole configuration, and removes the interval."""
        assert beacons["saltcellar_spool.validate"]([*config, {"interval": 1}])[0]
        return beacons["saltcellar_spool.beacon"](config)

    assert check([]) == []
    daemon.stop()
    functions["saltcellar.send"]("backup.nightly", 1)
    assert check([]) == []
    assert check([{"bytes": 10_000}]) == []
    (report,) = check([{"bytes": 10}])
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
    again = salt.loader.beacons(minion_opts, functions)["saltcellar_spool.beacon"]
    assert again([{"age": 1000}]) == [], "a refresh of the beacons does not report it again"


def test_the_beacon_reports_losses_from_before_its_first_run(functions, minion_opts, daemon):
    daemon.stop()
    minion_opts["saltcellar.spool_bytes_max"] = 1
    salt.loader.returners(minion_opts, functions)["saltcellar.returner"](dict(RETURN, jid=JID))
    (report,) = salt.loader.beacons(minion_opts, functions)["saltcellar_spool.beacon"]([])
    assert report["lost"] == {"spool_full": 1}


def test_the_beacon_looks_once_a_minute_unless_an_interval_is_configured(
    functions, minion_opts, daemon, monkeypatch
):
    daemon.stop()
    functions["saltcellar.send"]("backup.nightly", 1)
    check = salt.loader.beacons(minion_opts, functions)["saltcellar_spool.beacon"]
    assert len(check([{"bytes": 1}])) == 1
    assert check([{"bytes": 1}]) == []
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    assert len(check([{"bytes": 1}])) == 1
    assert check([{"bytes": 1}]) == []


def test_the_beacon_leaves_a_configured_interval_to_salt(functions, minion_opts, daemon):
    """Also if the beacon is configured while the minion runs, which the loader's options do not show before Salt 3008."""
    from salt.beacons import Beacon

    daemon.stop()
    functions["saltcellar.send"]("backup.nightly", 1)
    minion_opts.update(beacons={}, loop_interval=1)
    salts = Beacon(minion_opts, functions)

    def reports(config):
        return len(salts.process({"saltcellar_spool": config}, {}) or [])

    config = [{"bytes": 1}, {"interval": 2}]
    assert [reports(config) for _ in range(6)] == [0, 0, 1, 0, 1, 0]
    assert [reports([{"bytes": 1}]) for _ in range(3)] == [1, 0, 0], (
        "without an interval, once a minute"
    )


@pytest.mark.parametrize("config", [{"age": 5}, ["age"], [1], [{"agee": 5}], "x", None])
def test_a_bad_configuration_of_the_beacon_ends_no_other_beacon(
    functions, minion_opts, config, caplog
):
    """Salt appends to the configuration of a valid beacon, outside of any `try`."""
    from salt.beacons import Beacon

    minion_opts["beacons"] = {"saltcellar_spool": config, "status": [{"time": ["all"]}]}
    if isinstance(config, list) and not all(isinstance(item, dict) for item in config):
        # Salt itself fails on these before it asks the beacon.
        valid, why = salt.loader.beacons(minion_opts, functions)["saltcellar_spool.validate"](
            config
        )
        assert not valid and "each item must be a map" in why
        return
    if config is None or isinstance(config, str):
        valid, why = salt.loader.beacons(minion_opts, functions)["saltcellar_spool.validate"](
            config
        )
        assert not valid and "must be a list" in why
        return
    reported = Beacon(minion_opts, functions).process(minion_opts["beacons"], {})
    assert [one["tag"] for one in reported if "/status/" in one["tag"]], "the other beacon ran"
    assert "Beacon saltcellar_spool configuration invalid, not running" in caplog.text


def test_two_minions_in_a_process_store_under_their_own_id(functions, minion_opts, daemon, run_dir):
    """Loaders of one kind share their modules, and so the module's own `__opts__`."""
    other = dict(minion_opts, id="web2", cachedir=str(run_dir / "other"))
    other["saltcellar.spool_dir"] = str(run_dir / "other" / "spool")
    others = salt.loader.minion_mods(other)
    others["saltcellar.status"]()
    functions["saltcellar.send"]("a.b", 1)
    others["saltcellar.send"]("a.b", 2)
    functions["saltcellar.send"]("a.b", 3)
    assert [args["load"]["id"] for args in daemon.named("returner")] == ["web1", "web2", "web1"]
    daemon.stop()
    functions["saltcellar.send"]("a.b", 4)
    beacon = salt.loader.beacons(minion_opts, functions)["saltcellar_spool.beacon"]
    theirs = salt.loader.beacons(other, others)["saltcellar_spool.beacon"]
    assert theirs([{"bytes": 1}]) == []
    assert len(beacon([{"bytes": 1}])) == 1


@pytest.mark.parametrize("nocache", [False, True])
def test_the_return_of_a_startup_state_gets_a_jid(functions, minion_opts, daemon, nocache):
    """A masterless minion passes it with the jid `req`, and `local_cache.returner` makes one."""
    load = dict(RETURN, jid="req", fun="state.highstate", nocache=nocache)
    salt.loader.returners(minion_opts, functions)["saltcellar.returner"](load)
    assert re.fullmatch(r"\d{20}", load["jid"])
    assert [args["load"]["jid"] for args in daemon.named("returner")] == (
        [] if nocache else [load["jid"]]
    )


def test_the_beacon_validates_its_configuration(functions, minion_opts):
    validate = salt.loader.beacons(minion_opts, functions)["saltcellar_spool.validate"]
    assert validate([{"age": 5}, {"bytes": 7}]) == (True, "valid")
    assert validate([{"interval": 5}, {"enabled": True}, {"_beacon_name": "x"}]) == (True, "valid")
    for bad, message in (
        ("x", "must be a list"),
        ({"age": 5}, "must be a list"),
        ([{"agee": 5}], "unknown key agee"),
        ([{"age": "5m"}], "age must be a number"),
        ([{"bytes": -1}], "bytes must"),
    ):
        good, why = validate(bad)
        assert not good and message in why
