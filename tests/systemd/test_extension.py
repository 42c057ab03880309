"""The parts of the extension beside the returner, under the shipped unit: runner, execution module, beacon, engine, keys, end of processes."""
import contextlib
import importlib.metadata
import json

import pytest
from conftest import boot
from procs import eventually, poll
from salted import SALT, UNIT, Salted, wait_for_minion

PYTHON = f"{SALT}/bin/python3 -W ignore"
SHARE = "/usr/share/saltcellar"
MASTER = {
    "reactor": [{"act/*": ["/srv/reactor/act.sls"]}], "saltcellar.reactor_fallback": True, "saltcellar.timeout": 5,
    "job_cache_store_endtime": True, "external_auth": {"sharedsecret": {"alice": ["@runner"], "bob": ["test.ping"]}}, "sharedsecret": "word",
    "netapi_enable_clients": ["runner"], "rest_cherrypy": {"host": "127.0.0.1", "port": 8000, "disable_ssl": True},
}
MINION = {"module_dirs": [SHARE], "beacons": {"saltcellar_spool": [{"age": 0}, {"interval": 1}]}, "saltcellar.timeout": 5}
ACT = """
act:
  local.cmd.run:
    - tgt: web1
    - arg:
      - echo {{ tag }} >> /root/acted
"""
#: Prints the response of salt-api to a user's call of a runner.
ASK = """
import json, sys, urllib.error, urllib.request
call = dict(zip(("username", "fun"), sys.argv[1:3]), password="word", eauth="sharedsecret", client="runner", kwarg=json.loads(sys.argv[3]))
ask = urllib.request.Request("http://127.0.0.1:8000/run", json.dumps([call]).encode(), {"Content-Type": "application/json", "Accept": "application/json"})
try:
    print(urllib.request.urlopen(ask, timeout=60).read().decode())
except urllib.error.HTTPError as exc:
    print(json.dumps(exc.code))
"""
#: Fires events with these tags on the master's bus, without Salt's imports.
FIRE = """
import sys
sys.path.insert(0, "/src/tests/lab")
import rawbus
bus = "/var/run/salt/master"
framing = rawbus.probe(bus)["pull"]
for tag in sys.argv[1:]:
    rawbus.fire_as(bus, tag, {"_stamp": "2026-01-01T00:00:00.000001"}, framing).close()
"""
#: Seconds for a lease and its margin, on a busy machine: a limit, not a wait.
LEASE_MAX_S = 300


@pytest.fixture(scope="module")
def booted(package_dir):
    host = boot(lambda: Salted(package_dir))
    try:
        host.sh(f"dpkg -i /packages/1.deb; cp -r /src/salt/tests/data/https /etc/saltcellar")
        for name, text in (("/srv/reactor/act.sls", ACT), ("/root/ask.py", ASK), ("/root/fire.py", FIRE), ("/etc/salt/master.d/own.conf", "engines: [test]\n"),
                           ("/etc/systemd/system/salt-api.service", UNIT.format(salt=SALT, role="api"))):
            host.write(name, text)
        host.configure_salt(minion=MINION, **MASTER)
        host.cli("setup", "--yes", "--reactor")
        host.sh("systemctl start --no-block salt-master salt-minion")
        wait_for_minion(host)
        yield host
    finally:
        # pytest shows it for a failed test.
        print(host.sh("tail -n 30 /var/log/salt/*", check=False).stdout)
        host.stop()


@pytest.fixture
def site(booted):
    """A host after `saltcellar setup --reactor`, with the modules on its minion."""
    yield booted
    # pytest shows it for a failed test.
    print(booted.sh("journalctl -u saltcellar -o short-precise --no-pager; tail -n 50 /var/log/salt/*", check=False).stdout)


@contextlib.contextmanager
def daemon_stopped(site):
    site.sh("systemctl stop saltcellar.socket saltcellar.service")
    try:
        yield
    finally:
        site.sh("systemctl start saltcellar.socket saltcellar.service")


def events(site, tag):
    return json.loads(site.cli("events", "list", "--no-limit", "--tag", tag, "--output", "json").stdout)["events"]


def job(site, jid):
    return json.loads(site.cli("jobs", "show", jid, "--output", "json").stdout)


def ask(site, user, fun, args):
    """The response of salt-api, or the code of its refusal."""
    return json.loads(site.sh(f"{PYTHON} /root/ask.py {user} {fun} '{json.dumps(args)}'").stdout)


def test_the_runner_through_salt_run_and_salt_api(site):
    jid = site.job("test.arg", "kept")
    assert site.salt("salt-run", "saltcellar.job", jid)["returns"][0]["return"]["args"] == ["kept"]
    assert site.salt("salt-run", "saltcellar.status")["bus"][0]["connected"]

    site.sh("systemctl start --no-block salt-api")
    try:
        eventually("salt-api listens", lambda: site.sh("ss -Hltn sport = 8000").stdout)
        (found,) = ask(site, "alice", "saltcellar.jobs", {"fun": "test.arg"})["return"]
        assert [row["jid"] for row in found["jobs"]] == [jid], found
        assert ask(site, "bob", "saltcellar.jobs", {}) == 401
    finally:
        site.sh("systemctl stop salt-api")


def test_a_minion_s_spool_is_shown_reported_and_flushed(site):
    assert site.salt("salt", "web1", "saltcellar.status")["web1"]["reachable"]
    with daemon_stopped(site):
        jid = site.salt("salt-call", "--local", "saltcellar.send", "backup.nightly", "{bytes: 5}", "success=False")["local"]
        # Its exit code says that the daemon is away.
        shown = site.salt("salt-call", "--local", "saltcellar.status", check=False)["local"]
        assert (shown["reachable"], shown["spool"]["entries"]) == (False, 1), shown
        assert shown["error"] == (
            "no response from the saltcellar daemon at /run/saltcellar/saltcellar.sock: no daemon listens there "
            "([Errno 111] Connection refused): start it with `systemctl start saltcellar`, or correct saltcellar.socket"), shown
    (report, *_) = eventually("the beacon's event", lambda: events(site, "salt/beacon/web1/saltcellar_spool/*"))
    assert (report["data"]["entries"], report["data"]["lost"]) == (1, {}), report
    assert site.salt("salt-call", "--local", "saltcellar.flush")["local"]["entries"] == 0
    (stored,) = job(site, jid)["returns"]
    assert (stored["minion"], stored["return"], stored["retcode"]) == ("web1", {"bytes": 5}, 1), stored


def fire(site, *tags):
    site.sh(f"{PYTHON} /root/fire.py {' '.join(tags)}")


def acted(site):
    return site.sh("cat /root/acted", check=False).stdout.split()


def fire_until_acted(site, tag):
    """Fires numbered events until one is acted on: a reactor that starts misses the first. Returns their tags."""
    tags = []

    def probe():
        tags.append(f"{tag}/{len(tags)}")
        fire(site, tags[-1])
        return poll(lambda: tags[-1] in acted(site), 3, pause=0.1)
    eventually(f"a reaction to {tag}", probe, LEASE_MAX_S)
    return tags


def acting(site):
    """The acting reactor of each rule, as the daemon reports it."""
    return [rule["handled_by"] for rule in json.loads(site.cli("reactor", "rules", "--output", "json").stdout)["rules"]]


def test_salt_s_reactor_acts_while_the_daemon_is_stopped(site):
    merged = "import salt.config; print(salt.config.master_config('/etc/salt/master')['engines'])"
    assert site.sh(f'{PYTHON} -c "{merged}"').stdout == "['test', 'saltcellar_reactor']\n"
    eventually("a lease", lambda: acting(site) == ["saltcellar"], LEASE_MAX_S)
    fire_until_acted(site, "act/saltcellar")
    site.sh(f"systemd-run -q --unit=bus --collect -p StandardOutput=file:/root/bus {PYTHON} -u {SALT}/bin/salt-run state.event saltcellar/reactor/*")
    try:
        with daemon_stopped(site):
            log = "/var/log/salt/master"
            eventually("the fallback", lambda: "Salt's reactor acts, as the fallback" in site.sh(f"cat {log}").stdout, LEASE_MAX_S)
            fallback = fire_until_acted(site, "act/salt")
        back = [f"act/back/{n}" for n in range(4)]
        for tag in back:
            fire(site, tag)
        eventually("a lease again", lambda: acting(site) == ["saltcellar"], LEASE_MAX_S)
        fire_until_acted(site, "act/again")
        seen = eventually("both events", lambda: (lambda lines: len(lines) > 1 and lines)(site.sh("grep ^saltcellar/ /root/bus", check=False).stdout.splitlines()))
    finally:
        site.sh("systemctl stop bus")
    tags = acted(site)
    assert len(tags) == len(set(tags)), f"acted twice: {tags}"
    assert fallback[-1] in tags and not site.cli("reactor", "history", "--tag", fallback[-1], "--output", "json").stdout.count('"published"')
    (unreachable, why), (reachable, _) = (line.split("\t", 1) for line in seen)
    assert (unreachable, reachable) == ("saltcellar/reactor/unreachable", "saltcellar/reactor/reachable"), seen
    why = json.loads(why)
    assert why["fallback"] is True and "/run/saltcellar/saltcellar.sock: no daemon listens there ([Errno 111] Connection refused)" in why["error"], why


@pytest.mark.skipif(importlib.metadata.version("salt") < "3008", reason="keys.cache_driver is new in 3008")
def test_keys_of_another_driver_are_reported(site):
    site.sh("systemctl stop salt-master salt-minion; rm /etc/salt/pki/minion/minion_master.pub", check=False)
    site.write("/etc/salt/master.d/keys.conf", "keys.cache_driver: mmap_key\n")
    site.sh("systemctl start --no-block salt-master salt-minion")
    wait_for_minion(site)
    tls = {"listen": "127.0.0.1:4580", "certificate": "/etc/saltcellar/https/server.pem", "key": "/etc/saltcellar/https/server.key"}
    site.sh("cat >> /etc/saltcellar/saltcellar.yaml; systemctl restart saltcellar", stdin=f"https: {json.dumps(tls)}\n")
    assert site.findings("pki_dir") == [("problem", "keys.cache_driver is mmap_key (/etc/salt/master.d/keys.conf:1)")]
    why = ("the master keeps its keys in /etc/salt/pki/master/.mmap_keys.idx (keys.cache_driver: mmap_key), and the minion listener reads only "
           "files of localfs_key; if the master uses localfs_key again, remove .mmap_keys.idx*")
    site.sh("journalctl --sync")
    assert f"why={why}" in site.sh("journalctl -u saltcellar -o cat --no-pager").stdout
    site.write("/root/minion", json.dumps({"id": "web1", "pki_dir": "/etc/salt/pki/minion", "file_client": "local", "module_dirs": [SHARE],
                                           "saltcellar.url": "https://localhost:4580", "saltcellar.ca": "/etc/saltcellar/https/ca.pem"}))
    site.sh(f"mkdir -p /root/far; mv /root/minion /root/far; {PYTHON} {SALT}/bin/salt-call -c /root/far --local test.ping --return saltcellar", check=False)
    refused = site.sh("journalctl --sync; journalctl -u saltcellar -o cat --no-pager").stdout
    assert f"the accepted key of minion web1 cannot be read: {why}" in refused, refused
