"""The reactor under the unit: the sandbox, Salt's Python, other users, minions, outages."""
import contextlib
import json

import pytest
from conftest import CONFIG, MASTER, Unit, wait_for_minion
from procs import eventually

#: Values that differ between any two processes, and not because of the sandbox.
VARIES = {"mktemp -u", "ps -eo comm", "free -b -t", "ss -Hltn", "network.netstat", "network.active_tcp"}


def probe(host):
    return json.loads(host.sh("cat /var/cache/salt/probe.json; rm /var/cache/salt/probe.json").stdout)


def inside_and_outside(daemon, tag):
    """The responses of Salt's Python in the unit, and the names of those that differ outside."""
    # An agent that runs would decrypt for both.
    end_agent = "gpgconf --homedir /etc/salt/gpgkeys --kill gpg-agent"
    daemon.sh(end_agent)
    daemon.fire(tag)
    daemon.reaction(tag)
    inside = probe(daemon.host)
    daemon.sh(end_agent)
    # Group and PATH as in the unit, no sandbox
    daemon.sh(f"export $(tr '\\0' '\\n' < /proc/{daemon.pid}/environ | grep ^PATH=); setpriv --regid saltcellar --keep-groups"
              f" saltcellar reactor render /srv/reactor/probe.sls --tag {tag} --config {daemon.config_file}")
    outside = probe(daemon.host)
    assert inside.keys() == outside.keys()
    differing = {name for name in inside if inside[name] != outside[name]} - VARIES
    for name in differing:
        print(name, inside[name], outside[name], sep="\n  ")
    return inside, differing


def test_salt_s_python_has_the_same_answers_as_outside(daemon, salt):
    inside, differing = inside_and_outside(daemon, "probe/shipped")
    assert not differing, {name: inside[name] for name in differing}
    assert inside["grains ip4_interfaces"] == {"lo": ["127.0.0.1", "192.0.2.7"]}
    assert "192.0.2.7" in inside["ip -json address"][1]
    assert (inside["callback"], inside["temporary file"]) == (7, 1)
    assert inside["secret"] == ["decrypted"]


@pytest.mark.parametrize("line, lost", [
    ("RestrictAddressFamilies=~AF_NETLINK", {"grains ip4_interfaces", "network.interfaces", "ip -json address", "interfaces"}),
    ("ReadWritePaths=", {"secret"}),
    ("PrivateTmp=no", {"temporary file"}),
    ("ProtectProc=invisible", {"cat /proc/1/cmdline", "status.pid"}),
])
def test_an_option_that_would_change_answers(daemon, salt, line, lost):
    more = ["ReadWritePaths=/var/cache/salt"] if line == "ReadWritePaths=" else []
    daemon.configure([line, *more])
    _, differing = inside_and_outside(daemon, f"probe/{line.split('=')[0]}")
    assert lost <= differing, differing


def test_files_of_other_backends_are_fetched(daemon, salt):
    daemon.fire("pushed/1")
    assert daemon.reaction("pushed/1")["calls"][0]["outcome"] == "published"


def test_a_cache_that_is_read_only_is_reported_with_the_remedy(daemon, salt):
    daemon.sh("rm -rf /var/cache/salt/master/minionfs /var/cache/salt/master/files")
    daemon.configure(["ReadWritePaths="])
    cursor = daemon.cursor()
    daemon.fire("pushed/2")
    failed = daemon.reaction("pushed/2")
    assert not failed["calls"], failed
    for text in (json.dumps(failed), daemon.log(cursor)):
        assert "fileserver_backend: [roots, minionfs] requires Salt to fetch the file: OSError: [Errno 30] Read-only file system: " in text, text
        assert "(if the daemon's systemd unit makes it read-only, add ReadWritePaths= for /var/cache/salt/master/" in text, text


def published(daemon, tag):
    """The calls of the only reaction to `tag` were published once, and the minion answered."""
    reaction = daemon.reaction(tag)
    assert [call["outcome"] for call in reaction["calls"]] == ["published"], reaction
    jid = reaction["calls"][0]["jid"]
    job = eventually(f"the return of {jid}", lambda: daemon.json("jobs", "show", jid)["returns"])
    assert [one["minion"] for one in job] == ["web1"]
    assert len(daemon.json("events", "list", "--no-limit", "--tag", f"salt/job/{jid}/new")["events"]) == 1
    return job[0]["return"]


def begin(daemon, tag):
    """Starts a rendering that lasts until `finish`."""
    daemon.sh("rm -f /var/cache/salt/started /var/cache/salt/finish")
    daemon.fire(tag)
    eventually("the rendering has started", lambda: daemon.sh("test -e /var/cache/salt/started", check=False).returncode == 0)


def finish(host):
    host.sh("touch /var/cache/salt/finish")


@pytest.mark.parametrize("interrupt", ["systemctl restart saltcellar", "kill -9 {pid}"])
def test_a_restart_during_a_rendering_loses_and_repeats_nothing(daemon, salt, interrupt):
    tag = f"slow/{interrupt.split()[0]}"
    begin(daemon, tag)
    daemon.sh(interrupt.format(pid=daemon.pid))
    finish(daemon)
    assert published(daemon, tag)["args"] == [tag]


def test_a_killed_process_of_salt_s_python_is_replaced(daemon, salt):
    begin(daemon, "slow/killed")
    before, cursor = (daemon.pid, daemon.show("NRestarts")), daemon.cursor()
    daemon.sh(f"kill -9 {' '.join(daemon.helpers())}")
    finish(daemon)
    assert published(daemon, "slow/killed")["args"] == ["slow/killed"]
    eventually("the log to name the process", lambda: "Salt's Python process died, retrying its request" in daemon.log(cursor))
    assert (daemon.pid, daemon.show("NRestarts")) == before


@contextlib.contextmanager
def little_memory(daemon):
    """The daemon and its children have 400 MB together. The container's systemd cannot set that on cgroup v1."""
    group = "/run/memory/saltcellar-tests"
    if daemon.sh("mountpoint -q /sys/fs/cgroup/memory", check=False).returncode:
        daemon.configure(["MemoryMax=400M", "MemorySwapMax=0"])
        yield
        return
    daemon.sh(f"mkdir /run/memory; mount -t cgroup -o memory memory /run/memory; mkdir {group}; echo 400M > {group}/memory.limit_in_bytes")
    try:
        daemon.configure(["SyslogIdentifier=saltcellar"])
        daemon.sh(f"for pid in {daemon.pid} $(cat /proc/{daemon.pid}/task/*/children); do echo $pid > {group}/cgroup.procs; done")
        yield
    finally:
        daemon.sh(f"systemctl stop saltcellar; rmdir {group}; umount /run/memory; rmdir /run/memory")


def test_the_daemon_continues_when_the_kernel_kills_salt_s_python_for_memory(daemon, salt):
    with little_memory(daemon):
        daemon.wait_for_bus()
        before, cursor = (daemon.pid, daemon.show("NRestarts")), daemon.cursor()
        daemon.fire("eat/1")
        assert published(daemon, "eat/1")["args"] == ["eat/1"]
        log = daemon.log(cursor)
        assert "Salt's Python process died, retrying its request" in log, log
        assert "it was killed by signal 9 (SIGKILL), as the kernel does when memory runs out" in log, log
        assert (daemon.pid, daemon.show("NRestarts")) == before
        assert (daemon.show("OOMPolicy"), daemon.show("Result")) == ("continue", "success")
        daemon.sh("rm /var/cache/salt/ate")


def test_reactions_wait_for_a_network_that_is_down(daemon, salt):
    daemon.sh("ip link set lo down")
    try:
        daemon.fire("job/network")
        eventually("an open reaction", lambda: daemon.json("reactor", "rules")["open"])
        assert not daemon.history("job/network")
    finally:
        daemon.sh("ip link set lo up")
    assert published(daemon, "job/network")["args"] == ["root", "job/network"]


@pytest.fixture(scope="module")
def salt_s_own_user(salt):
    """The master runs as `user: salt`."""
    paths = "/etc/salt/pki/master /var/cache/salt /var/log/salt /var/run/salt/master"
    salt.write("/etc/salt/master", json.dumps({**MASTER, "user": "salt"}))
    salt.sh(f"systemctl stop salt-master; chown -R salt:salt {paths}; rm -f /var/cache/salt/master/.*_key /var/cache/salt/started;"
            "chgrp salt /etc/salt/master; chmod 640 /etc/salt/master; systemctl start salt-master; systemctl restart salt-minion")
    wait_for_minion(salt)


USER_SALT = ["User=salt", "SupplementaryGroups=salt"]


@pytest.mark.parametrize("service", [(), USER_SALT])
def test_a_master_of_another_user(daemon, salt_s_own_user, service):
    daemon.configure(service)
    who = "salt" if service else "root"
    assert daemon.sh(f"stat -c '%U %G %a' /run/saltcellar /var/lib/saltcellar").stdout.split("\n")[:2] == [
        f"{who} saltcellar 750", f"{who} saltcellar 700"]
    daemon.fire(f"job/{who}")
    assert published(daemon, f"job/{who}")["args"] == ["salt", f"job/{who}"]
    daemon.sh("rm -rf /var/cache/salt/master/minionfs /var/cache/salt/master/files")
    daemon.fire(f"pushed/{who}")
    assert published(daemon, f"pushed/{who}")["args"] == ["salt", f"pushed/{who}"]


def test_a_process_of_another_user_that_takes_too_long_is_killed_without_cap_kill(daemon, salt_s_own_user):
    daemon.configure(reactor={**CONFIG["reactor"], "helper_timeout": "5s", "program_timeout": "5s"})
    begin(daemon, "slow/forever")
    helpers = daemon.helpers()
    assert helpers and daemon.show("CapabilityBoundingSet") == "cap_dac_override cap_setgid cap_setuid"
    failed = daemon.reaction("slow/forever")
    assert "Salt's Python took longer than 5 s (reactor.program_timeout) and was killed" in json.dumps(failed), failed
    eventually("the end of the process", lambda: not set(helpers) & set(daemon.helpers()))


def test_tmpfiles_leave_the_directories_to_user_salt(daemon, salt_s_own_user):
    daemon.configure(USER_SALT)
    for _ in range(2):
        daemon.sh("systemd-tmpfiles --create saltcellar.conf")
        assert daemon.sh("stat -c '%U %a' /run/saltcellar").stdout == "salt 750\n"
        daemon.restart()
        daemon.cli("status")


def test_a_minion_s_reactor_beside_the_master_s(daemon, salt):
    minion = Unit(salt, "saltcellar-minion", "/etc/saltcellar/minion/saltcellar.yaml",
                  {"bus": ["/var/run/salt/minion"], "reactor": {"minion": "/etc/salt/minion"}})
    minion.configure()
    try:
        minion.fire("own/1", json.dumps({"name": "first", "seconds": 0}))
        assert [call["outcome"] for call in minion.reaction("own/1")["calls"]] == ["ran"]
        assert minion.sh("cat /root/first; stat -c %s /etc/first").stdout == "root\n0\n"
        assert minion.sh("stat -c '%U %a' /run/saltcellar-minion /var/lib/saltcellar-minion").stdout == "root 700\nroot 700\n"
        # A state run continues while this daemon restarts.
        minion.fire("own/2", json.dumps({"name": "second", "seconds": 3}))
        eventually("the function runs", lambda: minion.sh("pgrep -fx 'sleep 3'", check=False).stdout)
        minion.restart()
        eventually("the function's end", lambda: minion.sh("cat /root/second", check=False).stdout == "root\n")
        assert daemon.show("ActiveState") == "active"
    finally:
        minion.sh("systemctl stop saltcellar-minion; rm -rf /etc/systemd/system/saltcellar-minion.service.d")


def test_a_reboot_loses_nothing(daemon, salt):
    daemon.sh("mkdir -p /etc/systemd/system/tests.target.wants; cd /etc/systemd/system/tests.target.wants;"
              "for unit in saltcellar salt-master salt-minion; do ln -s ../$unit.service .; done")
    begin(daemon, "slow/reboot")
    jobs = len(daemon.json("jobs", "list", "--limit", "1000")["jobs"])
    salt.reboot()
    # A job that is published before the minion is back has no return.
    wait_for_minion(salt)
    finish(salt)
    daemon.cli("status")
    assert len(daemon.json("jobs", "list", "--limit", "1000")["jobs"]) >= jobs > 0
    assert published(daemon, "slow/reboot")["args"] == ["slow/reboot"]
