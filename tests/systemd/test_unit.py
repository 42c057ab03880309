"""The unit itself: start, stop, restart, reload, sandbox, watchdog, full disk, reboot."""
import json
import os
import re

import pytest
from conftest import CONFIG, SALT
from procs import eventually

#: Connects all the time, and makes a call on each connection, until the file `stop` is there.
CLIENT = """
import json, os, socket, struct, sys, time
import msgpack
from collections import Counter
seen = Counter()
open('/run/client', 'w').close()
while os.path.exists('/run/client'):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(30)
    try:
        s.connect('/run/saltcellar/saltcellar.sock')
    except OSError as exc:
        seen[type(exc).__name__] += 1
        time.sleep(0.01)
        continue
    try:
        frame = msgpack.packb([1, 'status', {}])
        s.sendall(b'SCWIRE' + struct.pack('>H', 1) + struct.pack('>I', len(frame)) + frame)
        seen['answered' if s.recv(4) else 'closed'] += 1
    except OSError as exc:
        seen['closed'] += 1
    s.close()
print(json.dumps(seen))
"""


def test_the_machine_of_these_tests_shares_no_control_group_with_another(host):
    """Otherwise the start of a unit fails now and then while another host stops its own."""
    with open(f"/proc/{host.leader}/cgroup") as lines:
        groups = [path for _, controllers, path in (line.split(":", 2) for line in lines) if controllers in ("", "name=systemd")]
    assert groups and all(f"/{os.path.basename(host.dir)}/" in path for path in groups), groups


def test_exposure_is_at_most_2_5(daemon):
    rated = daemon.sh("systemd-analyze security --no-pager --threshold=25 saltcellar.service", check=False)
    print(rated.stdout)
    assert "Overall exposure level for saltcellar.service" in rated.stdout, rated
    assert rated.returncode == 0, rated.stdout


def test_sinks_write_to_the_log_directory_to_syslog_and_to_the_journal(daemon):
    match = [{"tag": "sandbox/*"}]
    daemon.configure(sinks={
        "file": {"match": match, "encoder": "json", "transport": {"file": {"path": "/var/log/saltcellar/events.jsonl"}}},
        "syslog": {"match": match, "encoder": "json", "transport": {"syslog": {"app_name": "saltevent"}}},
        "journal": {"match": match, "encoder": "json", "transport": {"journald": {"identifier": "saltentry"}}},
        "outside": {"match": match, "encoder": "json", "transport": {"file": {"path": "/var/log/events.jsonl"}}},
    })
    # More than a datagram holds, and than one argument.
    daemon.host.write("/root/large.json", json.dumps({"n": 1, "text": "x" * 300_000}))
    daemon.wait_for_bus()
    daemon.sh("saltcellar events send sandbox/one - < /root/large.json")

    def delivered():
        rows = {row["name"]: row for row in daemon.json("sinks", "list")["sinks"]}
        # A sink that has not seen the event yet has no lag either.
        return rows if all(rows[name]["counters"]["delivered"] and rows[name]["lag_entries"] == 0 for name in ["file", "journal"]) else None

    eventually("the deliveries", delivered)
    line = json.loads(daemon.sh("cat /var/log/saltcellar/events.jsonl").stdout)
    assert (line["tag"], line["data"]["n"]) == ("sandbox/one", 1)
    daemon.sh("journalctl --sync")
    entry = json.loads(daemon.sh("journalctl -o json --all -t saltentry").stdout)
    assert (entry["SALT_TAG"], entry["PRIORITY"]) == ("sandbox/one", "6")
    assert json.loads(entry["MESSAGE"])["id"] == line["id"]
    # Over its limit of a datagram, which syslog has no way around.
    assert delivered()["syslog"]["dead_letters"] == 1
    daemon.fire("sandbox/two")
    eventually("the message", lambda: "sandbox/two" in daemon.sh("journalctl --sync; journalctl -o cat _TRANSPORT=syslog", check=False).stdout)
    outside = daemon.json("sinks", "show", "outside")
    assert "Read-only file system" in outside["error"]["message"], outside


def connect_during(daemon, action):
    """What happened to connections while `action` ran."""
    daemon.host.write("/root/client.py", CLIENT)
    daemon.sh(f"rm -f /root/client.out; systemd-run -q --unit=client --collect -p StandardOutput=file:/root/client.out {SALT}/bin/python3 /root/client.py")
    eventually("the client runs", lambda: daemon.sh("test -e /run/client", check=False).returncode == 0)
    try:
        action()
    finally:
        daemon.sh("rm -f /run/client; while systemctl is-active -q client; do sleep .1; done")
    return json.loads(daemon.sh("cat /root/client.out").stdout)


@pytest.mark.parametrize("service, socket_unit, refused", [
    ((), False, False),
    (("FileDescriptorStoreMax=0",), True, False),
    # what the test sees without either
    (("FileDescriptorStoreMax=0",), False, True),
])
def test_a_restart_refuses_no_connection(daemon, service, socket_unit, refused):
    if socket_unit:
        daemon.sh("systemctl stop saltcellar; systemctl start saltcellar.socket")
    daemon.configure(service)

    def restart():
        before = daemon.pid
        daemon.restart()
        assert daemon.pid != before
        killed = daemon.pid
        daemon.sh(f"kill -9 {killed}")
        eventually("the killed daemon is replaced", lambda: daemon.pid not in (0, killed) and daemon.show("SubState") == "running")
        daemon.cli("status")
    try:
        seen = connect_during(daemon, restart)
    finally:
        if socket_unit:
            daemon.sh("systemctl stop saltcellar.socket saltcellar.service")
            daemon.changed = True
    answered, closed = seen.pop("answered"), seen.pop("closed", 0)
    assert answered > 20 and closed < 20, (seen, answered, closed)
    assert bool(seen) == refused, seen


def test_a_stopped_daemon_leaves_no_socket_that_answers(daemon):
    daemon.sh("systemctl stop saltcellar")
    daemon.changed = True
    failed = daemon.cli("status", check=False)
    assert failed.returncode and "/run/saltcellar/saltcellar.sock" in failed.stderr, failed


SERVICE, SOCKET = "saltcellar.service", "saltcellar.socket"
#: Units to start, or to stop, one after the other.
ORDERS = [(SERVICE,), (SOCKET,), (SERVICE, SOCKET), (SOCKET, SERVICE)]


@pytest.fixture
def both_units(daemon):
    """The daemon with its socket unit, without systemd's limit of starts."""
    for unit in (SERVICE, SOCKET):
        daemon.host.write(f"/etc/systemd/system/{unit}.d/often.conf", "[Unit]\nStartLimitIntervalSec=0\n")
    daemon.sh(f"systemctl stop {SOCKET} {SERVICE}")
    # It starts hundreds of times, and does nothing but answer.
    daemon.configure(restart=False, bus=[], reactor={})
    yield daemon
    daemon.changed = True
    daemon.sh(f"rm -r /etc/systemd/system/{SOCKET}.d /etc/systemd/system/{SERVICE}.d/often.conf; systemctl stop {SOCKET} {SERVICE};"
              f"systemctl daemon-reload; systemctl reset-failed {SOCKET} {SERVICE} || true")


def state(daemon, unit):
    """The state of a unit that neither starts nor stops. A connection between two stops still starts the service."""
    def settled():
        now = daemon.sh(f"systemctl is-active {unit}", check=False).stdout.strip()
        return now if now in ("active", "inactive", "failed") else None
    return eventually(f"{unit} to settle", settled)


def is_active(daemon, unit):
    return state(daemon, unit) == "active"


def answers(daemon, after, cursor):
    """A client reaches the daemon as long as one of the units is active, and without them none."""
    states = [state(daemon, unit) for unit in (SERVICE, SOCKET)]
    expected = "active" in states
    status = daemon.cli("status", "--output", "json", check=False)
    # 1: it runs, and has something to tell.
    reached = status.returncode in (0, 1) and "health" in json.loads(status.stdout or "{}")
    assert reached == expected, f"{after}: {states}, exit code {status.returncode}: {status.stderr}{daemon.log(cursor)}"


@pytest.mark.parametrize("started", ORDERS)
def test_the_socket_answers_after_every_order_of_stops_and_starts(both_units, started):
    daemon = both_units
    for stopped in ORDERS:
        for again in ORDERS:
            daemon.sh(f"systemctl stop {SOCKET} {SERVICE}")
            cursor = daemon.cursor()
            for verb, units in (("start", started), ("stop", stopped), ("start", again), ("restart", (SERVICE,))):
                for unit in units:
                    # systemd refuses to start a socket unit while its service runs.
                    refused = verb == "start" and unit == SOCKET and is_active(daemon, SERVICE)
                    done = daemon.sh(f"systemctl {verb} {unit}", check=False)
                    # As one text, of which pytest shows everything.
                    orders = f"started {started}, stopped {stopped}, started {again}"
                    assert refused or done.returncode == 0, f"{orders}: {verb} {unit}: {done.stderr}{daemon.log(cursor)}"
                answers(daemon, (started, stopped, again, verb, units), cursor)


@pytest.mark.parametrize("started", ORDERS)
def test_a_failed_start_leaves_a_socket_that_works(both_units, started):
    daemon = both_units
    cursor = daemon.cursor()
    for unit in started:
        daemon.sh(f"systemctl start {unit}", check=unit == SERVICE or SERVICE not in started)
    daemon.configure(restart=False, bus=[], reactor={}, busses=[])
    for verb in ("restart", "stop", "start"):
        daemon.sh(f"systemctl {verb} {SERVICE}", check=False)
    assert not is_active(daemon, SERVICE)
    daemon.configure(restart=False, bus=[], reactor={})
    daemon.sh(f"systemctl reset-failed {SOCKET} {SERVICE}; systemctl start {SERVICE}")
    answers(daemon, started, cursor)
    daemon.sh(f"systemctl stop {SERVICE}")
    answers(daemon, started, cursor)
    daemon.sh(f"systemctl restart {SERVICE}")
    answers(daemon, started, cursor)
    assert is_active(daemon, SERVICE)


def test_a_daemon_that_reads_no_bus_of_the_host_s_master_says_so(daemon):
    daemon.configure(bus=[], reactor={})
    reasons = [row["message"] for row in daemon.json("status")["health"]["reasons"]]
    assert any("no event of this host's Salt master is archived: `saltcellar setup`" in reason for reason in reasons), reasons
    assert "all is well" not in daemon.cli("status", check=False).stdout
    daemon.configure()
    assert daemon.json("status")["unread_bus"] is None


def test_another_state_directory_needs_a_line_that_the_error_names(daemon):
    cursor = daemon.cursor()
    daemon.sh("install -d -m 700 /srv/data")
    daemon.configure(restart=False, state_dir="/srv/data")
    assert daemon.sh("systemctl restart saltcellar", check=False).returncode
    daemon.changed = True
    assert "Read-only file system" in daemon.log(cursor) and "`ReadWritePaths=DIR` below [Service]" in daemon.log(cursor), daemon.log(cursor)
    daemon.configure(["ReadWritePaths=/srv/data"], state_dir="/srv/data")
    assert daemon.json("status")["state_dir"] == "/srv/data"


def test_planned_restarts_log_no_warning(daemon, salt):
    daemon.wait_for_bus()
    # An event proves that the bus is reread: a gap before, in which a test used another state directory, is recorded by then.
    daemon.fire("test/before/restart")
    cursor = daemon.cursor()
    daemon.restart()
    daemon.wait_for_log("the bus was not read during a restart", cursor)
    daemon.fire("test/before/the/masters")
    again = daemon.cursor()
    daemon.sh("systemctl restart salt-master")
    daemon.wait_for_log("event bus closed by Salt, reconnecting", again)
    daemon.wait_for_log("the bus was not read during a restart", again)
    warnings = [line for line in daemon.log(cursor).splitlines() if "WARN" in line and "bus" in line]
    assert not warnings, warnings


def test_a_socket_whose_file_was_removed_is_bound_anew(daemon):
    cursor = daemon.cursor()
    daemon.sh("rm /run/saltcellar/saltcellar.sock; systemctl restart saltcellar")
    daemon.cli("status")
    assert all(words in daemon.log(cursor) for words in ("socket kept by systemd not used", "its file was removed or replaced"))
    cursor = daemon.cursor()
    daemon.sh("systemctl restart saltcellar")
    daemon.cli("status")
    assert "is not used" not in daemon.log(cursor)


def test_a_reload_applies_the_reactor_and_names_keys_that_need_a_restart(daemon):
    assert daemon.json("status")["reactor"]
    # The daemon looks after the reactor's keys by itself, and on a busy host it may see the new file before the reload does. Then the
    # reload has nothing of the reactor to apply, and the next value is tried.
    for shadow in [True, False] * 10:
        cursor = daemon.cursor()
        daemon.configure(restart=False, socket_peers="read", reactor={**CONFIG["reactor"], "shadow": shadow})
        daemon.sh("systemctl reload saltcellar")
        assert daemon.json("reactor", "rules")["shadow"] is shadow
        log = daemon.log(cursor)
        assert 'take effect after `systemctl restart saltcellar` changed="' in log and 'needs_restart="socket_peers"' in log, log
        assert daemon.show("ActiveState") == "active"
        if "reactor configuration reloaded" not in log:
            break
    assert 'take effect after `systemctl restart saltcellar` changed="reactor.shadow" needs_restart="socket_peers"' in log, log
    assert log.count("reloaded") == 1, log


def test_a_change_beside_the_configuration_file_is_seen_within_seconds(daemon):
    assert daemon.json("reactor", "rules")["shadow"] is False
    try:
        daemon.host.write("/etc/saltcellar/conf.d/50-shadow.yaml", "reactor.shadow: true\n")
        eventually("the new file", lambda: daemon.json("reactor", "rules")["shadow"])
        cursor = daemon.cursor()
        daemon.host.write("/etc/saltcellar/conf.d/50-shadow.yaml", "reactor.shadow: maybe\n")
        daemon.wait_for_log("/etc/saltcellar/conf.d/50-shadow.yaml:1: reactor.shadow", cursor)
    finally:
        daemon.sh("rm -r /etc/saltcellar/conf.d")
    eventually("the removal", lambda: not daemon.json("reactor", "rules")["shadow"])


def test_a_reload_of_an_invalid_file_fails_and_changes_nothing(daemon):
    before, cursor = daemon.pid, daemon.cursor()
    daemon.configure(restart=False, reactor={**CONFIG["reactor"], "depth_max": "none"})
    reload = daemon.sh("systemctl reload saltcellar", check=False)
    assert reload.returncode, reload
    log = daemon.log(cursor)
    assert "changed configuration invalid, keeping the previous one: run `saltcellar config check`" in log, log
    assert "/etc/saltcellar/saltcellar.yaml:1: reactor.depth_max" in log, log
    assert (daemon.pid, daemon.show("ActiveState")) == (before, "active")
    # Before the file is corrected, which the daemon notices by itself.
    assert "depth_max" in daemon.json("reactor", "rules")["refused"]["why"]
    daemon.configure(restart=False)
    daemon.changed = True


def test_a_reactor_added_to_a_daemon_without_one_needs_a_restart(daemon):
    daemon.configure(reactor={})
    cursor = daemon.cursor()
    daemon.configure(restart=False)
    daemon.changed = True
    daemon.sh("systemctl reload saltcellar")
    log = daemon.log(cursor)
    assert 'take effect after `systemctl restart saltcellar` changed="none" needs_restart="reactor.master"' in log, log


def test_an_invalid_configuration_is_not_retried(daemon):
    cursor = daemon.cursor()
    daemon.configure(restart=False, busses=[])
    assert daemon.sh("systemctl restart saltcellar", check=False).returncode
    assert (daemon.show("Result"), daemon.show("NRestarts"), daemon.show("ExecMainStatus")) == ("exit-code", "0", "64")
    assert "/etc/saltcellar/saltcellar.yaml:1: busses: unknown key; the nearest known key is bus" in daemon.log(cursor)


def test_a_socket_group_other_than_the_unit_s_is_an_error_that_names_the_remedy(daemon):
    cursor = daemon.cursor()
    daemon.configure(restart=False, socket_group="salt")
    assert daemon.sh("systemctl restart saltcellar", check=False).returncode
    assert ("socket_group: this process may not give the socket to the group `salt`: under systemd, set Group=salt in the unit"
            in daemon.log(cursor))
    daemon.configure(["Group=salt"], socket_group="salt")
    assert daemon.sh("stat -c '%G %a' /run/saltcellar /run/saltcellar/saltcellar.sock").stdout == "salt 750\nsalt 660\n"


def test_a_daemon_that_hangs_is_restarted(daemon):
    daemon.configure(["WatchdogSec=1", "TimeoutAbortSec=1"])
    before, cursor = daemon.pid, daemon.cursor()
    daemon.sh(f"kill -STOP {before}")
    eventually("another daemon", lambda: daemon.pid not in (0, before) and daemon.show("SubState") == "running")
    daemon.cli("status")
    assert "saltcellar.service: Watchdog timeout (limit 1s)!" in daemon.log(cursor)


def test_a_full_disk_rejects_entries_and_recovers(daemon):
    daemon.sh("systemctl stop saltcellar; mkdir -p /root/kept; mv /var/lib/saltcellar /root/kept; mkdir /var/lib/saltcellar;"
              "mount -t tmpfs -o size=48M tmpfs /var/lib/saltcellar")
    try:
        daemon.configure(store={"free_bytes_min": "8MiB", "free_bytes_low": "16MiB"})
        daemon.wait_for_bus()
        cursor = daemon.cursor()
        daemon.sh("head -c 100M /dev/zero > /var/lib/saltcellar/fill || true")
        eventually("doctor to fail", lambda: "free" in daemon.cli("doctor", "--no-master", check=False).stdout)
        refused = eventually("a rejected entry", lambda: [done.stderr for done in [save(daemon)] if done.returncode])
        assert re.search("no space|disk|free", refused[0]), refused
        daemon.restart()
        daemon.cli("events", "list", "--limit", "1")
        daemon.sh("rm /var/lib/saltcellar/fill")
        eventually("entries are stored again", lambda: save(daemon).returncode == 0)
        daemon.wait_for_log("free space is sufficient dir=/var/lib/saltcellar", cursor)
        assert "disk full, new entries are rejected: free some space, or run `saltcellar store prune` dir=/var/lib/saltcellar free=0 min=8388608" in daemon.log(cursor)
    finally:
        daemon.sh("systemctl stop saltcellar; umount /var/lib/saltcellar; rmdir /var/lib/saltcellar; mv /root/kept/saltcellar /var/lib/")
        daemon.changed = True


#: Makes one call over the local socket, without the extension and its spool.
CALL = """
import socket, struct, sys
import msgpack
s = socket.socket(socket.AF_UNIX)
s.settimeout(30)
s.connect('/run/saltcellar/saltcellar.sock')
frame = msgpack.packb([1, 'save_reg', {'data': {'some': 'data'}}])
s.sendall(b'SCWIRE' + struct.pack('>H', 1) + struct.pack('>I', len(frame)) + frame)
stream = s.makefile('rb')
number, ok, value = msgpack.unpackb(stream.read(struct.unpack('>I', stream.read(4))[0]))
sys.exit(0 if ok else str(value))
"""


def save(daemon):
    """Stores an entry; the error is the daemon's response."""
    return daemon.sh(f"{SALT}/bin/python3 -", stdin=CALL, check=False)
