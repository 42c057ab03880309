"""saltcellar in shadow beside a real master with Salt's reactor: equal calls are reported as equal, others as differences."""
import datetime
import json

import pytest
import salt_lab
from conftest import REACTIONS, Reactor, eventually, live_lab, running

# Time limit of Salt's reactor after an event. Its first call of each kind is the slowest, and is made before the
# comparison.
WINDOW = 10

FILES = {
    **REACTIONS,
    "apply.sls": """
apply to {{ data['id'] }}:
  local.state.apply:
    - tgt: {{ data['id'] }}
    - args:
      - mods: works
      - pillar:
          who: {{ data['id'] }}
""",
    "say.sls": """
say {{ data['word'] }}:
  local.test.arg:
    - tgt: 'lab-*'
    - arg:
      - {{ data['word'] }}
      - 20
    - kwarg:
        tag: {{ tag }}
    - metadata:
        by: reactor
""",
    "old.sls": """
the old way:
  runner.test.arg:
    - arg:
      - {{ data['word'] }}
    - kwarg:
        a: [1, 2]
""",
    "absent.sls": """
no target:
  local.test.ping:
    - tgt: no-such-minion
""",
    "busy.sls": """
keep a worker busy:
  runner.test.sleep:
    - args:
      - s_time: 6
""",
    # Other files for the same events, for our reactor only.
    "say2.sls": """
say {{ data['word'] }}:
  local.test.arg:
    - tgt: 'lab-*'
    - arg:
      - {{ data['word'] }}
      - 21
    - kwarg:
        tag: {{ tag }}
    - metadata:
        by: saltcellar
""",
    "old2.sls": """
the new way:
  runner.test.metasyntactic:
    - args:
      - locality: uk
""",
}
# One event per rule, whose file contains the event's name; each causes one call.
EVENTS = {"shadow/apply": {"id": "lab-1"}, "shadow/say": {"word": "hello"}, "shadow/orch": {"word": "from the event"},
          "shadow/old": {"word": "old"}, "shadow/wheel": {"id": "lab-1"}, "shadow/absent": {}}

# Concurrent runners of Salt's reactor, and more than it can start within the window.
WORKERS, BUSY = 2, 5


def rules_of(directory, **others):
    """`reactor:` of a configuration: a rule for each event, with the file of its name or another one."""
    files = {tag: others.get(tag[7:], tag[7:] + ".sls") for tag in EVENTS}
    return [{tag: [f"{directory}/{name}"]} for tag, name in files.items() if name]


@pytest.fixture(scope="module")
def lab_of_two_reactors(place):
    """A master with Salt's reactor, and a daemon in shadow that is its job cache."""
    lab_dir = f"{place}/lab"
    for name, text in FILES.items():
        salt_lab.write(f"{place}/r/{name}", text)
    salt_lab.write(f"{lab_dir}/srv/salt/works.sls", "it works:\n  test.nop: []\n")
    salt_lab.write(f"{lab_dir}/srv/salt/orch/works.sls",
                   "say it:\n  salt.function:\n    - name: test.arg\n    - tgt: lab-1\n    - arg:\n"
                   "      - {{ pillar['word'] }}\nrun it:\n  salt.runner:\n    - name: test.arg\n    - arg: [inner]\n")
    d = Reactor(f"{place}/sc", f"{lab_dir}/master/run", master=f"{lab_dir}/conf/master", shadow_window=f"{WINDOW}s")
    with live_lab(lab_dir, minions=1, master_conf={
            "master_job_cache": "saltcellar", "saltcellar.socket": d.socket, "reactor_worker_threads": WORKERS,
            "reactor": [*rules_of(f"{place}/r"), {"busy": [f"{place}/r/busy.sls"]}]}) as lab, running(d):
        d.wait_for_bus()
        fire_all(lab)
        # The job without a target leaves no return; the orchestration starts a job and a runner, which are not
        # reactions.
        eventually("Salt's reactor has warmed up", lambda: seen(d, len(EVENTS) - 1 + 2))
        yield lab, d


def shadow(d, *args):
    """The output of the comparison, and its exit code."""
    p = d.cli("reactor", "diff", "--exit-code", "--output", "json", *args, check=False)
    return json.loads(p.stdout), p.returncode


def now():
    """A time after everything until now, in the form of the command line."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")


def fire_all(lab):
    for tag, data in EVENTS.items():
        lab.fire(tag, data)


def seen(d, count):
    """Whether Salt's reactor has published so many jobs."""
    tags = "salt/run/*/new", "salt/wheel/*/new", "salt/job/*/new"
    return len([e for tag in tags for e in d.events("--tag", tag, "--since", "1h")]) >= count


def test_both_reactors_make_the_same_calls(lab_of_two_reactors):
    lab, d = lab_of_two_reactors
    listed = d.json("reactor", "rules")
    assert listed["shadow"] and len(listed["rules"]) == len(EVENTS) + 1, listed
    since = now()
    fire_all(lab)

    def same():
        found, code = shadow(d, "--since", since)
        return (found, code) if found["waiting"]["saltcellar"] == 0 and sum(found["counts"].values()) else None
    found, code = eventually("the comparison", same)
    assert (found["counts"]["same"], found["differences"], code) == (len(EVENTS) - 1, [], 0), found
    assert found["not_comparable"] == {}, "with the loads of jobs everything is visible"
    assert all(rule["same"] == (rule["rule"] != "shadow/absent") for rule in found["rules"]), found
    assert not d.json("reactor", "history", "--tag", "shadow/old")["reactions"][0]["reaction"]["calls"][0]["tries"]


def test_equal_runners_were_reported_as_differences_while_salts_workers_were_busy(lab_of_two_reactors):
    lab, d = lab_of_two_reactors
    since = now()
    for _ in range(BUSY):
        lab.fire("busy", {})

    def compared():
        found, _ = shadow(d, "--since", since)
        return found if found["waiting"] == {"saltcellar": 0, "salt": 0} and sum(found["counts"].values()) >= BUSY else None
    found = eventually("the comparison", compared)
    assert (found["counts"]["same"], found["differences"]) == (BUSY, []), found
    started = [event["time"] for event in d.events("--tag", "salt/run/*/new", "--since", since)
             if event["data"]["fun"] == "runner.test.sleep"]
    first, last = (datetime.datetime.fromisoformat(time.rstrip("Z")) for time in (started[0], started[-1]))
    assert last - first > datetime.timedelta(seconds=WINDOW), "otherwise no call had to wait"


def test_each_difference_is_shown(lab_of_two_reactors, place):
    lab, d = lab_of_two_reactors
    before = d.status()["counters"]
    d.configure(rules=rules_of(f"{place}/r", say="say2.sls", old="old2.sls", orch=None))
    eventually("it to take effect", lambda: "say2.sls" in json.dumps(d.json("reactor", "rules")["rules"]))
    since = now()
    fire_all(lab)

    def compared():
        found, code = shadow(d, "--since", since)
        done = found["waiting"] == {"saltcellar": 0, "salt": 0} and sum(found["counts"].values())
        return (found, code) if done else None
    found, code = eventually("the comparison", compared)
    assert code == 1
    counts = {"same": 2, "different": 1, "only_saltcellar": 1, "only_salt": 2, "saltcellar_failed": 0, "not_comparable": 0}
    assert found["counts"] == counts, found
    one = {d["what"]: d for d in found["differences"]}
    fields = {f["field"]: (f["saltcellar"], f["salt"]) for f in one["different"]["fields"]}
    assert fields == {"arg[1]": (21, 20), "load.metadata.by": ("saltcellar", "reactor")}
    assert one["different"]["saltcellar"]["rules"] == ["shadow/say"]
    assert one["different"]["salt"]["call"]["sls"] == f"{place}/r/say.sls"
    assert one["only_saltcellar"]["saltcellar"]["call"]["fun"] == "test.metasyntactic"
    alone = {d["salt"]["call"]["fun"] for d in found["differences"] if d["what"] == "only_salt"}
    assert alone == {"state.orchestrate", "test.arg"}
    # As text, and counted in the meantime.
    printed = d.cli("reactor", "diff", "--since", since, check=False).stdout
    assert "different: local.test.arg lab-*" in printed and "arg[1]: saltcellar 21, Salt 20" in printed, printed

    def counted():
        # The daemon compares at its own pace.
        counters = d.status()["counters"]
        return counters if all(counters[f"shadow_calls_{what}"] >= before[f"shadow_calls_{what}"] + count for what, count in counts.items()
                               if what not in ("saltcellar_failed", "not_comparable")) else None
    counters = eventually("the daemon to have counted it", counted)
    assert (counters["shadow_calls_different"], counters["shadow_calls_only_saltcellar"]) == (1, 1), counters
    # The log alone is the source of the comparison.
    d.kill()
    d.start()
    assert shadow(d, "--since", since)[0]["counts"] == counts


def test_a_request_to_the_reactor_had_two_answers_in_shadow(lab_of_two_reactors):
    lab, d = lab_of_two_reactors
    lab.run("reactor.list")

    def answers():
        return d.events("--tag", "salt/reactors/manage/list-results")
    eventually("Salt's reactor to answer", answers)

    def is_through():
        # By the time its record about the request is written, our reactor would have answered.
        listed = d.json("reactor", "rules")
        return not listed["behind"] and not listed["open"]
    eventually("ours to be through with it", is_through)
    lab.fire("after/the/answers", {})
    eventually("what was fired before to be stored", lambda: d.events("--tag", "after/the/answers"))
    assert len(answers()) == 1
