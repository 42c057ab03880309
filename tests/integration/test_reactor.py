"""saltcellar's reactor on a real master: a second daemon, which reads the same bus and uses the same request port."""
import os
import sys
import uuid

import pytest
import salt_lab
from conftest import REACTIONS, Daemon, eventually

FILES = {
    **REACTIONS,
    "start.sls": """
apply to {{ data['id'] }}:
  local.state.apply:
    - tgt: {{ data['id'] }}
    - args:
      - mods: works
""",
    "say.sls": """
say {{ data['data']['word'] }}:
  local.test.arg:
    - tgt: {{ data['id'] }}
    - arg:
      - {{ data['data']['word'] }}
    - kwarg:
        tag: {{ tag }}
""",
    "unknown.sls": """
no such runner:
  runner.there.is_none:
    - args:
      - a: 1
""",
    "slow.sls": """
slow:
  runner.test.sleep:
    - args:
      - s_time: 1
""",
    "own.sls": """
open:
  runner.shop.unlock:
    - source: {{ tag }}
    - wide: true
""",
}
RULES = {"lab/*/start": "start.sls", "say/*": "say.sls", "orch/*": "orch.sls", "wheel/*": "wheel.sls",
         "unknown/*": "unknown.sls", "own/*": "own.sls",
         "slow/*": "slow.sls", "salt/beacon/*/claim/*": "say.sls"}


@pytest.fixture(scope="module")
def reactor(lab, root):
    os.makedirs(f"{root}/r", exist_ok=True)
    for name, text in FILES.items():
        salt_lab.write(f"{root}/r/{name}", text)
    salt_lab.write(f"{lab.lab['dir']}/srv/salt/orch/works.sls",
                   "say it:\n  salt.function:\n    - name: test.arg\n    - tgt: lab-1\n    - arg:\n      - {{ pillar['word'] }}\n")
    rules = "".join(f"  - '{tag}': [{root}/r/{name}]\n" for tag, name in RULES.items())
    salt_lab.write(f"{root}/r/c.yaml",
                   f"reactor:\n  master: {lab.lab['dir']}/conf/master\n  rules:\n{rules}")
    d = Daemon(f"{root}/r", bus=lab.sock_dir)
    d.flags = ["--config", f"{root}/r/c.yaml"]
    try:
        d.start()
        d.wait_for_bus()
        yield d
    finally:
        if d.running:
            assert d.stop() == 0


def reaction(reactor, tag, state="done"):
    """The record about the event with that tag."""
    def found():
        rows = reactor.json("reactor", "history", "--tag", tag)["reactions"]
        return rows[0] if rows else None
    row = eventually(f"a reaction to {tag}", found)
    assert row["reaction"]["state"] == state, row
    return row


def shown(reactor, row, what):
    seen = None

    def probe():
        nonlocal seen
        result = reactor.json("reactor", "show", str(row["seq"]))["results"][0]
        if result != seen:
            seen = result
            print(f"{row['tag']}: {row['reaction']['calls']}: {result}")
        return result if result and what in result and result[what] else None
    return eventually(f"{what} of {row['tag']}", probe)


def test_a_start_applies_a_state_and_the_history_has_its_outcome(lab, reactor, daemon):
    lab.fire("lab/lab-1/start", {"id": "lab-1"})
    row = reaction(reactor, "lab/lab-1/start")
    call = row["reaction"]["calls"][0]
    assert (call["outcome"], call["minions"]) == ("published", ["lab-1"])
    result = shown(reactor, row, "returned")
    assert (result["returns"][0]["minion"], result["failed"]) == ("lab-1", 0)
    # the master's job cache knows the job by our jid
    assert eventually("the job", lambda: daemon.returned(call["jid"])) == ["lab-1"]
    assert lab.run("jobs.lookup_jid", call["jid"])


def test_an_event_that_a_minion_sends_is_reacted_to(lab, reactor):
    tag = f"say/{uuid.uuid4().hex}"
    lab.salt("lab-2", "event.send", tag, "{word: hello}")
    row = reaction(reactor, tag)
    assert row["reaction"]["calls"][0]["minions"] == ["lab-2"]
    assert "- hello" in row["reaction"]["files"][0][1]
    assert shown(reactor, row, "returned")["returned"] == 1


def test_an_orchestration_gets_its_pillar_and_the_reactors_name(lab, reactor):
    tag = f"orch/{uuid.uuid4().hex}"
    lab.fire(tag, {"word": "from the event"})
    row = reaction(reactor, tag)
    call = row["reaction"]["calls"][0]
    result = shown(reactor, row, "success")
    assert "from the event" in str(result["return"]), result
    new = eventually("its event", lambda: reactor.events("--tag", f"salt/run/{call['jid']}/new"))
    assert new[0]["data"]["user"] == "Reactor"


def test_a_wheel_function_answers_at_once(lab, reactor):
    tag = f"wheel/{uuid.uuid4().hex}"
    lab.fire(tag, {"id": "lab-1"})
    call = reaction(reactor, tag)["reaction"]["calls"][0]
    assert call["success"] and list(call["result"]["minions"]) == ["lab-1"], call


def test_a_runner_that_does_not_exist_leaves_a_trace(lab, reactor):
    tag = f"unknown/{uuid.uuid4().hex}"
    lab.fire(tag, {})
    row = reaction(reactor, tag)
    assert row["reaction"]["calls"][0]["outcome"] == "started"
    result = reactor.json("reactor", "show", str(row["seq"]))["results"][0]
    # 3008 emits nothing, the others have the traceback as result
    assert not result["seen"] or result.get("success") in (False, None)


def test_a_slow_runner_has_no_more_processes_at_once_than_salts_own_pool(lab, reactor):
    mark = uuid.uuid4().hex
    for n in range(25):
        lab.fire(f"slow/{mark}/{n}", {})

    def ended():
        rows = reactor.json("reactor", "history", "--tag", f"slow/{mark}/*", "--limit", "100")["reactions"]
        jids = [call["jid"] for row in rows for call in row["reaction"]["calls"]]
        events = [e for e in reactor.events("--tag", "salt/run/*") if e["tag"].split("/")[2] in jids]
        done = [e for e in events if e["tag"].endswith("/ret")]
        return events if len(jids) == 25 and len(done) == 25 else None

    under_way = most = 0
    for event in eventually("the end of all runners", ended):
        under_way += {"new": 1, "ret": -1}.get(event["tag"].split("/")[3], 0)
        most = max(most, under_way)
    assert 2 <= most <= 10, most


def test_a_minion_with_a_false_id_is_identified_by_its_key(lab, reactor):
    tag = f"salt/beacon/lab-1/claim/{uuid.uuid4().hex}"
    lab.salt("lab-2", "event.send", tag, "{word: claimed}")
    row = reaction(reactor, tag)
    assert row["minion"] == "lab-2", row


def test_requests_of_salt_run_are_answered_and_take_effect(lab, reactor, root):
    key = open(lab.key).read()

    def ask(verb, reply, **data):
        before = len(reactor.events("--tag", f"salt/reactors/manage/{reply}"))
        lab.fire(f"salt/run/1/salt/reactors/manage/{verb}", {"key": key, **data})
        return eventually(f"the response to {verb}", lambda: reactor.events("--tag", f"salt/reactors/manage/{reply}")[before:])[0]["data"]

    assert ask("list", "list-results")["reactors"][0] == {"lab/*/start": [f"{root}/r/start.sls"]}
    added = ask("add", "add-complete", event="added/*", reactors=[f"{root}/r/say.sls"])
    assert added["result"] == {"status": True, "comment": "Reactor added."}
    tag = f"added/{uuid.uuid4().hex}"
    lab.salt("lab-1", "event.send", tag, "{word: added}")
    assert reaction(reactor, tag)["reaction"]["rules"] == ["added/*"]
    assert ask("delete", "delete-complete", event="added/*")["result"]["status"]


def test_a_restart_in_the_middle_loses_nothing(lab, reactor):
    tags = [f"say/{uuid.uuid4().hex}" for _ in range(10)]
    for tag in tags:
        lab.fire(tag, {"id": "lab-1", "data": {"word": tag[4:]}})
    eventually("the events are there", lambda: all(reactor.events("--tag", tag) for tag in tags))
    reactor.kill()
    reactor.start()
    for tag in tags:
        reaction(reactor, tag)


def test_salts_python_has_the_signatures_of_custom_runners_and_no_job_is_made_for_them(lab, reactor, root):
    def asked():
        events = reactor.events("--tag", "salt/run/*/new")
        return [e for e in events if "sys.runner_argspec" in str(e["data"].get("fun_args"))]

    assert "sys.runner_argspec" not in str(lab.run("jobs.list_jobs"))
    os.makedirs(f"{lab.lab['dir']}/master/extmods/runners", exist_ok=True)
    salt_lab.write(f"{lab.lab['dir']}/master/extmods/runners/shop.py",
                   "def unlock(source, wide=False):\n    return f'{source} is unlocked, {wide}'\n")

    os.makedirs(f"{root}/r2", exist_ok=True)
    salt_lab.write(f"{root}/r2/c.yaml",
                   f"reactor:\n  master: {lab.lab['dir']}/conf/master\n  python: {sys.executable}\n"
                   f"  rules:\n  - 'owned/*': [{root}/r/own.sls]\n")
    other = Daemon(f"{root}/r2", bus=lab.sock_dir)
    other.flags = ["--config", f"{root}/r2/c.yaml"]
    try:
        other.start()
        other.wait_for_bus()
        tag = f"owned/{uuid.uuid4().hex}"
        lab.fire(tag, {})
        result = shown(other, reaction(other, tag), "success")
        assert result["return"] == f"{tag} is unlocked, True", result
    finally:
        assert other.stop() == 0
    # without the option, the Python of the first `salt-master` in PATH has them
    tag = f"own/{uuid.uuid4().hex}"
    lab.fire(tag, {})
    result = shown(reactor, reaction(reactor, tag), "success")
    assert result["return"] == f"{tag} is unlocked, True", result
    assert asked() == []
