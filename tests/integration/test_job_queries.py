"""Queries about jobs beyond Salt's own, on jobs of a real master."""
import salt_lab
from conftest import eventually

ORCHESTRATION = """\
states everywhere:
  salt.state:
    - tgt: '*'
    - sls: [works]
one function:
  salt.function:
    - name: test.echo
    - tgt: lab-2
    - arg: [hi]
"""


def test_an_orchestration_knows_its_jobs_and_they_know_it(lab, daemon):
    salt_lab.write(f"{lab.lab['dir']}/srv/salt/orch.sls", ORCHESTRATION)
    lab.command("salt-run", "state.orchestrate", "orch")
    row = eventually("its result", lambda: [j for j in daemon.jobs("--fun", "runner.state.*") if j["returned"]])[0]
    job = daemon.job(row["jid"])
    assert [(c["fun"], c["id"], c["result"]) for c in job["children"]] == [
        ("salt.state", "states everywhere", True), ("salt.function", "one function", True)]
    assert (job["failed"], job["arg"][0]) == (0, "orch")
    for child in job["children"]:
        assert daemon.job(child["jid"])["parent"] == row["jid"]
    # The output of Salt itself.
    shown = daemon.cli("jobs", "show", row["jid"], "--format", "highstate").stdout
    looked_up = lab.command("salt-run", "jobs.lookup_jid", row["jid"], "--out=highstate").stdout
    assert shown.strip() == looked_up.strip()


def test_states_watched_shown_and_compared(lab, daemon):
    jids = []
    for _ in range(2):
        jids.append(lab.detached("*", "state.apply", "works"))
        watched = daemon.cli("jobs", "watch", jids[-1]).stdout
        assert "2/2 returned, 0 failed" in watched
        assert "lab-1: ok, retcode 0" in watched
    states = daemon.json("jobs", "states", jids[0])["states"]
    assert [(s["minion"], s["fun"], s["changed"]) for s in states] == [
        (m, "test.succeed_with_changes", True) for m in ("lab-1", "lab-2")]
    assert "no differences" in daemon.cli("jobs", "diff", jids[1]).stdout
    for form, out in (("salt", "nested"), ("highstate", "highstate")):
        shown = daemon.cli("jobs", "show", jids[0], "--format", form).stdout
        assert shown.strip() == lab.command("salt-run", "jobs.lookup_jid", jids[0], f"--out={out}").stdout.strip()
