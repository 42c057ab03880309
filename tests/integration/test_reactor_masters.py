"""The reactor beside masters with other settings: IPv6, other ports, environments and Thorium.

One of them also has bad events: a flood, a minion with a false id, a rule that matches its own result.
"""
import concurrent.futures
import json
import os
import shutil
import signal
import socket
import uuid

import procs
import pytest
import salt_lab
from conftest import REPO, Reactor, eventually, live_lab, running

SAY = """
say:
  local.test.arg:
    - tgt: ONE
    - arg:
      - {{ (data['data'] if 'data' in data else data)['word'] }}
      - IN {{ saltenv }}
"""
ENV = """
apply:
  local.state.apply:
    - tgt: ONE
    - args:
      - mods: named
      - saltenv: {{ data['env'] }}
      - pillarenv: {{ data['env'] }}
orchestrate:
  runner.state.orchestrate:
    - args:
      - mods: orch
      - saltenv: {{ data['env'] }}
      - pillarenv: {{ data['env'] }}
"""
NAMED = "it is NAME with {{ pillar.get('name') }}:\n  test.succeed_with_changes: []\n"
ORCH = "say it:\n  salt.runner:\n    - name: test.arg\n    - arg: [NAME]\n"
WHO = """
who:
  local.test.arg:
    - tgt: {{ data['id'] }}
    - arg:
      - {{ data['id'] }}
      - {{ data['data']['id'] | json }}
"""
# For a minion that has only a key: a minion with a thousand jobs would delay the tests, not the reactor.
FLOOD = """
answer:
  local.test.arg:
    - tgt: ghost
    - arg: [{{ data['n'] }}]
"""
# The return of this job triggers the same rule again.
OWN = """
{% if data['fun'] == 'test.arg' and data['fun_args'][:1] == ['again'] %}
again:
  local.test.arg:
    - tgt: ONE
    - arg: [again, {{ data['fun_args'][1] + 1 }}]
{% endif %}
"""
SLOW = """
{% do salt['cmd.shell']('touch DIR/rendering; while [ -e DIR/hold ]; do sleep 0.05; done') %}
slow:
  local.test.arg:
    - tgt: ONE
    - arg: [WORD]
"""
THORIUM = """
seen:
  check.event:
    - name: live/thorium/*
run it:
  runner.cmd:
    - func: event.send
    - arg: [live/by-thorium]
    - require:
      - check: seen
"""
RULES = {"live/say/*": "salt://r/say.sls", "live/dev/*": "salt://r/say.sls?saltenv=dev", "live/env/*": "salt://r/env.sls",
         "live/who/*": "salt://r/who.sls", "live/flood/*": "salt://r/flood.sls", "salt/job/*/ret/lab-1": "salt://r/own.sls",
         "live/thorium/*": "salt://r/say.sls", "live/slow/*": "salt://r/slow.sls"}


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def address():
    return {"interface": "::1", "ipv6": True} if has_ipv6() else {}


@pytest.fixture(scope="module")
def live(place, address):
    root = f"{place}/lab"
    srv = f"{root}/srv"
    for env in ("base", "dev"):
        top = f"{env}:\n  '*':\n    - name\n"
        for path, text in {"r/say": SAY.replace("IN", env), "named": NAMED.replace("NAME", env), "orch": ORCH.replace("NAME", env)}.items():
            salt_lab.write(f"{srv}/{env}/{path}.sls", text.replace("ONE", "lab-1"))
        salt_lab.write(f"{srv}/{env}-pillar/top.sls", top)
        salt_lab.write(f"{srv}/{env}-pillar/name.sls", f"name: pillar of {env}\n")
    for name, text in {"env": ENV, "who": WHO, "flood": FLOOD, "own": OWN}.items():
        salt_lab.write(f"{srv}/base/r/{name}.sls", text.replace("ONE", "lab-1"))
    salt_lab.write(f"{srv}/thorium/top.sls", "base:\n  '*':\n    - react\n")
    salt_lab.write(f"{srv}/thorium/react.sls", THORIUM)
    with live_lab(
            root, minions=2, module_dirs=[os.path.join(REPO, "tests", "lab", "modules")],
            minion_conf={"master": address["interface"], "ipv6": True} if address else {},
            master_conf={**address, "engines": ["saltcellar-reactor", "thorium"], "thorium_roots": {"base": [f"{srv}/thorium"]},
                         "file_roots": {env: [f"{srv}/{env}"] for env in ("base", "dev")},
                         "pillar_roots": {env: [f"{srv}/{env}-pillar"] for env in ("base", "dev")},
                         "reactor": [{tag: [file]} for tag, file in RULES.items()]}) as lab:
        lab.srv = srv
        keys = f"{root}/master/pki/minions"
        shutil.copy(f"{keys}/lab-2", f"{keys}/ghost")
        yield lab


@pytest.fixture(scope="module")
def reactor(live, place):
    d = Reactor(f"{place}/sc", live.sock_dir, master=f"{live.lab['dir']}/conf/master", python=f"{live.lab['bin']}/python")
    with running(d):
        d.wait_for_bus()
        yield d


def calls(reactor, tag, number=1, **more):
    return reactor.reaction(tag, calls=number, **more)["reaction"]["calls"]


def args(reactor, tag):
    """The arguments in the only minion's return of the reaction's job."""
    row = reactor.reaction(tag)
    reactor.result(row, "returned")
    returns = reactor.job(row["reaction"]["calls"][0]["jid"])["returns"]
    return [one["return"]["args"] for one in returns]


# ------------------------------------------------------------------- masters
def test_a_master_on_ipv6_is_reached(live, reactor, address):
    if not address:
        assert "CI" not in os.environ, "this host has no ::1"  # a container may have none: then `ip -6` cannot help either
        pytest.skip("this host has no ::1")
    tag = f"live/say/{uuid.uuid4().hex}"
    live.fire(tag, {"word": "six"})
    assert args(reactor, tag) == [["six", "base base"]]
    assert reactor.log_count(f"master=[::1]:{live.lab['ret_port']}")


def test_files_and_states_come_from_the_requested_environment(live, reactor):
    word = uuid.uuid4().hex
    live.fire(f"live/dev/{word}", {"word": word})
    # the file of dev; its variable `saltenv` is set by Salt, always to base
    assert args(reactor, f"live/dev/{word}") == [[word, "dev base"]]
    for env in ("base", "dev"):
        live.fire(f"live/env/{env}", {"env": env})
        row = reactor.reaction(f"live/env/{env}", calls=2)
        apply, orchestrate = row["reaction"]["calls"]
        eventually("the state's return", lambda: reactor.returned(apply["jid"]))
        returned = json.dumps(reactor.job(apply["jid"])["returns"][0]["return"])
        assert f"it is {env} with pillar of {env}" in returned, returned
        ended = eventually("the orchestration's end", lambda: reactor.events("--tag", f"salt/run/{orchestrate['jid']}/ret"))
        assert f"'args': ['{env}']" in str(ended[0]["data"]["return"]), ended


def test_thorium_acts_independently_of_our_reactor(live, reactor):
    tag = f"live/thorium/{uuid.uuid4().hex}"
    live.fire(tag, {"word": "both"})
    eventually("Thorium's own event", lambda: reactor.events("--tag", "live/by-thorium"))
    assert args(reactor, tag) == [["both", "base base"]]
    listed = reactor.json("reactor", "rules")
    assert {rule["handled_by"] for rule in listed["rules"]} == {"saltcellar"}, listed
    assert not listed.get("foreign_call"), listed


# ------------------------------------------------------------------- files and rules that change
def test_a_file_edited_during_rendering_yields_the_old_or_the_new_version(live, reactor, place):
    path = f"{live.srv}/base/r/slow.sls"
    text = SLOW.replace("ONE", "lab-1").replace("DIR", place)
    salt_lab.write(path, text.replace("WORD", "old"))
    salt_lab.write(f"{place}/hold", "")
    live.fire("live/slow/1", {})
    eventually("it to be rendered", lambda: os.path.exists(f"{place}/rendering"))
    salt_lab.write(path, "half a {% file")
    live.fire("live/slow/half", {})
    live.fire("live/slow/half", {"id": "lab-2"})
    halves = eventually("the broken file to fail", lambda: reactor.history("live/slow/half"))
    assert halves[0]["reaction"]["state"] == "failed" and halves[0]["reaction"]["failures"][0]["file"].endswith("r/slow.sls"), halves
    salt_lab.write(path, text.replace("WORD", "new"))
    os.remove(f"{place}/hold")
    assert args(reactor, "live/slow/1") == [["old"]]
    live.fire("live/slow/2", {})
    assert args(reactor, "live/slow/2") == [["new"]]


def test_rules_added_during_a_configuration_reload_stay(live, reactor):
    reads = "configuration reloaded"
    conf = f"{live.lab['dir']}/conf/master"

    before, added = reactor.log_count(reads), []
    while reactor.log_count(reads) < before + 2:
        os.utime(conf)
        reactor.process.send_signal(signal.SIGHUP)
        pattern = f"added/{len(added)}/*"
        assert live.runner("reactor.add", pattern, "salt://r/say.sls")["status"] is True
        added.append(pattern)
    assert [rule["rule"] for rule in reactor.json("reactor", "rules")["rules"]][-len(added):] == added


# ------------------------------------------------------------------- bad input
def test_a_false_minion_id_in_an_event_is_replaced_by_the_authenticated_one(live, reactor):
    tag = f"live/who/lab-2/{uuid.uuid4().hex}"
    live.salt("lab-1", "event.send", tag, json.dumps({"id": "lab-2", "word": "x"}))
    assert args(reactor, tag) == [["lab-1", "lab-2"]]  # `id` is set by the master, `data` by the minion
    assert reactor.history(tag)[0]["minion"] == "lab-1"


def test_a_flood_of_one_minion_does_not_delay_others(live, reactor):
    flood, n = f"live/flood/{uuid.uuid4().hex}", 600
    # not awaited: the minion's return follows its events
    flooding = concurrent.futures.ThreadPoolExecutor().submit(live.salt, "lab-2", "labmod.flood", flood, str(n))
    eventually("the flood", lambda: reactor.events("--tag", f"{flood}/0"))
    tag = f"live/say/{uuid.uuid4().hex}"
    live.fire(tag, {"word": "me, too", "id": "lab-1"})
    other = reactor.reaction(tag)
    reactor.reaction(f"{flood}/{n - 1}")
    assert flooding.result()["lab-2"] is True
    records = reactor.json("reactor", "history", "--tag", f"{flood}/*", "--limit", str(2 * n))["reactions"]
    records.sort(key=lambda row: row["seq"])
    # nothing is lost or repeated, and the order is kept
    assert [int(row["tag"].rpartition("/")[2]) for row in records] == list(range(n))
    seqs = [row["seq"] for row in records]
    before = [seq for seq in seqs if seq < other["reaction"]["event"]]
    assert len(before) < n * 0.9, "the flood was over too soon to delay the other minion"
    between = len([seq for seq in seqs if seq < other["seq"]]) - len(before)
    assert between < n / 10, f"{between} reactions to the flood came before the other minion's"


def test_a_rule_that_matches_its_own_result_stops(live, reactor):
    live.salt("lab-1", "test.arg", "again", "0")

    def left():
        rows = reactor.json("reactor", "history", "--tag", "salt/job/*/ret/lab-1", "--state", "skipped", "--limit", "10")["reactions"]
        return [row for row in rows if row["reaction"]["why"] == "depth"]
    eventually("the loop to be ended", left)
    tag = f"live/say/{uuid.uuid4().hex}"
    live.fire(tag, {"word": "after"})
    assert args(reactor, tag) == [["after", "base base"]]


# ------------------------------------------------------------------- the same master at a new address; must be the last
# test
def test_a_master_that_moves_to_another_port_and_interface_is_followed(live, reactor):
    with open(f"{live.lab['dir']}/conf/master") as file:
        before = file.read()
    port, publish = salt_lab.free_ports(2)
    conf = {line.partition(": ")[0]: json.loads(line.partition(": ")[2]) for line in before.splitlines()}
    conf.update(ret_port=port, publish_port=publish, interface="127.0.0.1", ipv6=False)
    live.kill("master")
    tag = f"live/say/{uuid.uuid4().hex}"
    salt_lab.write(f"{live.lab['dir']}/conf/master", salt_lab.to_yaml(conf))
    live.master()
    eventually("the bus", lambda: procs.poll(lambda: any(b["connected"] for b in reactor.status()["bus"]), 1))

    def seen():
        live.fire(tag, {"word": "moved"})
        return reactor.events("--tag", tag)
    eventually("an event", seen)
    call = calls(reactor, tag)[0]
    assert (call["outcome"], call["minions"]) == ("published", ["lab-1"]), call
    assert reactor.log_count("master address changed, sending reactions to the new one")
