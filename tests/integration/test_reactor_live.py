"""The reactor of a separate master: real keys, a beacon, `salt-run`, git, and a master that stops.

The rules stay in the master's configuration, and `engines: [saltcellar-reactor]` hands them over.
The file ends with reactors of minions: one without a master, one with.
"""
import json
import os
import shutil
import signal
import subprocess
import uuid

import procs
import pytest
import rawbus
import salt_lab
from conftest import Reactor, eventually, live_lab, running

# Salt's guide, "A complete example": new ink servers are accepted, and servers with a new key are enrolled again.
AUTH_PENDING = """
{# Ink server failed to authenticate -- remove accepted key #}
{% if not data['result'] and data['id'].startswith('ink') %}
minion_remove:
  wheel.key.delete:
    - args:
      - match: {{ data['id'] }}
minion_rejoin:
  local.cmd.run:
    - tgt: hub
    - args:
      - cmd: touch DIR/rejoin-"{{ data['id'] }}"
{% endif %}

{# Ink server is sending new key -- accept this key #}
{% if 'act' in data and data['act'] == 'pend' and data['id'].startswith('ink') %}
minion_add:
  wheel.key.accept:
    - args:
      - match: {{ data['id'] }}
{% endif %}
"""
AUTH_COMPLETE = """
{# When an Ink server connects, run state.apply. #}
highstate_run:
  local.state.apply:
    - tgt: {{ data['id'] }}
    - ret: smtp
"""
BEACON = """
rejoin {{ data['id'] }}:
  runner.event.send:
    - args:
      - tag: live/alarm/{{ data['id'] }}
      - data:
          raw: {{ (data['data'] if 'data' in data else data)['raw'] | json }}
"""
SAY = """
{% set values = data['data'] if 'data' in data else data %}
say {{ values['word'] }}:
  local.test.arg:
    - tgt: ink-1
    - arg:
      - {{ values['word'] }}
"""
RUN = """
pass it on:
  runner.event.send:
    - args:
      - tag: passed/{{ tag }}
      - data: {}
"""
HERE = """
here:
  caller.test.arg:
    - args: [{{ data['word'] }}, 2]
"""
GIT = """
{% import 'from-git.jinja' as git %}
from git:
  local.test.arg:
    - tgt: ink-1
    - arg:
      - {{ git.word }} ONE
      - {{ data['n'] }}
"""
SLS = {"auth-pending": AUTH_PENDING, "auth-complete": AUTH_COMPLETE, "beacon": BEACON, "say": SAY, "run": RUN, "here": HERE}
RULES = [("salt/auth", "auth-pending"), ("salt/minion/ink*/start", "auth-complete"), ("salt/beacon/*/log/*", "beacon"),
         ("live/say/*", "say"), ("live/run/*", "run"), ("live/once/*", "run"), ("live/late/*", "run"),
         ("live/here/*", "here"), ("live/git/*", "from-git")]
OPTIONS = [{"rule": "live/once/*", "at_most_once": True}, {"rule": "live/late/*", "debounce": "8s"}]


def commit(repo, word):
    salt_lab.write(f"{repo}/from-git.sls", GIT.replace("ONE", word))
    salt_lab.write(f"{repo}/from-git.jinja", "{% set word = 'imported' %}\n")
    git = ["git", "-C", repo, "-c", "user.name=lab", "-c", "user.email=lab@localhost"]
    if not os.path.isdir(f"{repo}/.git"):
        subprocess.run(["git", "init", "--quiet", "--initial-branch=master", repo], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", word], check=True)


@pytest.fixture(scope="module")
def live(place):
    repo, root = f"{place}/repo", f"{place}/lab"
    commit(repo, "first")
    for name, text in SLS.items():
        salt_lab.write(f"{place}/r/{name}.sls", text.replace("DIR", place))
    # The guide's two files are in /srv/reactor, the others on the file server.
    on_disk = ("auth-pending", "auth-complete")
    for name in SLS.keys() - on_disk:
        salt_lab.write(f"{root}/srv/salt/reactor/{name}.sls", SLS[name])
    salt_lab.write(f"{root}/srv/salt/top.sls", "base:\n  'ink*':\n    - inked\n")
    salt_lab.write(f"{root}/srv/salt/inked.sls", "it is inked:\n  test.succeed_with_changes: []\n")
    salt_lab.write(f"{place}/ink.log", "the log begins\n")
    reference = {"from-git": "salt://from-git.sls", **{name: f"{place}/r/{name}.sls" for name in on_disk}}
    rules = [{tag: [reference.get(name, f"salt://reactor/{name}.sls")]} for tag, name in RULES]
    with live_lab(root, minions=0, master_conf={
            "auto_accept": False, "reactor": rules, "engines": ["saltcellar-reactor"],
            "fileserver_backend": ["roots", "gitfs"], "gitfs_remotes": [f"file://{repo}"]}) as lab:
        for name in ("hub", "oth-1"):
            lab.minion(name)
        lab.repo = repo
        yield lab


@pytest.fixture(scope="module")
def reactor(live, place):
    python = f"{live.lab['bin']}/python"
    d = Reactor(f"{place}/sc", live.sock_dir, master=f"{live.lab['dir']}/conf/master", python=python, options=OPTIONS)
    with running(d):
        d.wait_for_bus()
        log = f"{place}/ink.log"
        live.minion("ink-1", beacons={"log": [{"file": log}, {"tags": {"alarm": {"regex": ".*alarm"}}}, {"interval": 1}]})
        live.minion("ink-2")
        is_up(d, "ink-1")
        yield d


@pytest.fixture(scope="module")
def hub(live, reactor):
    """The master's own minion, accepted by an administrator."""
    live.is_key("hub", "pending")
    live.wheel("key.accept", "hub")
    is_up(reactor, "hub")


@pytest.fixture(autouse=True)
def reactor_is_up(reactor):
    if not reactor.running:
        reactor.start()
        reactor.wait_for_bus()


def is_up(reactor, minion):
    eventually(f"{minion} to start", lambda: times(reactor, f"salt/minion/{minion}/start"))


def returned(reactor, row, minion):
    """The return of that reaction's job, from that minion alone."""
    result = reactor.result(row, "returned")
    assert [r["minion"] for r in result["returns"]] == [minion] and not result["failed"], result
    returns = reactor.job(row["reaction"]["calls"][0]["jid"])["returns"]
    return returns[0]["return"]


def alarm(path, what, seen):
    """Triggers an alarm of the log beacon, which reads only lines that are appended after its start."""
    def alarmed():
        with open(path, "a") as log:
            log.write(f"an alarm: {what}\n")
        return procs.poll(seen, 2)
    eventually(f"the alarm: {what}", alarmed)


def times(reactor, tag):
    return len(reactor.events("--tag", tag))


# ------------------------------------------------------------------- the guide's example
def test_matching_minions_are_accepted_and_others_wait_for_an_administrator(live, reactor, hub):
    for name in ("ink-1", "ink-2"):
        live.is_key(name, "accepted")
    live.is_key("oth-1", "pending")
    events = [e["data"] for e in reactor.events("--tag", "salt/auth")]
    pending = sorted(e["id"] for e in events if e.get("act") == "pend" and e["id"].startswith("ink"))

    def accepted():
        calls = [call for row in reactor.history("salt/auth") for call in row["reaction"]["calls"]]
        assert {(call["fun"], call["success"]) for call in calls} == {("key.accept", True)}, calls
        return sorted(call["load"]["kwarg"]["match"] for call in calls) == pending
    eventually("every pending ink server's event to be answered and no other", accepted)
    assert set(pending) == {"ink-1", "ink-2"}
    # an administrator accepts `hub` and rejects the other
    live.wheel("key.reject", "oth-1")
    live.is_key("oth-1", "rejected")

    def refused():
        return [e for e in reactor.events("--tag", "salt/auth") if e["data"]["id"] == "oth-1" and not e["data"]["result"]]
    eventually("the master to refuse oth-1", refused)
    live.kill("oth-1")
    assert live.keys()["rejected"] == ["oth-1"] and accepted()


def test_a_start_leads_to_a_highstate(live, reactor):
    row = reactor.reaction("salt/minion/ink-1/start")
    call = row["reaction"]["calls"][0]
    assert (call["fun"], call["load"]["ret"]) == ("state.apply", "smtp"), call
    assert "it is inked" in json.dumps(returned(reactor, row, "ink-1"))
    # `ret` reached the minion, which calls the returner: 3008 has none of that name, the others have no mail recipient
    tried = ("smtp.returner", f"The return failed for job {call['jid']}")

    def tried_returner():
        with open(f"{live.lab['dir']}/ink-1/log", errors="replace") as log:
            return any(words in line for line in log for words in tried)
    # a job of 3007 may wait 30 s for the master's response to its return before it calls its returners
    eventually("the returner to be tried", tried_returner)
    # once per start
    assert len(reactor.history("salt/minion/ink-1/start")) == times(reactor, "salt/minion/ink-1/start")


def test_a_server_with_a_new_key_is_enrolled_again(live, reactor, hub, place):
    reactor.reaction("salt/minion/ink-2/start")
    pki = f"{live.lab['dir']}/ink-2/pki"
    live.kill("ink-2")
    shutil.rmtree(pki)
    os.makedirs(pki)
    live.start("ink-2")
    row = reactor.reaction("salt/auth", calls=2)
    done = {call["fun"]: call for call in row["reaction"]["calls"]}
    assert done["key.delete"]["success"] and done["cmd.run"]["minions"] == ["hub"], done
    # in place of the guide's init script
    eventually("the job on the master's minion", lambda: os.path.exists(f"{place}/rejoin-ink-2"), 40)
    eventually("ink-2 to be back", lambda: times(reactor, "salt/minion/ink-2/start") == 2)
    live.is_key("ink-2", "accepted")
    with open(f"{pki}/minion.pub") as ours, open(f"{live.lab['dir']}/master/pki/minions/ink-2") as theirs:
        assert ours.read().strip() == theirs.read().strip()
    eventually("its second highstate", lambda: len(reactor.history("salt/minion/ink-2/start")) == 2)
    live.kill("ink-2")


# ------------------------------------------------------------------- sources of events
def test_a_beacon_fires_a_runner(live, reactor, place):
    alarm(f"{place}/ink.log", "the ink is out", lambda: reactor.history("salt/beacon/ink-1/log/*"))
    row = reactor.reaction("salt/beacon/ink-1/log/*")
    assert row["reaction"]["calls"][0]["outcome"] == "started", row
    events = eventually("the runner's event", lambda: reactor.events("--tag", "live/alarm/ink-1"))
    assert events[0]["data"]["raw"] == "an alarm: the ink is out"
    assert reactor.result(row, "success")["success"]


def test_events_are_sent_from_the_master_and_from_minions(live, reactor):
    ways = {
        "master": lambda tag: live.run("event.send", tag, json.dumps({"word": "master"})),
        "minion": lambda tag: live.salt("ink-1", "event.send", tag, "{word: minion}"),
        "call": lambda tag: live.call("ink-1", "event.fire_master", "{word: call}", tag),
    }
    for word, send in ways.items():
        tag = f"live/say/{uuid.uuid4().hex}"
        assert send(tag), word
        row = reactor.reaction(tag)
        assert returned(reactor, row, "ink-1")["args"] == [word]
        assert len(reactor.history(tag)) == 1


def test_a_function_runs_on_the_master_s_own_machine(live, reactor):
    live.fire("live/here/1", {"word": "hello"})
    call = reactor.reaction("live/here/1")["reaction"]["calls"][0]
    assert (call["outcome"], call["result"]["args"]) == ("ran", ["hello", 2]), call


# ------------------------------------------------------------------- salt-run
def test_salt_run_manages_the_reactor_and_salt_s_own_is_off(live, reactor):
    with open(f"{live.lab['dir']}/master/log", errors="replace") as log:
        assert "engines.reactor" not in log.read()
    assert reactor.json("reactor", "rules")["shadow"] is False
    assert live.run("reactor.list")[3] == {"live/say/*": ["salt://reactor/say.sls"]}
    assert live.runner("reactor.add", "added/*", "salt://reactor/say.sls") == {
        "status": True, "comment": "Reactor added."}
    tag = f"added/{uuid.uuid4().hex}"
    live.fire(tag, {"word": "added"})
    assert reactor.reaction(tag)["reaction"]["rules"] == ["added/*"]
    assert live.runner("reactor.set_leader", False) is False
    live.fire("added/unled", {"word": "x"})
    assert live.runner("reactor.is_leader") is False
    # a touch of the configuration does not enable it again
    reads = "reactor configuration reloaded"
    before = reactor.log_count(reads)
    os.utime(f"{live.lab['dir']}/conf/master")
    reactor.wait_for_log(reads, before)
    assert live.runner("reactor.set_leader", True) is True
    assert live.runner("reactor.delete", "added/*")["comment"] == "Reactor deleted."
    live.fire(tag, {"word": "added"})
    marker = f"live/say/{uuid.uuid4().hex}"
    live.fire(marker, {"word": "marker"})
    reactor.reaction(marker)
    assert len(reactor.history(tag)) == 1 and not reactor.history("added/unled")


def test_no_reader_sees_the_key_that_salt_run_fires(live, reactor, tmp_path):
    with open(f"{live.lab['dir']}/master/cache/.root_key", "rb") as file:
        key = file.read()
    assert len(key) > 40
    assert live.run("reactor.list")[3] == {"live/say/*": ["salt://reactor/say.sls"]}  # and the request is answered
    requests = reactor.events("--tag", "*salt/reactors/manage/list")
    assert requests and all(event["data"]["key"] == "[redacted]" for event in requests)
    # also in an unusual place
    live.fire("live/quotes-the-key", {"text": f"it is {key.decode()}!"})
    eventually("the event", lambda: reactor.events("--tag", "live/quotes-the-key"))
    export, backup = str(tmp_path / "all.jsonl"), str(tmp_path / "backup")
    reactor.cli("export", "jsonl", export, "--events")
    reactor.cli("store", "backup", backup, "--state-dir", f"{reactor.root}/state")
    seen = [reactor.cli("events", "list", "--no-limit", "--output", "jsonl").stdout.encode(), open(export, "rb").read()]
    for root in (f"{reactor.root}/state", backup):
        for directory, _, names in os.walk(root):
            for name in names:
                with open(os.path.join(directory, name), "rb") as file:
                    seen.append(file.read())
    with open(reactor.log, "rb") as log:
        seen.append(log.read())
    assert not [1 for bytes_ in seen if key in bytes_]
    assert b"live/quotes-the-key" in seen[1]


# ------------------------------------------------------------------- the file server
def test_files_of_other_backends_are_fetched_by_salt(live, reactor):
    def rendered(n):
        live.fire(f"live/git/{n}", {"n": n})
        row = reactor.reaction(f"live/git/{n}")
        return returned(reactor, row, "ink-1")["args"]
    assert rendered(1) == ["imported first", 1]
    commit(live.repo, "second")
    live.runner("fileserver.update")
    seen = []

    def new():
        seen.append(rendered(2 + len(seen)))
        return seen[-1][0] == "imported second"
    eventually("the new text", new)
    python = ["--salt-python", f"{live.lab['bin']}/python"]
    config = ["--salt-config", f"{live.lab['dir']}/conf"]
    checked = json.loads(procs.run([reactor.bin, "reactor", "lint", "--output", "json", *python, *config],
                                   stdout=subprocess.PIPE, text=True).stdout)
    assert checked["faults"] == 0, checked
    assert any("gitfs" in note["message"] for note in checked["notes"]), checked
    without = json.loads(procs.run([reactor.bin, "reactor", "lint", "--output", "json", "--salt-python", "/bin/false",
                                    *config], stdout=subprocess.PIPE, text=True).stdout)
    bad = [row for row in without["files"] if row["state"] == "broken"]
    assert [row["reference"] for row in bad] == ["salt://from-git.sls"] and "gitfs" in bad[0]["why"], bad


# ------------------------------------------------------------------- faults
@pytest.fixture
def bus(live):
    """All later events of the bus, without interruption: `events(tag prefix)` returns `[(tag, data)]`."""
    recorder = rawbus.Recorder(live.sock_dir)
    mark = f"live/mark/{uuid.uuid4().hex}"

    def received():
        live.fire(mark, {})
        return recorder.saw(mark)

    # The publisher may accept a new listener late.
    eventually("the listener hears the bus", received)
    yield lambda tag: [(t, rawbus.decode(data)) for t, data in recorder.events() if t.startswith(tag)]
    recorder.stop()


def test_a_killed_run_loses_nothing_and_repeats_only_where_documented(live, reactor, bus):
    words = [uuid.uuid4().hex for _ in range(8)]
    kinds = ("say", "run", "once")
    for word in words:
        for kind in kinds:
            live.fire(f"live/{kind}/{word}", {"word": word})
    eventually("the last event", lambda: reactor.events("--tag", f"live/once/{words[-1]}"))
    reactor.kill()
    reactor.start()
    # Consequences of a reaction that occur while the daemon is down are missing in the archive.
    for word in words:
        for kind in kinds:
            row = reactor.reaction(f"live/{kind}/{word}")
            made = row["reaction"]["calls"][0]
            if kind != "say" and made["outcome"] == "unknown":
                continue  # its start may have occurred while the daemon was down
            assert row["reaction"]["state"] == "done", row
            if kind == "say":
                answer = f"salt/job/{made['jid']}/ret/ink-1"
                eventually("the job's return", lambda: bus(answer))
                if times(reactor, answer):
                    assert returned(reactor, row, "ink-1")["args"] == [word]
            else:
                eventually("the runner's event", lambda: bus(f"passed/live/{kind}/{word}"))
    # A job published just before the kill is republished under its own jid: the minion runs it once.
    jobs = {}
    for tag, data in bus("salt/job/"):
        if tag.endswith("/new") and data["fun"] == "test.arg":
            jobs.setdefault(data["arg"][0], set()).add(data["jid"])
    for word in words:
        assert len(jobs[word]) == 1, (word, jobs)
        assert len(bus(f"salt/job/{jobs[word].pop()}/ret/")) == 1
        for kind in ("run", "once"):
            assert len(bus(f"passed/live/{kind}/{word}")) <= 1


def workers(live):
    """Processes of the master that answer requests."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as line:
                if b"MWorker-" in line.read() and os.getpgid(int(pid)) == live.lab["procs"]["master"]:
                    found.append(int(pid))
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has exited
    assert found
    return found


def test_a_busy_master_that_answers_too_late_starts_a_runner_once(live, reactor, bus):
    tag = f"live/run/{uuid.uuid4().hex}"
    busy, words = workers(live), "call got no response, not retrying it: see `saltcellar reactor history`"
    before = reactor.log_count(words)
    procs.signal_each(busy, signal.SIGSTOP, os.kill)
    try:
        live.fire(tag, {})
        reactor.wait_for_log(words, before)
    finally:
        procs.signal_each(busy, signal.SIGCONT, os.kill)
    row = reactor.reaction(tag)
    call = row["reaction"]["calls"][0]
    assert (row["reaction"]["state"], call["outcome"], call["tries"]) == ("done", "found", 1), row
    starts = [t for t, data in bus("salt/run/") if t.endswith("/new") and f"passed/{tag}" in json.dumps(data["fun_args"])]
    assert starts == [f"salt/run/{call['jid']}/new"]
    assert len(eventually("the runner's event", lambda: bus(f"passed/{tag}"))) == 1


def test_retries_after_a_masters_rejection_are_logged_and_visible(live, reactor):
    with open(live.key) as key:
        good = key.read()
    tag = f"live/run/{uuid.uuid4().hex}"
    mode, words = os.stat(live.key).st_mode, "rejects the key in"
    before = reactor.log_count(words)
    os.chmod(live.key, 0o600)
    try:
        salt_lab.write(live.key, "x" * len(good))
        live.fire(tag, {})
        reactor.wait_for_log(words, before)
    finally:
        salt_lab.write(live.key, good)
        os.chmod(live.key, mode)
    row = reactor.reaction(tag)
    assert row["reaction"]["calls"][0]["tries"] > 1, row
    eventually("the runner's event", lambda: times(reactor, f"passed/{tag}"))


def test_a_job_that_the_master_refused_is_published_after_a_restart(live, reactor, bus):
    with open(live.key) as key:
        good = key.read()
    word = uuid.uuid4().hex
    try:
        salt_lab.write(live.key, "x" * len(good))
        live.fire(f"live/say/{word}", {"word": word})
        # With a wrong key the master fires `salt/job/<jid>/error`, which proves no job.
        eventually("the refusal in the archive", lambda: [
            event for event in reactor.events("--tag", "salt/job/*/error") if word in json.dumps(event)])
        reactor.kill()
    finally:
        salt_lab.write(live.key, good)
        os.chmod(live.key, 0o400)
    reactor.start()
    row = reactor.reaction(f"live/say/{word}")
    assert row["reaction"]["calls"][0]["outcome"] == "published", row
    assert returned(reactor, row, "ink-1")["args"] == [word]


def test_a_reactor_enabled_again_skips_events_from_the_time_between(live, reactor):
    config = f"{reactor.root}/c.yaml"
    with open(config) as file:
        with_reactor = file.read()
    assert reactor.stop() == 0
    word = uuid.uuid4().hex
    try:
        salt_lab.write(config, "{}")
        reactor.start()
        reactor.wait_for_bus()
        live.fire(f"live/say/{word}-between", {"word": f"{word}-between"})
        eventually("the event", lambda: reactor.events("--tag", f"live/say/{word}-between"))
        assert reactor.stop() == 0
    finally:
        salt_lab.write(config, with_reactor)
    reactor.start()
    reactor.wait_for_bus()
    live.fire(f"live/say/{word}", {"word": word})
    assert reactor.reaction(f"live/say/{word}")["reaction"]["state"] == "done"
    assert not reactor.history(f"live/say/{word}-between")


def test_reactions_wait_for_a_stopped_master(live, reactor):
    tag = f"live/late/{uuid.uuid4().hex}"
    live.fire(tag, {"id": "ink-1"})
    eventually("the event", lambda: reactor.events("--tag", tag))
    # The rule delays it for eight seconds; by then the master is down.
    live.kill("master")
    eventually("the master to be unreachable", lambda: reactor.json("reactor", "rules")["master_unreachable"])
    assert not reactor.history(tag)
    # It survives a restart.
    reactor.kill()
    reactor.start()
    live.master()
    row = reactor.reaction(tag)
    assert row["reaction"]["state"] == "done"
    eventually("the runner's event", lambda: times(reactor, f"passed/{tag}"))
    assert reactor.json("reactor", "rules")["master_unreachable"] is False


# ------------------------------------------------------------------- minions
CALLER = """
write it down:
  caller.file.write:
    - args:
      - path: DIR/{{ data['name'] }}
      - args: {{ data['name'] }} of {{ tag }}
apply it:
  caller.state.apply:
    - args:
      - mods: alone
as a list:
  caller.test.arg:
    - args: [1, two]
"""
TROUBLE = """
a raise:
  caller.test.exception:
    - args:
      - message: on purpose
a job:
  local.test.ping:
    - tgt: '*'
"""
FAILS = """
cannot write:
  caller.cmd.shell:
    - args:
      - cmd: echo done; echo x > /no/such/file
looks bad:
  caller.test.arg_clean:
    - args: [1]
"""
ON_BEACON = """
{% for beacon in data['beacons'] %}
note {{ loop.index }}:
  caller.file.write:
    - args:
      - path: DIR/beacon
      - args: {{ beacon['data']['raw'] | json }}
{% endfor %}
"""


SLOW = """
it takes a while:
  caller.cmd.shell:
    - args:
      - cmd: echo ran >> DIR/{{ data['name'] }}; while [ -e DIR/hold ]; do sleep 0.1; done
"""


def fired(live, name, data, tag):
    p = live.command("salt-call", "-c", f"{live.lab['dir']}/conf-{name}", "--out=json", "event.fire", json.dumps(data), tag)
    assert salt_lab.documents(p.stdout)[-1]["local"] is True, (p.stdout, p.stderr)


def test_a_masterless_minion_runs_reactions(live, place):
    root = f"{place}/alone"
    for name, text in (("caller", CALLER), ("trouble", TROUBLE), ("fails", FAILS), ("beacon", ON_BEACON), ("slow", SLOW)):
        salt_lab.write(f"{root}/srv/r/{name}.sls", text.replace("DIR", root))
    salt_lab.write(f"{root}/srv/alone.sls", f"{root}/made:\n  file.managed:\n    - contents: by a state\n")
    salt_lab.write(f"{root}/watched", "the log begins\n")
    live.configure("alone", file_client="local", master_type="disable", file_roots={"base": [f"{root}/srv"]},
                   beacons={"log": [{"file": f"{root}/watched"}, {"tags": {"t": {"regex": ".*alarm"}}}, {"interval": 1}]},
                   reactor=[{"go/*": "salt://r/caller.sls"}, {"slow/*": "salt://r/slow.sls"}, {"once/*": "salt://r/slow.sls"}, {"trouble": "salt://r/trouble.sls"}, {"fails": "salt://r/fails.sls"},
                            {"__beacons_return": "salt://r/beacon.sls"}])
    d = Reactor(f"{root}/sc", f"{live.lab['dir']}/alone/run", minion=f"{live.lab['dir']}/conf-alone/minion",
                python=f"{live.lab['bin']}/python", options=[{"rule": "once/*", "at_most_once": True}])
    with running(d):  # before the minion, which can happen at a host's start
        live.start("alone")
        d.wait_for_bus()
        fired(live, "alone", {"name": "written"}, "go/1")
        calls = d.reaction("go/1", calls=3)["reaction"]["calls"]
        assert [(call["client"], call["outcome"], call["tries"]) for call in calls] == [("caller", "ran", 1)] * 3, calls
        by_fun = {call["fun"]: call for call in calls}
        with open(f"{root}/written") as made, open(f"{root}/made") as applied:
            assert (made.read(), applied.read()) == ("written of go/1\n", "by a state\n")
        assert by_fun["test.arg"]["result"]["args"] == [1, "two"]
        assert all(state["result"] for state in by_fun["state.apply"]["result"].values())
        assert by_fun["state.apply"]["sls"].endswith("/r/caller.sls")
        # impossible calls fail immediately, and are tried once
        fired(live, "alone", {}, "trouble")
        calls = d.reaction("trouble", calls=2)["reaction"]["calls"]
        assert [(call["outcome"], call["tries"]) for call in calls] == [("dead", 1), ("dead", 0)], calls
        assert "on purpose" in calls[0]["why"] and "reactor.minion" in calls[1]["why"], calls
        # functions that ran and failed were shown as "ran", without code and output
        fired(live, "alone", {}, "fails")
        row = d.reaction("fails", calls=2)
        failed, fine = row["reaction"]["calls"]
        assert (failed["outcome"], failed["success"], failed["retcode"] != 0) == ("ran", False, True), failed
        assert failed["result"].startswith("done\n") and "/no/such/file" in failed["result"], failed
        assert (fine["success"], fine["retcode"], fine["result"]["args"]) == (True, 0, [1]), fine
        shown = d.json("reactor", "show", str(row["seq"]))["results"]
        assert [(one["success"], one["retcode"]) for one in shown] == [(False, failed["retcode"]), (True, 0)], shown
        assert shown[0]["return"] == failed["result"]
        text = d.cli("reactor", "show", str(row["seq"])).stdout
        assert f"ran, failed, retcode {failed['retcode']}, try 1" in text and "/no/such/file: " in text, text
        assert f"caller.cmd.shell: ran, failed, retcode {failed['retcode']}" in d.cli("reactor", "history").stdout
        alarm(f"{root}/watched", "the room is empty", lambda: os.path.exists(f"{root}/beacon") and os.path.getsize(f"{root}/beacon"))
        with open(f"{root}/beacon") as noted:
            assert noted.read() == "an alarm: the room is empty\n"
        # killed while a function runs: it runs again, or with `at_most_once` its outcome is unknown
        for tag, outcome, runs in (("slow/1", "ran", 2), ("once/1", "unknown", 1)):
            name = tag.replace("/", "-")
            # It runs while this file exists: until the daemon is killed, independent of the system's speed.
            salt_lab.write(f"{root}/hold", "")
            fired(live, "alone", {"name": name}, tag)
            eventually("the function to run", lambda: os.path.exists(f"{root}/{name}"))
            d.kill()
            os.remove(f"{root}/hold")
            d.start()
            call = d.reaction(tag)["reaction"]["calls"][0]
            with open(f"{root}/{name}") as ran:
                assert (call["outcome"], ran.read().count("ran")) == (outcome, runs), call


def test_a_minion_with_a_master_applies_the_masters_states(live, hub, place):
    root = f"{place}/hub"
    salt_lab.write(f"{root}/c.sls", "it:\n  caller.state.apply:\n    - args:\n      - mods: inked\n")
    d = Reactor(f"{root}/sc", f"{live.lab['dir']}/hub/run", minion=f"{live.lab['dir']}/conf-hub/minion",
                python=f"{live.lab['bin']}/python", rules=[{"go": [f"{root}/c.sls"]}])
    with running(d):
        d.wait_for_bus()
        fired(live, "hub", {}, "go")
        call = d.reaction("go")["reaction"]["calls"][0]
        assert call["outcome"] == "ran" and "it is inked" in json.dumps(call["result"]), call
