"""The daemon dies or is unreachable: no acknowledged entry is lost, and Salt continues."""
import threading
import time

from conftest import WAIT_MAX, eventually

BOTH = ["lab-1", "lab-2"]


class Writer(threading.Thread):
    """Writes returns to the local socket one by one, and records the acknowledged ones."""

    def __init__(self, daemon, prefix):
        super().__init__(name="writer", daemon=True)
        self.daemon_, self.prefix, self.acknowledged = daemon, prefix, []
        self.start()

    def run(self):
        try:
            with self.daemon_.connect() as wire:
                for i in range(1_000_000):
                    jid = f"{self.prefix}{i:06d}"
                    wire.call("returner", load={"jid": jid, "id": "writer", "fun": "test.echo", "return": i,
                                                "retcode": 0, "success": True})
                    self.acknowledged.append(jid)
        except OSError:
            pass  # the daemon was killed, as expected


def test_a_daemon_killed_during_jobs_has_all_acknowledged_entries(lab, daemon):
    prefix = "20260101000000"  # in the past, so that these rows follow the real ones
    jids = [lab.publish("*", "test.echo", f"before {i}") for i in range(5)]
    writer = Writer(daemon, prefix)
    eventually("some acknowledged writes", lambda: len(writer.acknowledged) >= 50)
    jids += [lab.publish("*", "test.echo", f"amid {i}") for i in range(5)]
    daemon.kill()
    writer.join(WAIT_MAX)
    assert not writer.is_alive()
    # while it is unreachable the extension generates the jids and spools the returns
    jids += [lab.publish("*", "test.echo", f"after {i}") for i in range(3)]

    daemon.start()
    with daemon.connect() as wire:
        for n, jid in enumerate(writer.acknowledged):
            assert wire.call("get_jid", jid=jid)["writer"]["return"] == n
    # spooled entries are sent with the extension's next call
    assert lab.salt("*", "test.ping") == {m: True for m in BOTH}
    for jid in jids:
        eventually(f"both returns of {jid}", lambda: daemon.returned(jid) == BOTH)
        assert daemon.job(jid)["fun"] == "test.echo"


def test_with_an_unreachable_daemon_salt_works_and_jobs_arrive_later(lab, daemon):
    def ping():
        began = time.monotonic()
        assert lab.salt("*", "test.ping") == {m: True for m in BOTH}
        return time.monotonic() - began

    usual = ping()
    assert daemon.stop() == 0
    took = ping()
    assert took < usual + 25, f"{took:.1f} s, and {usual:.1f} s with the daemon"
    jid = lab.detached("*", "test.echo", "while away")
    # Both the returner and event_return of the master have spooled these before the bus is reconnected.
    eventually("the returns to be spooled", lambda: lab.spooled(jid) >= len(BOTH))

    daemon.start()
    lab.salt("*", "test.ping")
    eventually("both returns", lambda: daemon.returned(jid) == BOTH)
    row = next(j for j in daemon.jobs() if j["jid"] == jid)
    assert (row["fun"], row["arg"], row["tgt"]) == ("test.echo", ["while away"], "*")
    assert lab.run("jobs.lookup_jid", jid) == {m: "while away" for m in BOTH}
    eventually("the spool to be handed over", lambda: lab.spooled(jid) == 0)
    events = daemon.json("events", "list", "--jid", jid, "--limit", "100")["events"]
    # A minion that waits long for its acknowledgement returns again: that is another event, with another time.
    found = sorted((event["tag"], event["data"].get("_stamp")) for event in events)
    assert found == sorted(set(found)), "each event is in the archive once"
    assert {f"salt/job/{jid}/ret/{m}" for m in BOTH} <= {tag for tag, _ in found}


def test_the_bus_is_read_again_after_a_restart(lab, daemon):
    daemon.stop()
    daemon.start()
    daemon.wait_for_bus()
    lab.fire("lab/after/restart", {"x": 1})
    eventually("the event", lambda: daemon.json("events", "list", "--tag", "lab/after/restart")["events"])
