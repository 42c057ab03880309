"""Loops of reactions on a real master, runners after a key problem, and a master with another transport.

Each rule of a loop matches `loop/<name>/*`, and its reaction causes `loop/<name>/next`.
"""
import os

import pytest
import salt_lab
from conftest import Reactor, eventually, live_lab, running

DEPTH_MAX = 2

SLS = {
    "loop/job/*": """
send the next:
  local.event.send:
    - tgt: lab-1
    - args:
      - tag: loop/job/next
""",
    "loop/runner/*": """
send the next:
  runner.event.send:
    - args:
      - tag: loop/runner/next
      - data:
          word: again
""",
    **{f"loop/{name}/*": f"""
orchestrate:
  runner.state.orchestrate:
    - args:
      - mods: orch.{name}
""" for name in ("function", "nested")},
    "key/*": """
run it:
  runner.test.arg:
    - args: [after the key problem]
""",
}
ORCHESTRATIONS = {
    "function": """
send the next:
  salt.function:
    - name: event.send
    - tgt: lab-1
    - arg:
      - loop/function/next
""",
    "nested": """
send the next:
  salt.runner:
    - name: event.send
    - tag: loop/nested/next
    - data:
        word: again
""",
}
LOOPS = [pattern.split("/")[1] for pattern in SLS if pattern.startswith("loop/")]


@pytest.fixture(scope="module")
def loops(place):
    rules = []
    for n, (pattern, text) in enumerate(SLS.items()):
        salt_lab.write(f"{place}/{n}.sls", text)
        rules.append({pattern: [f"{place}/{n}.sls"]})
    for name, text in ORCHESTRATIONS.items():
        salt_lab.write(f"{place}/lab/srv/salt/orch/{name}.sls", text)
    with live_lab(f"{place}/lab", minions=1, master_conf={"reactor": rules, "engines": ["saltcellar-reactor"]}) as lab:
        with running(Reactor(f"{place}/sc", lab.sock_dir, master=f"{lab.lab['dir']}/conf/master", depth_max=DEPTH_MAX)) as d:
            d.wait_for_bus()
            yield lab, d


def test_loops_through_jobs_runners_and_orchestrations_never_stopped(loops):
    lab, d = loops
    for name in LOOPS:
        lab.fire(f"loop/{name}/first", {})

    def ended():
        return d.status()["counters"]["reactions_skipped_depth"] == len(LOOPS)
    eventually("each loop to end", ended)
    times = {name: len(d.events("--tag", f"loop/{name}/next")) for name in LOOPS}
    assert times == dict.fromkeys(LOOPS, DEPTH_MAX + 1)
    assert [one["result"] for one in d.doctor("reactor.loops")] == ["warning"]


def test_after_a_key_problem_runners_ran_under_the_masters_own_name(loops):
    lab, d = loops
    with open(lab.key) as f:
        key = f.read()
    try:
        with open(lab.key, "w") as f:
            f.write("wrong" * 15)
        lab.fire("key/wrong", {})
        d.wait_for_log("rejects the key")
    finally:
        with open(lab.key, "w") as f:
            f.write(key)
    runs = eventually("the runner to run", lambda: [
        event["data"] for event in d.events("--tag", "salt/run/*/new") if event["data"]["fun"] == "runner.test.arg"])
    assert [run["user"] for run in runs] == ["Reactor"]


def test_the_reactor_waited_forever_for_a_master_with_another_transport(loops):
    lab, d = loops
    lab.kill("master")
    with open(f"{lab.lab['dir']}/conf/master", "a") as f:
        f.write("\ntransport: tcp\n")
    lab.master()

    def refused():
        rules = d.json("reactor", "rules")["rules"]
        return all(rule["handled_by"] == "none" and "`transport: tcp`" in rule["why"] for rule in rules)
    eventually("each rule to show why no reactor acts on it", refused)
    assert any("`transport: tcp`" in one["message"] for one in d.doctor("reactor"))
    assert d.log_count("`transport: tcp`")
    eventually("the daemon to read the bus again", lambda: os.path.exists(f"{lab.sock_dir}/master_event_pull.ipc"))
    d.wait_for_bus()

    def is_dead():
        lab.fire("key/tcp", {})
        rows = d.json("reactor", "history", "--tag", "key/tcp")["reactions"]
        return rows and rows[0]["reaction"]["calls"]
    calls = eventually("a reaction to be dead-lettered", is_dead)
    assert [(call["outcome"], "`transport: tcp`" in call["why"]) for call in calls] == [("dead", True)]
