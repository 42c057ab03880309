"""`saltcellar events send` on a real master: Salt's own listener hears it, and so does the archive."""
import json
import uuid

from conftest import TIMEOUT, eventually


def listen(lab, tag):
    """Salt's own listener, subscribed when it is returned."""
    import salt.config
    import salt.utils.event
    opts = salt.config.client_config(f"{lab.lab['dir']}/conf/master")
    event = salt.utils.event.get_event("master", sock_dir=opts["sock_dir"], opts=opts, listen=True)
    assert event.connect_pub(timeout=TIMEOUT)
    # the publisher accepts in its own time
    mark = f"lab/mark/{uuid.uuid4().hex}"

    def hears():
        lab.fire(mark, {})
        return event.get_event(wait=1, tag=mark, no_block=False)
    eventually("Salt's listener", hears)
    return event


def test_salts_own_listener_and_the_archive_see_it(lab, daemon):
    tag = f"deploy/{uuid.uuid4().hex}"
    data = {"app": "shop", "list": [1, 2.5, None, {"text": "žluť"}], "yes": True}
    with listen(lab, tag) as event:
        answer = daemon.json("events", "send", tag, json.dumps(data))
        heard = event.get_event(wait=TIMEOUT, tag=tag, full=True)
    assert heard["tag"] == tag
    assert heard["data"] == {**data, "_stamp": answer["_stamp"]}
    rows = eventually("it in the archive", lambda: daemon.events("--tag", tag))
    assert [e["data"] for e in rows] == [{**data, "_stamp": answer["_stamp"]}]
    assert rows[0]["source"] in ("bus", "event_return")  # whoever was first


def test_the_stamp_has_the_form_of_this_release(lab, daemon):
    tag = f"stamp/{uuid.uuid4().hex}"
    lab.salt("*", "test.ping")
    own = eventually("the job's event", lambda: daemon.events("--tag", "salt/job/*/new"))[-1]["data"]["_stamp"]
    stamp = daemon.json("events", "send", tag)["_stamp"]
    assert len(stamp.partition("+")[2]) == len(own.partition("+")[2]), (stamp, own)


def test_many_events_come_once_and_in_order(lab, daemon):
    tag = f"many/{uuid.uuid4().hex}"
    for n in range(20):
        daemon.cli("events", "send", tag, f"{{n: {n}}}")
    rows = eventually("all", lambda: daemon.events("--tag", tag) if len(daemon.events("--tag", tag)) >= 20 else None)
    # each on a connection of its own, between which Salt promises no order
    assert sorted(e["data"]["n"] for e in rows) == list(range(20))
    # the framing was found out once at most
    assert len(daemon.events("--tag", "saltcellar/probe/*")) <= 2


