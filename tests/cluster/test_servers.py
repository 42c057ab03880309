"""The library of these tests: nats-servers and links do what the other tests believe."""
import json

import pytest
from links import Link
from procs import eventually
from servers import Client, Denied, Servers


def test_three_servers_store_a_message_on_all_and_survive_the_leader(place):
    servers = Servers(place, 3).start()
    try:
        with servers.client() as client:
            made = client.api("STREAM.CREATE.S", name="S", subjects=["s.>"], num_replicas=3, storage="file")
            assert "error" not in made, made
            assert client.store("s.a", b"1")["seq"] == 1
        leader = servers.leader("S")
        leader.kill()
        eventually("another leader", lambda: servers.leader("S") not in (None, leader))
        with servers.client() as client:
            assert client.store("s.a", b"2")["seq"] == 2
            assert [body for *_, body in client.messages("S", "s.>")] == [b"1", b"2"]
    finally:
        servers.stop()


def test_a_user_publishes_to_own_subjects_only(place):
    mine = {"user": "m1", "password": "p", "permissions": {"publish": ["s.log.m1"], "subscribe": ["_INBOX_m1.>"]}}
    servers = Servers(place, 1, [mine]).start()
    try:
        with servers.client("m1", "p", inbox="_INBOX_m1") as client:
            client.publish("s.log.m2", b"x")
            with pytest.raises(Denied, match="Publish"):
                client.flush()
        with pytest.raises(Denied, match="Authorization"):
            servers.client("m1", "wrong")
    finally:
        servers.stop()


def test_a_link_is_cut_held_up_and_healed(place):
    servers = Servers(place, 1).start()
    link = Link(servers.all[0].port)
    try:
        client = Client(link.port, "admin", "all", "_INBOX_test")
        assert "error" not in json.loads(client.request("$JS.API.INFO"))
        link.hang()
        with pytest.raises(TimeoutError):
            client.request("$JS.API.INFO", timeout=0.3)
        link.heal()
        client = Client(link.port, "admin", "all", "_INBOX_test")
        link.cut()
        with pytest.raises(OSError):
            client.request("$JS.API.INFO", timeout=5)
        with pytest.raises((OSError, ValueError, IndexError)):
            Client(link.port, "admin", "all", "_INBOX_test")
        link.heal()
        assert "error" not in json.loads(Client(link.port, "admin", "all", "_INBOX_test").request("$JS.API.INFO"))
    finally:
        link.close()
        servers.stop()
