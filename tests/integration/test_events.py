"""The event bus and the archive hold the same events, each once."""
import collections
import json
import os
import uuid

import procs
import pytest
import rawbus
from conftest import WAIT_MAX, Daemon, eventually


def key(tag, data):
    return tag, json.dumps(data, sort_keys=True)


def archived(daemon, *args):
    return [(e["tag"], e["data"], e) for e in daemon.events(*args)]


@pytest.fixture
def recorder(lab):
    r = rawbus.Recorder(lab.sock_dir)
    yield r
    r.stop()


def between_marks(lab, recorder, daemons, work):
    """Calls `work` between two marker events; waits until the recorder and all daemons have the second one."""
    def fired():
        # the publisher may accept a new subscriber late: fire until one is received, each under a different tag
        def again():
            tag = f"lab/mark/{uuid.uuid4().hex}"
            lab.fire(tag, {"mark": True})
            return procs.poll(lambda: recorder.saw(tag), 2) and tag
        return eventually("an event of our own at the recorder", again)

    begin = fired()
    work()
    end = fired()
    for d in daemons:
        eventually("the last event in the archive", lambda: d.json("events", "list", "--tag", end)["events"])
    events = [(tag, rawbus.decode(data)) for tag, data in recorder.events()]
    tags = [t for t, _ in events]
    return events[tags.index(begin) + 1:tags.index(end)], begin, end


def work(lab, daemon):
    lab.salt("*", "test.ping")
    lab.salt("*", "state.apply", "works")
    lab.call("lab-2", "test.echo", "once")
    lab.run("labrun.progress", "3")
    lab.wheel("key.list_all")
    for fun in ("labmod.awkward", "labmod.raw_bytes", "labmod.big_integer", "labmod.deep", "labmod.packages"):
        jid = lab.publish("*", fun)
        eventually(fun, lambda: len(daemon.returned(jid)) == 2)
    lab.fire("lab/odd/žluť 🐴", {"text\n\ninside": "a\n\nb", "none": None, "list": [[], {}], "float": 1e300})
    for i in range(200):
        lab.fire(f"lab/burst/{i % 3}", {"i": i})


def test_each_event_of_the_bus_is_archived_once(lab, daemon, recorder):
    """Events are read from the bus and received through event_return, and are stored once."""
    seen, begin, end = between_marks(lab, recorder, [daemon], lambda: work(lab, daemon))
    want = collections.Counter(key(t, d) for t, d in seen)
    assert len(seen) > 230

    def differences():
        """Events with different counts in the archive and on the bus; event_return may still be pending."""
        have = collections.Counter(key(t, d) for t, d, _ in archived(daemon))
        return [(have[k], n, k[0], k[1][:300]) for k, n in want.items() if have[k] != n]

    def missing():
        """Events of which the archive has fewer than the bus, with both counts."""
        return [one for one in differences() if one[0] < one[1]]

    assert procs.poll(lambda: not missing(), WAIT_MAX), missing()
    settle(daemon)
    assert differences() == []
    # and no event in between that was not on the bus
    rows = archived(daemon)
    tags = [t for t, _, _ in rows]
    inside = collections.Counter(key(t, d) for t, d, _ in rows[tags.index(begin) + 1:tags.index(end)])
    assert [k[0] for k in inside if k not in want] == []


def settle(daemon):
    """Waits until the archive's end is unchanged for a second, in ten checks."""
    last, same = None, 0

    def still():
        nonlocal last, same
        head = daemon.status()["head"]
        last, same = head, same + 1 if head == last else 0
        return same >= 10
    eventually("the archive to settle", still)


def test_the_archive_works_with_no_python_in_the_path(lab, daemon, recorder, root):
    """A second daemon, unknown to Salt, reads the same bus."""
    os.makedirs(f"{root}/alone")
    alone = Daemon(f"{root}/alone", bus=lab.sock_dir)
    alone.start()
    try:
        alone.wait_for_bus()
        seen, begin, end = between_marks(lab, recorder, [alone, daemon], lambda: lab.salt("*", "test.echo", "native"))
        rows = archived(alone)
        tags = [t for t, _, _ in rows]
        got = [(t, d) for t, d, _ in rows[tags.index(begin) + 1:tags.index(end)]]
        assert [key(*e) for e in got] == [key(*e) for e in seen]  # also in the order of the bus
        assert sum("/ret/lab-" in t for t, _ in got) >= 2
        assert len({e["source"] for _, _, e in rows}) == 1
    finally:
        assert alone.stop() == 0


def test_events_are_found_by_tag_and_job(lab, daemon):
    jid = lab.publish("*", "test.echo", "found")
    eventually("both returns", lambda: len(daemon.returned(jid)) == 2)
    glob = f"salt/job/{jid}/ret/*"
    rows = eventually("both events", lambda: [e for e in daemon.events("--tag", glob)] if
                      len(daemon.events("--tag", glob)) == 2 else None)
    assert {e["minion"] for e in rows} == {"lab-1", "lab-2"}
    assert {e["jid"] for e in rows} == {jid}
    assert [e["data"]["return"] for e in rows] == ["found", "found"]
