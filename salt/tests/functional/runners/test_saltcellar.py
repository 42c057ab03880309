"""The runner, loaded by Salt, with a real daemon and real returners."""

import datetime
import gc
import inspect
import os
import pathlib
import re
import shutil
import warnings

import pytest
import salt.loader
import salt.payload
import salt.utils.jid
from salt.exceptions import CommandExecutionError
from salt.exceptions import SaltInvocationError

from saltext.saltcellar.utils import transfer

JIDS = [f"202611011200000000{n:02}" for n in range(0, 12, 2)]
FOREIGN = "my own jid"


def load(jid, **more):
    return {
        "cmd": "publish",
        "tgt": "*",
        "fun": "test.arg",
        "arg": ["a"],
        "tgt_type": "glob",
        "jid": jid,
        "user": "root",
        **more,
    }


def answer(jid, minion="web1", **more):
    return {
        "id": minion,
        "jid": jid,
        "fun": "test.arg",
        "fun_args": ["a"],
        "return": {"of": minion},
        "retcode": 0,
        "success": True,
        **more,
    }


@pytest.fixture
def opts(opts, cellar):
    return {**opts, "saltcellar.socket": cellar.socket}


@pytest.fixture
def master_opts(master_opts, run_dir):
    master_opts["conf_file"] = str(run_dir / "master")
    master_opts.update(
        {
            "sqlite3.database": str(run_dir / "salt.db"),
            "sqlite3.timeout": 5,
            "job_cache_store_endtime": True,
        }
    )
    return master_opts


class Runner:
    """The functions of the runner, and the exit code that `salt-run` would have after the last one."""

    def __init__(self, opts):
        self.functions, self.code = salt.loader.runner(opts), None

    def __call__(self, name, *args, **kwargs):
        context = self.functions.pack["__context__"]
        context.pop("retcode", None)
        try:
            return self.functions[f"saltcellar.{name}"](*args, **kwargs)
        finally:
            self.code = context.get("retcode", 0)


@pytest.fixture
def runner(master_opts):
    return Runner(master_opts)


@pytest.fixture
def other(master_opts, run_dir):
    """A returner of Salt beside saltcellar."""

    def make(name):
        functions = salt.loader.returners(master_opts, salt.loader.minion_mods(dict(master_opts)))
        if f"{name}.save_load" not in functions:
            pytest.skip(f"this release of Salt has no returner {name}")
        if name == "sqlite3":
            import sqlite3

            with sqlite3.connect(run_dir / "salt.db") as db:
                db.execute("CREATE TABLE jids (jid TEXT PRIMARY KEY, load TEXT)")
                db.execute(
                    "CREATE TABLE salt_returns (fun TEXT, jid TEXT, id TEXT, fun_args TEXT, date TEXT, full_ret TEXT, success TEXT)"
                )
        return lambda function, *args, **kwargs: functions[f"{name}.{function}"](*args, **kwargs)

    return make


def fill(call, jids=JIDS, minions=("web1",)):
    for jid in jids:
        call("prep_jid", passed_jid=jid)
        call("save_load", jid, load(jid), minions=[*minions, "late"])
        for minion in minions:
            call("returner", answer(jid, minion))


#: 3008 has no sqlite3; salt_cache is new in it.
@pytest.mark.parametrize("name", ["local_cache", "sqlite3", "salt_cache"])
def test_jobs_go_from_a_returner_to_the_daemon_and_back(
    name, other, runner, cellar, master_opts, run_dir, all_closed
):
    call = other(name)
    minions = ("web1",) if name == "sqlite3" else ("web1", "web2")
    fill(call, minions=minions)
    done = runner("import_from", name)
    expected = len(JIDS) * (1 + len(minions))
    assert (done["jobs"], done["stored"], done["skipped"]) == (len(JIDS), expected, 0), done
    assert runner("import_from", name)["stored"] == 0
    shown = runner("job", JIDS[0])
    assert (shown["fun"], shown["tgt"], shown["returned"]) == ("test.arg", "*", len(minions))
    assert shown["time"] == "2026-11-01T12:00:00.000000Z"
    if name == "local_cache":
        assert runner("missing", JIDS[0]) == ["late"]
    # A return that arrives later, and a job.
    cellar.ask("returner", load=answer(JIDS[0], "late"))
    cellar.ask("save_load", jid=FOREIGN, load=load(FOREIGN), minions=["web1"])
    done = runner("export_to", name)
    assert (done["skipped"], done["jobs"]) == (0, len(JIDS) + 1), done
    assert done["stored"] == 2
    if name != "sqlite3":
        assert set(call("get_jid", JIDS[0])) == {"web1", "web2", "late"}
        assert call("get_jid", JIDS[0])["late"]["return"] == {"of": "late"}
        assert runner("export_to", name)["stored"] == 0
    assert call("get_load", FOREIGN)["fun"] == "test.arg"


def test_an_end_time_and_bytes_and_dates_survive_both_ways(other, runner, cellar):
    call = other("local_cache")
    fill(call, JIDS[:1])
    value = {"b": b"\xff\x00", "d": datetime.datetime(2026, 2, 3, 4, 5, 6, 789), 5: "five"}
    call("returner", answer(JIDS[0], "odd", **{"return": value}))
    call("update_endtime", JIDS[0], "2026, Nov 01 12:00:09.000001")
    runner("import_from", "local_cache")
    assert cellar.ask("get_jid", jid=JIDS[0])["odd"]["return"] == value
    assert cellar.ask("get_endtime", jid=JIDS[0]) == "2026, Nov 01 12:00:09.000001"


@pytest.mark.parametrize("verb", ["import_from", "export_to"])
def test_an_interrupted_copy_continues_where_it_stopped(verb, other, runner, cellar, monkeypatch):
    call = other("local_cache")
    if verb == "import_from":
        fill(call)
        side = transfer.Daemon
    else:
        for jid in JIDS:
            cellar.ask("save_load", jid=jid, load=load(jid), minions=["web1"])
        side = transfer.Returner
    store, seen = side.store, []

    def interrupted(self, job, known):
        if job.jid == JIDS[3] and not seen:
            seen.append(job.jid)
            raise KeyboardInterrupt
        return store(self, job, known)

    monkeypatch.setattr(side, "store", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner(verb, "local_cache")
    done = runner(verb, "local_cache")
    assert (done["resumed_at"], done["jobs"], done["unchanged"]) == (JIDS[3], 3, 0)
    # A complete copy compares everything again.
    done = runner(verb, "local_cache")
    assert (done.get("resumed_at"), done["jobs"], done["stored"]) == (None, len(JIDS), 0)
    assert runner(verb, "local_cache", start=JIDS[5])["jobs"] == 1


def test_a_job_that_cannot_be_read_is_named_and_skipped(other, runner, master_opts, monkeypatch):
    call = other("local_cache")
    fill(call)
    read = transfer.Returner.job

    def damaged(self, jid):
        if jid == JIDS[1]:
            raise ValueError("damaged on disk")
        return read(self, jid)

    monkeypatch.setattr(transfer.Returner, "job", damaged)
    done = runner("import_from", "local_cache")
    assert (done["jobs"], done["skipped"], done["problems"]) == (
        len(JIDS) - 1,
        1,
        [f"{JIDS[1]}: damaged on disk"],
    )
    assert runner.code == 1


def test_a_damaged_job_cache_costs_only_its_damaged_jobs(
    other, runner, cellar, master_opts, monkeypatch
):
    """What a crash leaves in `local_cache`: one file of it ends, or never ends, a look at the job, or at all jobs."""
    monkeypatch.setattr(transfer, "JOB_TIMEOUT_S", 2.0)
    call = other("local_cache")
    fill(call)

    def directory(jid):
        return pathlib.Path(
            salt.utils.jid.jid_dir(
                jid, os.path.join(master_opts["cachedir"], "jobs"), master_opts["hash_type"]
            )
        )

    # Raises the same class of exception as an unreachable daemon.
    (directory(JIDS[1]) / ".minions.p").unlink()
    # `get_jid` reads it again and again.
    torn = directory(JIDS[2]) / "web1" / "return.p"
    torn.write_bytes(torn.read_bytes()[:-3])
    # Ends `get_jids`.
    (directory(JIDS[3]) / ".load.p").write_bytes(salt.payload.dumps({"fun": "test.arg"}))
    done = runner("import_from", "local_cache")
    named = {problem.split(":")[0]: problem for problem in done["problems"]}
    assert set(named) in ({JIDS[1], JIDS[2]}, {JIDS[2]}), (
        "releases differ in what they do without .minions.p"
    )
    assert "could not be read within 2 s" in named[JIDS[2]]
    assert (done["jobs"], done["skipped"], runner.code) == (len(JIDS) - len(named), len(named), 1)
    for jid in set(JIDS) - set(named):
        assert set(cellar.ask("get_jid", jid=jid)) == {"web1"}, jid
    # The same on the way back: the damaged job is named, the others go on. One has come new.
    cellar.ask("save_load", jid=FOREIGN, load=load(FOREIGN), minions=["web1"])
    cellar.ask("save_load", jid=JIDS[2], load=load(JIDS[2]), minions=["web1"])
    cellar.ask("save_load", jid=JIDS[1], load=load(JIDS[1]), minions=["web1"])
    done = runner("export_to", "local_cache")
    assert {problem.split(":")[0] for problem in done["problems"]} == set(named)
    assert (done["jobs"], done["skipped"], runner.code) == (
        len(JIDS) + 1 - len(named),
        len(named),
        1,
    )
    assert call("get_load", FOREIGN)["fun"] == "test.arg"
    # Without the damaged jobs nothing fails.
    for jid in named:
        shutil.rmtree(directory(jid))
    done = runner("export_to", "local_cache")
    assert (done["skipped"], runner.code) == (0, 0)


def test_a_failing_daemon_stops_a_copy(other, runner, cellar):
    fill(other("local_cache"))
    cellar.stop()
    with pytest.raises(CommandExecutionError, match="no response from the saltcellar daemon"):
        runner("import_from", "local_cache")


def test_a_return_that_was_only_on_the_bus_is_imported_again(other, runner, cellar):
    tag = f"salt/job/{JIDS[0]}/ret/web1"
    cellar.ask("event_return", events=[{"tag": tag, "data": answer(JIDS[0])}])
    fill(other("local_cache"), JIDS[:1])
    assert runner("import_from", "local_cache")["stored"] == 2


def test_events_are_exported_in_batches_and_only_on_request(
    runner, cellar, master_opts, monkeypatch
):
    monkeypatch.setattr(transfer, "PAGE", 2)
    cellar.ask("event_return", events=[{"tag": f"my/{n}", "data": {"n": n}} for n in range(5)])
    got = []
    monkeypatch.setattr(transfer.Returner, "store_events", lambda self, events: got.append(events))
    assert "events" not in runner("export_to", "local_cache")
    made = transfer.Returner.__init__
    monkeypatch.setattr(
        transfer.Returner,
        "__init__",
        lambda self, name, opts, needed: made(self, name, opts, needed[:4]),
    )
    assert runner("export_to", "local_cache", events=True)["events"] == 5
    assert [len(batch) for batch in got] == [2, 2, 1]
    assert [event["tag"] for batch in got for event in batch] == [f"my/{n}" for n in range(5)]


@pytest.fixture
def all_closed():
    """3008 warns of each minion that is not closed."""
    gc.collect()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(one.message) for one in seen if "MasterMinion" in str(one.message)] == []


def test_a_returner_that_cannot_be_used_is_named(runner, all_closed):
    with pytest.raises(CommandExecutionError, match="the returner nosuch cannot be used: .*nosuch"):
        runner("import_from", "nosuch")
    with pytest.raises(
        CommandExecutionError, match="the returner local_cache cannot be used: .*event_return"
    ):
        runner("export_to", "local_cache", events=True)
    with pytest.raises(CommandExecutionError, match="name another returner"):
        runner("export_to", "saltcellar")


def test_look_ups_have_readable_times_and_the_values_of_jobs_unchanged(runner, cellar):
    value = {"time": 5, "since": {"until": 7}}
    jid = JIDS[0]
    cellar.ask("save_load", jid=jid, load=load(jid), minions=["web1", "web2"])
    cellar.ask("returner", load=answer(jid, **{"return": value}))
    cellar.ask("event_return", events=[{"tag": "my/tag", "data": {"time": 3}}])
    (row,) = runner("jobs", fun="test.*", minion="web1")["jobs"]
    assert (row["jid"], row["missing_count"], row["time"]) == (
        jid,
        1,
        "2026-11-01T12:00:00.000000Z",
    )
    assert runner("job", jid)["returns"][0]["return"] == value
    assert runner("missing", jid) == ["web2"]
    assert [row["jid"] for row in runner("missing")["jobs"]] == [jid]
    (event,) = runner("events", tag="my/*")["events"]
    assert event["data"] == {"time": 3} and event["time"].endswith("Z")
    assert runner("status")["pid"] == cellar.process.pid
    assert runner("hold", jid, reason="why not")["reason"] == "why not"
    assert [held["jid"] for held in runner("hold")["holds"]] == [jid]
    runner("hold", jid, release=True)
    assert runner("hold")["holds"] == []
    assert runner("states", jid)["states"] == []
    again = JIDS[1]
    cellar.ask("save_load", jid=again, load=load(again), minions=["web1", "web2"])
    cellar.ask("returner", load=answer(again, **{"return": 1}))
    assert [one["minion"] for one in runner("diff", again, jid)["minions"]] == ["web1"]


def test_events_are_paged_and_searched_with_the_names_of_the_call(runner, cellar):
    cellar.ask(
        "event_return",
        events=[{"tag": f"my/{n}", "data": {"text": f"number {n}"}} for n in range(5)],
    )
    first = runner("events", tag="my/*", limit=2)
    second = runner("events", tag="my/*", limit=2, cursor=first["next"])
    assert [row["tag"] for row in first["events"] + second["events"]] == [
        "my/4",
        "my/3",
        "my/2",
        "my/1",
    ]
    for more in (
        {"search": "number 3"},
        {"where": "data.text == 'number 3'"},
        {"match": [{"tag": "my/3"}]},
    ):
        assert [row["tag"] for row in runner("events", **more)["events"]] == ["my/3"], more


@pytest.mark.parametrize("function", ["job", "missing", "states", "diff"])
def test_an_unknown_job_is_an_error(runner, function):
    with pytest.raises(CommandExecutionError, match=JIDS[0]):
        runner(function, JIDS[0])


def test_each_parameter_of_a_function_is_documented(runner):
    for name, function in runner.functions.items():
        if name.startswith("saltcellar."):
            for parameter in inspect.signature(function).parameters:
                # The jid, the tag and the other returner are what the first sentence is about.
                if parameter not in ("jid", "tag", "returner", "start"):
                    assert re.search(
                        rf"^    (.*, )?`*{parameter}`*(, .*)?$", function.__doc__, re.M
                    ), f"{name}: {parameter}"


def test_refusals_and_bad_arguments_name_the_cause(runner, cellar):
    with pytest.raises(
        CommandExecutionError, match="refused reactor_why: no reactor is configured"
    ):
        runner("why", "a/tag")
    with pytest.raises(
        CommandExecutionError, match="refused reactor_replay: no reactor is configured"
    ):
        runner("replay", 5)
    with pytest.raises(SaltInvocationError, match="not a time: 'soon'"):
        runner("jobs", since="soon")
    with pytest.raises(SaltInvocationError, match="hold needs a reason"):
        runner("hold", JIDS[0])
    cellar.stop()
    with pytest.raises(
        CommandExecutionError, match=r"no response from the saltcellar daemon at .*d\.sock"
    ):
        runner("status")


def test_doctor_runs_the_program(runner, program, monkeypatch, run_dir):
    monkeypatch.setenv("PATH", str(run_dir))
    with pytest.raises(CommandExecutionError, match="no program `saltcellar` in PATH"):
        runner("doctor")
    (run_dir / "saltcellar").symlink_to(program)
    checks = {one["check"]: one["result"] for one in runner("doctor")["checks"]}
    assert checks["daemon"] == "ok", checks
    # Another user of the host could have put it there.
    run_dir.chmod(0o777)
    with pytest.raises(
        CommandExecutionError,
        match=r"another user could replace it: anyone can write to .*chmod o-w",
    ):
        runner("doctor")
