"""The command line against a daemon with real data, and against none."""
import json

import procs
import pytest
from conftest import WAIT_MAX, eventually


@pytest.fixture(scope="module")
def jid(lab, daemon):
    jid = lab.publish("*", "test.echo", "for the table")
    eventually("both returns", lambda: len(daemon.returned(jid)) == 2)
    return jid


def test_jobs_are_listed_as_a_table(daemon, jid):
    out = daemon.cli("jobs", "list").stdout
    line = next(text for text in out.splitlines() if jid in text)
    assert "test.echo" in line
    assert "\033" not in out  # no terminal, no colours


def test_jobs_as_json_and_as_lines(daemon, jid):
    answer = daemon.json("jobs", "list", "--limit", "3")
    assert isinstance(answer["more"], bool)
    lines = daemon.cli("jobs", "list", "--limit", "3", "--output", "jsonl").stdout.splitlines()
    assert [json.loads(text)["jid"] for text in lines] == [j["jid"] for j in answer["jobs"]]
    row = next(j for j in daemon.jobs() if j["jid"] == jid)
    assert (row["fun"], row["arg"], row["tgt"], row["tgt_type"]) == ("test.echo", ["for the table"], "*", "glob")
    assert (row["expected"], row["returned"], row["failed"]) == (2, 2, 0)


def test_a_job_is_shown_in_full(daemon, jid):
    out = daemon.cli("jobs", "show", jid).stdout
    assert jid in out and "lab-1" in out and "lab-2" in out and "for the table" in out
    job = daemon.job(jid)
    assert (sorted(job["minions"]), job["missing"]) == (["lab-1", "lab-2"], [])
    assert {r["minion"]: r["return"] for r in job["returns"]} == {m: "for the table" for m in ("lab-1", "lab-2")}


def test_the_last_events(daemon, jid):
    assert len(daemon.json("events", "list", "--limit", "5")["events"]) == 5
    lines = daemon.cli("events", "list", "--tag", f"salt/job/{jid}/*", "--output", "jsonl").stdout.splitlines()
    assert {f"salt/job/{jid}/ret/{m}" for m in ("lab-1", "lab-2")} <= {json.loads(text)["tag"] for text in lines}
    assert f"salt/job/{jid}/new" in daemon.cli("events", "list", "--tag", f"salt/job/{jid}/*").stdout


def test_status_names_the_bus(daemon, lab):
    status = daemon.status()
    assert status["pid"] == daemon.process.pid
    assert status["durable"] <= status["head"]
    assert status["bus"][0]["connected"] is True
    want = "len32" if lab.lab["release"].startswith("3006.28") else "plain"
    assert status["bus"][0]["framing"] == want


def test_without_a_daemon_the_error_names_the_socket(daemon, root, lab):
    nowhere = f"{root}/nowhere.sock"
    p = procs.run([daemon.bin, "jobs", "list", "--socket", nowhere], timeout=WAIT_MAX, text=True,
                  stdout=procs.subprocess.PIPE, stderr=procs.subprocess.PIPE)
    assert p.returncode == 69
    assert nowhere in p.stderr and "saltcellar serve" in p.stderr
    assert p.stdout == ""


def test_bad_usage_has_a_separate_exit_code(daemon):
    assert daemon.cli("jobs", "lost", check=False).returncode == 64


def test_version_needs_no_daemon(daemon):
    assert procs.run([daemon.bin, "version"], stdout=procs.subprocess.PIPE, timeout=WAIT_MAX).returncode == 0
