"""What the processes `EventMonitor` and `EventPublisher` of a cluster of 3008 store for peers, and how these calls are marked."""

import multiprocessing

import msgpack
import pytest
import salt.channel.server

from tests.support.helpers import JID
from tests.support.helpers import RETURN

TAG = f"salt/job/{JID}/ret/web1"
STAMPED = dict(RETURN, success=True, _stamp="2026-11-21T03:09:55.600000")


def test_a_mirrored_return_is_marked_with_its_peer(daemon, mirror):
    mirror(TAG, dict(STAMPED, __peer_id="master2"))
    assert [call for call, _ in daemon.calls] == ["save_load", "returner"]
    assert all(args["mirrored"] is True for _, args in daemon.calls)
    assert [args.get("master") for _, args in daemon.calls] == [None, "master2"]


def test_a_mirrored_return_has_the_bytes_of_its_event_without_the_peer(daemon, mirror):
    """So the daemon recognises it as the event on the bus, which loses the peer when it is stored."""
    mirror(TAG, dict(STAMPED, __peer_id="master2"))
    returned = daemon.named("returner")[0]["load"]
    assert msgpack.packb(returned) == msgpack.packb(STAMPED)


def test_mirrored_minions_of_a_job_are_marked_with_their_peer(daemon, mirror):
    data = {"jid": JID, "fun": "test.ping", "minions": ["web1", "web2"], "__peer_id": "master2"}
    mirror(f"salt/job/{JID}/new", data)
    call, args = daemon.calls[0]
    assert (call, args["minions"]) == ("save_minions", ["web1", "web2"])
    assert (args["mirrored"], args["master"]) == (True, "master2")


def test_an_end_time_of_a_mirrored_return_is_marked(daemon, mirror):
    mirror(TAG, dict(STAMPED, __peer_id="master2"), job_cache_store_endtime=True)
    assert daemon.named("update_endtime")[0]["mirrored"] is True


def test_the_mark_is_kept_in_the_spool(daemon, mirror, spooled):
    daemon.stop()
    mirror(TAG, dict(STAMPED, __peer_id="master2"))
    assert [(call, args["mirrored"], args.get("master")) for call, args in spooled()] == [
        ("save_load", True, None),
        ("returner", True, "master2"),
    ]


def test_a_peer_that_is_not_known_is_not_named(daemon, returners, monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "name", "EventMonitor")
    returners["saltcellar.returner"](dict(STAMPED))
    args = daemon.named("returner")[0]
    assert (args["mirrored"], "master" in args) == (True, False)


@pytest.mark.parametrize("name", ["EventPublisher", "MasterPubServerChannel._publish_daemon"])
def test_a_return_that_a_peer_has_delegated_is_marked(
    daemon, mirror, master_opts, monkeypatch, name
):
    channel = salt.channel.server.MasterPubServerChannel
    if not hasattr(channel, "_handle_delegate_write"):
        pytest.skip("this Salt delegates no jobs")
    assert channel._publish_daemon.__qualname__ == "MasterPubServerChannel._publish_daemon"
    monkeypatch.setattr(multiprocessing.current_process(), "name", name)
    publisher = channel.__new__(channel)
    publisher.opts = dict(master_opts, cluster_id="c", cluster_peers=[])
    publisher._handle_delegate_write({"write_kind": "store_job", "payload": dict(STAMPED)})
    publisher._handle_delegate_write(
        {"write_kind": "store_minions", "payload": {"jid": JID, "minions": ["web1"]}}
    )
    assert [call for call, _ in daemon.calls] == ["save_load", "returner", "save_minions"]
    assert [(args["mirrored"], args.get("master")) for _, args in daemon.calls] == [
        (True, None)
    ] * 3


@pytest.mark.parametrize("name", ["MainProcess", "MWorker-default-0", "EventReturn"])
def test_calls_of_other_processes_are_not_marked(daemon, store, monkeypatch, name):
    monkeypatch.setattr(multiprocessing.current_process(), "name", name)
    store(dict(STAMPED))
    assert [call for call, _ in daemon.calls] == ["save_load", "returner"]
    assert not any("mirrored" in args or "master" in args for _, args in daemon.calls)
