"""`saltcellar events send` on a real master: Salt's listener and the archive receive the event."""
import json
import uuid

from conftest import WAIT_MAX, eventually


def listen(lab, tag):
    """Salt's listener, subscribed when returned."""
    import salt.config
    import salt.utils.event
    opts = salt.config.client_config(f"{lab.lab['dir']}/conf/master")
    event = salt.utils.event.get_event("master", sock_dir=opts["sock_dir"], opts=opts, listen=True)
    assert event.connect_pub(timeout=WAIT_MAX)
    # the publisher may accept late
    mark = f"lab/mark/{uuid.uuid4().hex}"

    def hears():
        lab.fire(mark, {})
        return event.get_event(wait=1, tag=mark, no_block=False)
    eventually("Salt's listener", hears)
    return event


def test_salts_listener_and_the_archive_receive_it(lab, daemon):
    tag = f"deploy/{uuid.uuid4().hex}"
    data = {"app": "shop", "list": [1, 2.5, None, {"text": "žluť"}], "yes": True}
    with listen(lab, tag) as event:
        answer = daemon.json("events", "send", tag, json.dumps(data))
        received = event.get_event(wait=WAIT_MAX, tag=tag, full=True)
    assert received["tag"] == tag
    assert received["data"] == {**data, "_stamp": answer["_stamp"]}
    rows = eventually("it in the archive", lambda: daemon.events("--tag", tag))
    assert [e["data"] for e in rows] == [{**data, "_stamp": answer["_stamp"]}]
    assert rows[0]["source"] in ("bus", "event_return")  # the first one to arrive


def test_the_stamp_has_the_form_of_this_release(lab, daemon):
    tag = f"stamp/{uuid.uuid4().hex}"
    lab.salt("*", "test.ping")
    own = eventually("the job's event", lambda: daemon.events("--tag", "salt/job/*/new"))[-1]["data"]["_stamp"]
    stamp = daemon.json("events", "send", tag)["_stamp"]
    assert len(stamp.partition("+")[2]) == len(own.partition("+")[2]), (stamp, own)


def test_many_events_are_archived_once_and_in_order(lab, daemon):
    tag = f"many/{uuid.uuid4().hex}"
    for n in range(20):
        daemon.cli("events", "send", tag, f"{{n: {n}}}")
    rows = eventually("all", lambda: daemon.events("--tag", tag) if len(daemon.events("--tag", tag)) >= 20 else None)
    # each on a separate connection, between which Salt guarantees no order
    assert sorted(e["data"]["n"] for e in rows) == list(range(20))
    # the framing was probed once at most
    assert len(daemon.events("--tag", "saltcellar/probe/*")) <= 2


