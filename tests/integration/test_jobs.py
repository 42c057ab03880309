"""Salt's commands get correct answers from saltcellar."""
import datetime
import math
import os

import pytest
from conftest import eventually

BOTH = ["lab-1", "lab-2"]


def done(daemon, jid):
    """Waits until both minions' returns of this job are stored."""
    eventually(f"both returns of {jid}", lambda: daemon.returned(jid) == BOTH)
    return jid


def newest(daemon, **want):
    """The newest job with these values in its row."""
    def find():
        return next((j for j in daemon.jobs() if all(j[k] == v for k, v in want.items())), None)
    return eventually(f"a job with {want}", find)


@pytest.fixture(scope="module")
def echo(lab, daemon):
    """A job with a known target and arguments, whose returns arrived after its publish."""
    return done(daemon, lab.detached("lab-*", "test.echo", "a word"))


def test_ping_answers(lab, daemon):
    assert lab.salt("*", "test.ping") == {"lab-1": True, "lab-2": True}
    job = newest(daemon, fun="test.ping")
    assert (job["tgt"], job["tgt_type"], job["expected"]) == ("*", "glob", 2)
    done(daemon, job["jid"])


def test_an_asynchronous_job_is_looked_up(lab, echo):
    assert lab.run("jobs.lookup_jid", echo) == {m: "a word" for m in BOTH}


def test_a_list_shows_the_publish_not_the_last_return(lab, echo):
    row = lab.run("jobs.list_jobs")[echo]
    assert row["Function"] == "test.echo"
    assert row["Arguments"] == ["a word"]
    assert row["Target"] == "lab-*"
    assert row["Target-type"] == "glob"
    assert row["StartTime"].startswith(f"{echo[:4]}, ")


def test_a_filtered_list_is_oldest_first(lab, echo):
    rows = lab.run("jobs.list_jobs_filter", "50")
    jids = [r["JID"] for r in rows]
    assert echo in jids
    assert jids == sorted(jids)
    assert len(lab.run("jobs.list_jobs_filter", "2")) == 2


def test_list_job_has_the_minions_and_their_results(lab, echo):
    job = lab.run("jobs.list_job", echo)
    assert job["Target"] == "lab-*"
    assert sorted(job["Minions"]) == BOTH
    assert {m: r["return"] for m, r in job["Result"].items()} == {m: "a word" for m in BOTH}


def test_print_job(lab, echo):
    job = lab.run("jobs.print_job", echo)[echo]
    assert job["Function"] == "test.echo"
    assert sorted(job["Result"]) == BOTH


def test_exit_success_reads_the_stored_returns(lab, daemon, echo):
    assert lab.run("jobs.exit_success", echo) == {m: True for m in BOTH}
    no = done(daemon, lab.publish("*", "test.false"))
    assert lab.run("jobs.exit_success", no) == {m: False for m in BOTH}


def test_last_run_finds_the_job_by_function(lab, echo):
    last = lab.run("jobs.last_run", "function=test.echo")
    assert list(last) == [echo]


def test_a_running_job_is_active(lab, daemon):
    # It runs while a file exists: until the test has looked at it, independent of the system's speed.
    flag = f"{lab.lab['dir']}/runs"
    with open(flag, "w"):
        jid = lab.detached("*", "cmd.run", f"while [ -e {flag} ]; do sleep 0.1; done")
    try:
        def both():
            job = lab.run("jobs.active").get(jid)
            return job if job and sorted(m for r in job["Running"] for m in r) == BOTH else None
        job = eventually("the job among the active ones, on both minions", both)
        assert job["Function"] == "cmd.run"
        assert daemon.returned(jid) == []
    finally:
        os.remove(flag)
    done(daemon, jid)
    eventually("the job to be inactive", lambda: jid not in lab.run("jobs.active"))


def test_a_minion_reads_the_job_cache(lab, daemon, echo):
    assert echo in lab.call("lab-1", "ret.get_jids", "saltcellar")
    assert {m: r["return"] for m, r in lab.call("lab-1", "ret.get_jid", "saltcellar", echo).items()} \
        == {m: "a word" for m in BOTH}
    assert lab.call("lab-2", "ret.get_fun", "saltcellar", "test.echo") == {m: echo for m in BOTH}
    assert set(BOTH) <= set(lab.call("lab-2", "ret.get_minions", "saltcellar"))


def test_salt_call_creates_a_job(lab, daemon):
    """Its return reaches the master under the jid `req`, and gets a new jid there."""
    assert lab.call("lab-1", "test.arg", "from salt-call") is not None
    job = newest(daemon, fun="test.arg")
    assert job["jid"].isdigit()
    assert daemon.returned(job["jid"]) == ["lab-1"]
    assert daemon.job("req") is None
    assert "req" not in lab.run("jobs.list_jobs")


def test_a_return_sent_by_minion_and_master_is_stored_once(lab, daemon):
    """`--return`: the minion calls the returner, and the master's job cache gets the same return."""
    assert lab.salt("lab-1", "test.echo", "by two ways", "--return", "saltcellar") == {"lab-1": "by two ways"}
    job = newest(daemon, arg=["by two ways"])
    eventually("the return", lambda: daemon.returned(job["jid"]) == ["lab-1"])
    full = daemon.job(job["jid"])
    assert full["load"]["ret"] == "saltcellar"
    assert [(r["return"], r["duplicates"]) for r in full["returns"]] == [("by two ways", 0)]


def test_a_masterless_salt_call_is_stored(lab, daemon):
    """`salt-call --local --return`: there is no publish, so the return is the only source."""
    assert lab.call("lab-2", "--local", "--return", "saltcellar", "test.echo", "alone") == "alone"

    def kept():
        jobs = (daemon.job(j["jid"]) for j in daemon.jobs("--fun", "test.echo", "--minion", "lab-2"))
        return [(r["minion"], r["return"]) for j in jobs for r in j["returns"] if r.get("fun_args") == ["alone"]]
    assert eventually("the return", kept) == [("lab-2", "alone")]


def test_a_failed_state_is_shown_as_failed(lab, daemon):
    lab.salt("*", "state.apply", "fails")
    job = newest(daemon, fun="state.apply")
    done(daemon, job["jid"])
    full = daemon.job(job["jid"])
    assert [r["retcode"] for r in full["returns"]] == [2, 2]
    assert newest(daemon, fun="state.apply")["failed"] == 2
    assert newest(daemon, fun="state.apply")["tgt"] == "*"


def test_a_job_of_several_functions(lab, daemon):
    want = {"test.ping": True, "test.echo": "hi"}
    assert lab.salt("*", "test.ping,test.echo", ",hi") == {m: want for m in BOTH}
    job = newest(daemon, arg=[[], ["hi"]])
    done(daemon, job["jid"])
    assert lab.run("jobs.lookup_jid", job["jid"]) == {m: want for m in BOTH}
    assert lab.run("jobs.list_jobs")[job["jid"]]["Function"] == ["test.ping", "test.echo"]


def test_unusual_values_are_unchanged(lab, daemon, returners):
    jid = lab.publish("lab-1", "labmod.awkward")
    eventually("the return", lambda: daemon.returned(jid) == ["lab-1"])
    got = returners["saltcellar.get_jid"](jid)["lab-1"]["return"]
    assert got["bytes"] == b"\x00\xff\xfe not utf-8"
    assert got["date"] == datetime.datetime(2026, 2, 3, 4, 5, 6, 789)
    assert got[1] == "int key"
    assert got[""] == "empty key"
    assert (got["int64"], got["uint64"], got["negative"]) == (2**63 - 1, 2**64 - 1, -(2**63))
    assert math.isnan(got["nan"]) and got["inf"] == math.inf and got["float"] == 0.1
    assert got["unicode"] == "žluťoučký 🐴 \u0000 end"
    assert (got["tuple"], got["set"]) == ([1, 2], [1])
    # and as JSON, which cannot express some of them
    shown = daemon.job(jid)["returns"][0]["return"]
    assert shown["bytes"] == {"$bin": "AP/+IG5vdCB1dGYtOA=="}
    assert shown["$1"] == "int key"
    assert shown["nan"] == {"$float": "nan"}
    assert list(shown["date"]) == ["$datetime"]


def test_a_return_of_bytes_stays_bytes(lab, daemon, returners):
    jid = lab.publish("*", "labmod.raw_bytes")
    done(daemon, jid)
    assert {m: r["return"] for m, r in returners["saltcellar.get_jid"](jid).items()} \
        == {m: b"\x80\x81\x82" for m in BOTH}


def test_a_return_of_a_megabyte_is_unchanged(lab, daemon, returners):
    jid = lab.publish("lab-2", "labmod.packages")
    eventually("the return", lambda: daemon.returned(jid) == ["lab-2"])
    assert len(returners["saltcellar.get_jid"](jid)["lab-2"]["return"]) == 9000


def test_a_runner_is_looked_up(lab, daemon):
    assert lab.run("labrun.progress", "2") == {"done": 2}
    job = newest(daemon, fun="runner.labrun.progress")
    eventually("its result", lambda: daemon.returned(job["jid"]))
    assert {"done": 2} in flat(lab.run("jobs.lookup_jid", job["jid"]))


def test_a_wheel_is_looked_up(lab, daemon):
    """3006 and 3007 assign two jids to a wheel called through the request port, and store it under the inner one."""
    data = lab.wheel("key.list_all")
    assert sorted(data["return"]["minions"]) == BOTH
    job = newest(daemon, fun="wheel.key.list_all")
    if not lab.lab["release"].startswith(("3006.", "3007.")):
        assert job["jid"] == data["jid"]
    eventually("its result", lambda: daemon.returned(job["jid"]))
    found = [v for v in flat(lab.run("jobs.lookup_jid", job["jid"])) if isinstance(v, dict) and "minions" in v]
    assert sorted(found[0]["minions"]) == BOTH


def flat(value):
    """The value and all nested values: results of runners are nested differently by release."""
    yield value
    for v in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from flat(v)


def test_an_unknown_jid_is_unknown(lab, daemon):
    jid = "20200101000000000000"
    assert lab.run("jobs.lookup_jid", jid) == {}
    assert daemon.job(jid) is None
