"""A forged return on the bus is not a minion's answer: Salt's master authenticates returns, but not its bus."""
import json
import os

from conftest import eventually


def forged(jid, minion, value="forged"):
    return {"jid": jid, "id": minion, "return": value, "retcode": 0, "success": True, "fun": "cmd.run", "cmd": "_return"}


def forge_from_minion(lab, jid, minion, by="lab-1"):
    """Fires an event under the tag of another minion's return, which any minion may do."""
    preload = {"pretag": None, "events": [{"tag": f"salt/job/{jid}/ret/{minion}", "data": forged(jid, minion)}]}
    lab.call(by, "event.fire_master", "{}", "x", f"preload={json.dumps(preload)}")


def forge_from_runner(lab, jid, minion):
    lab.run("event.send", f"salt/job/{jid}/ret/{minion}", f"data={json.dumps(forged(jid, minion))}")


def seen(daemon, jid, minion, count):
    def find():
        events = daemon.events("--tag", f"salt/job/{jid}/ret/{minion}")
        return [e for e in events if e["data"]["return"] == "forged"][count - 1:]
    eventually(f"forged returns of {minion} in the archive", find)


def test_a_forged_event_was_the_answer_of_a_minion_that_had_not_answered(lab, daemon, returners):
    lab.salt("*", "test.ping")
    # Neither minion answers before the test has looked at the forged events.
    flag = f"{lab.lab['dir']}/runs"
    with open(flag, "w"):
        jid = lab.detached("*", "cmd.run", f"while [ -e {flag} ]; do sleep 0.1; done; echo real")
    for count, forge in enumerate((forge_from_minion, forge_from_runner), 1):
        forge(lab, jid, "lab-2")
        seen(daemon, jid, "lab-2", count)
    job = daemon.job(jid)
    assert (job["returned"], job["missing_count"]) == (0, 2)
    assert job["not_confirmed"] == ["lab-2"]
    assert job["missing"] == ["lab-1", "lab-2"] and not job["returns"]
    assert "not confirmed by the master" in daemon.cli("jobs", "show", jid).stdout
    row = next(row for row in daemon.jobs() if row["jid"] == jid)
    assert (row["returned"], row["expected"]) == (0, 2)
    assert lab.run("jobs.lookup_jid", jid) == {}
    assert jid not in returners["saltcellar.get_fun"]("cmd.run").values()
    # The real return arrives and replaces the forged one.
    os.remove(flag)
    eventually("both returns", lambda: daemon.returned(jid) == ["lab-1", "lab-2"])
    forge_from_minion(lab, jid, "lab-2")
    seen(daemon, jid, "lab-2", 3)
    assert lab.run("jobs.lookup_jid", jid) == {"lab-1": "real", "lab-2": "real"}
    job = daemon.job(jid)
    assert [(r["minion"], r["return"], r["bus_only"]) for r in job["returns"]] == [("lab-1", "real", False), ("lab-2", "real", False)]
    assert (job["missing"], job["not_confirmed"]) == ([], [])
    assert [o["return"] for o in job["returns"][1]["others"]] == ["forged"]
    assert returners["saltcellar.get_fun"]("cmd.run") == {"lab-1": jid, "lab-2": jid}
    assert daemon.cli("jobs", "watch", jid).stdout.count("ok, retcode 0\n") == 2


def test_a_forged_job_had_answers(lab, daemon, returners):
    jid = "20260101000000000001"
    forge_from_minion(lab, jid, "lab-2")
    seen(daemon, jid, "lab-2", 1)
    # The output marks a job that is known from the bus only.
    assert [(r["minion"], r["bus_only"]) for r in daemon.job(jid)["returns"]] == [("lab-2", True)]
    assert "seen on the bus only" in daemon.cli("jobs", "show", jid).stdout
    # Queries through Salt follow its configuration: the job cache does not know the job.
    assert returners["saltcellar.get_jid"](jid) == {}
    # A master with another job cache gets the archive's returns, with a remark.
    with daemon.connect() as client:
        assert client.call("get_jid", jid=jid)["lab-2"]["bus_only"] is True
        assert client.call("get_jid", jid=jid, full=True)["lab-2"]["bus_only"] is True
