"""Salt's job cache, filled by Salt, imported, and exported by the runner: Salt must see no difference.

Needs no master: only Salt's loader and a separate daemon.
"""
import datetime
import json
import os
import subprocess

import conftest
import procs
import pytest
import salt.config
import salt.loader

JIDS = [f"202611011200000000{n:02}" for n in range(5)]
OWN, RUNNER, QUIET, FOREIGN, SYNDIC = JIDS[0], JIDS[1], JIDS[2], "my own jid", JIDS[4]


def options(cachedir, **more):
    """The configuration of a master with this directory."""
    opts = dict(salt.config.DEFAULT_MASTER_OPTS, __role="master", cachedir=str(cachedir), job_cache_store_endtime=True)
    opts.update({key: str(cachedir) for key in ("root_dir", "sock_dir", "pki_dir", "extension_modules")}, **more)
    opts["conf_file"] = str(cachedir / "master")
    return opts


def returner(cachedir, **more):
    """Salt's `local_cache` on a directory."""
    functions = salt.loader.returners(options(cachedir, **more), {})
    return lambda name, *args, **kwargs: functions[f"local_cache.{name}"](*args, **kwargs)


def load(jid, **more):
    return {"cmd": "publish", "tgt": "*", "fun": "test.arg", "arg": [b"\xff\xfe", {"__kwarg__": True, "metadata": {"n": 1}}],
            "tgt_type": "glob", "ret": "", "jid": jid, "user": "root", **more}


def fill(call):
    """Jobs of every kind that a master creates."""
    call("prep_jid", passed_jid=OWN)
    call("save_load", OWN, load(OWN), minions=["web1", "web2", "db1"])
    answers = {"web1": {1: datetime.datetime(2026, 2, 3, 4, 5, 6, 789)}, "web2": "grün", "db1": b"\x00\xff"}
    for number, (minion, answer) in enumerate(answers.items()):
        ret = {"cmd": "_return", "id": minion, "jid": OWN, "fun": "test.arg", "fun_args": [], "return": answer}
        call("returner", dict(ret, retcode=number, success=not number, **({"out": "highstate"} if number else {})))
    call("returner", {"id": "web1", "jid": OWN, "fun": "test.arg", "return": "a second one", "retcode": 0})
    call("update_endtime", OWN, "2026, Nov 01 12:00:09.000001")
    runner = {"fun": "runner.manage.up", "jid": RUNNER, "id": "m_master", "user": "root", "tgt": "m_master",
              "return": {"return": ["web1"], "success": True}}
    call("prep_jid", passed_jid=RUNNER)
    call("save_load", RUNNER, runner, minions=[])
    call("returner", runner)
    call("prep_jid", passed_jid=QUIET, nocache=True)
    call("save_load", QUIET, load(QUIET, fun="test.ping"), minions=["web1"])
    call("returner", {"id": "web1", "jid": QUIET, "fun": "test.ping", "return": True})
    call("prep_jid", passed_jid=FOREIGN)
    call("save_load", FOREIGN, load(FOREIGN, arg=[]), minions=[])
    call("prep_jid", passed_jid=SYNDIC)
    call("save_load", SYNDIC, load(SYNDIC), minions=["near1"])
    call("save_minions", SYNDIC, ["far1", "far2"], syndic_id="syndic1")
    call("save_minions", SYNDIC, ["far3"], syndic_id="syndic2")


def shown(call):
    """Salt's complete view of a job cache."""
    jids = [OWN, RUNNER, QUIET, FOREIGN, SYNDIC, "20200101000000000000"]
    return {
        "get_jids": call("get_jids"),
        "get_jids_filter": [call("get_jids_filter", count, False) for count in (2, 99)],
        **{name: [call(name, jid) for jid in jids] for name in ("get_load", "get_jid", "get_endtime")},
    }


@pytest.fixture
def cellar(tmp_path):
    """A separate daemon; runs `saltcellar` verbs against it and returns their parsed JSON output."""
    binary, socket = os.environ["SALTCELLAR_BIN"], str(tmp_path / "s.sock")
    env = {k: v for k, v in os.environ.items() if not k.startswith("SALTCELLAR_")}

    def run(*args):
        done = subprocess.run([binary, "--socket", socket, "--output", "json", *map(str, args)], env=env, timeout=60,
                              check=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 0, f"{args}: {done.returncode}: {done.stderr}"
        return json.loads(done.stdout) if done.stdout else None

    def export(cachedir, **more):
        functions = salt.loader.runner(options(cachedir, **{"saltcellar.socket": socket}, **more))
        return functions["saltcellar.export_to"]("local_cache")

    run.export = export
    started = []
    with open(tmp_path / "log", "wb") as log:
        procs.spawn([binary, "serve", "--state-dir", str(tmp_path / "state"), "--socket", socket], started.append,
                    stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env)
    try:
        conftest.eventually("the daemon", lambda: os.path.exists(socket))
        yield run
    finally:
        started[0].kill()
        started[0].wait()


def test_an_imported_and_exported_job_cache_is_equal_for_salt(cellar, tmp_path):
    before = returner(tmp_path / "before")
    fill(before)
    expected = shown(before)
    assert len(expected["get_jids"]) == 5 and expected["get_load"][4]["Minions"] == ["far1", "far2", "far3", "near1"]
    done = cellar("import", "local-cache", tmp_path / "before" / "jobs")
    assert (done["skipped"], done["known"], done["kinds"]["returns"]["stored"]) == (0, 0, 4)
    assert cellar("import", "local-cache", tmp_path / "before")["stored"] == 0

    done = cellar.export(tmp_path / "after")
    assert (done["skipped"], done["jobs"]) == (0, 5), done
    after = returner(tmp_path / "after")
    assert shown(after) == expected

    # Through JSON lines into an empty tree with another hash type.
    cellar("export", "jsonl", tmp_path / "all.jsonl")
    assert cellar("import", "jsonl", tmp_path / "all.jsonl")["stored"] == 0
    cellar.export(tmp_path / "other", hash_type="sha512")
    assert shown(returner(tmp_path / "other", hash_type="sha512")) == expected


def test_salt_extends_an_exported_job_cache(cellar, tmp_path):
    fill(returner(tmp_path / "before"))
    cellar("import", "local-cache", tmp_path / "before" / "jobs")
    cellar.export(tmp_path / "after")
    after = returner(tmp_path / "after", keep_jobs_seconds=10, keep_jobs=24)
    young = after("prep_jid")
    after("save_load", young, load(young), minions=["web1"])
    after("returner", {"id": "late1", "jid": OWN, "fun": "test.arg", "return": 1})
    assert "late1" in after("get_jid", OWN)
    # The age of a job in `local_cache` counts from the export.
    after("clean_old_jobs")
    assert set(after("get_jids")) == {young, OWN, RUNNER, QUIET, FOREIGN, SYNDIC}
