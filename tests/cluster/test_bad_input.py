"""What must not happen, and happens: strangers in the stream, nodes that are twins, streams with other settings, older logs."""
import contextlib
import json
import os
import shutil
import subprocess
import zlib

import pytest
from conftest import STREAM, missing
from nodes import job_calls
from procs import eventually
from servers import Denied


def messages(site, name):
    """The bodies that a node has published."""
    with site.servers.client() as client:
        return list(client.messages(STREAM, f"{STREAM}.log.{name}"))


def headers_of(raw):
    """NATS's headers as a map, without the id by which the server recognises what it has."""
    lines = raw.decode().split("\r\n")[1:]
    return {key: value for key, value in (line.split(": ", 1) for line in lines if line) if not key.startswith("Nats-")}


def flipped(body, at, bit=0x10):
    return body[:at] + bytes([body[at] ^ bit]) + body[at + 1:]


# ------------------------------------------------------------------- strangers
def test_a_message_of_another_origin_and_garbage_are_rejected_and_counted(site):
    site = site().start()
    site.write()
    site.stored()
    (_, _, head, body), *_ = eventually("messages", lambda: messages(site, "m2"))
    head = headers_of(head)
    hostile = [
        (f"{STREAM}.log.m1", body),                          # what m2 published, as that of m1
        (f"{STREAM}.log.m3", body),
        (f"{STREAM}.log.stranger", body),                     # a name that nobody has
        (f"{STREAM}.log.m1", b""),
        (f"{STREAM}.log.m1", b"garbage"),
        (f"{STREAM}.log.m1", os.urandom(5000)),
        (f"{STREAM}.log.m2", body[: len(body) // 2]),
        *[(f"{STREAM}.log.m2", flipped(body, at)) for at in range(0, len(body), max(len(body) // 40, 1))],
        # Each byte of its header: a digit becomes another digit. The number of another form would be a newer release.
        *[(f"{STREAM}.log.m2", flipped(body, at, 1)) for at in range(len(b"saltcellar block 1 "), body.index(b"\n"))],
    ]
    with site.servers.client() as client:
        for subject, bad in hostile:
            client.store(subject, bad, head)
            client.store(subject, bad)
    site.stored()
    site.is_complete()
    for node in site.nodes:
        # A reason stays for a while, for whoever looks.
        node.says("cluster", "reject")


def test_a_message_of_a_newer_release_holds_up_its_master_only(site):
    site = site().start()
    site.write()
    site.stored()
    for writer in site.writers:
        writer.hold()
    site.history.is_complete()
    with site.servers.client() as client:
        client.store(f"{STREAM}.log.m2", b"saltcellar block 2 what nobody knows yet")
    for writer in site.writers:
        writer.resume()
    one, two, three = site.nodes
    for node in (one, three):
        node.says("cluster", "m2", "newer release")
    # The others go on.
    site.stored()
    first, second, third = site.writers
    for writer in site.writers:
        writer.hold()
    eventually("m2 has published all", lambda: two.status()["cluster"]["unpublished_entries"] == 0)
    # What comes behind it in the stream is read after it.
    last = {node: job_calls(node.name) for node in (one, three)}
    for node, (_, calls) in last.items():
        for call, args in calls:
            node.ask(call, **args)
    eventually("the last job of m3 at m1", lambda: one.job(last[three][0]))
    eventually("the last job of m1 at m3", lambda: three.job(last[one][0]))
    for node, writer in ((three, first), (one, third)):
        own = writer.node
        eventually("jobs of the others", lambda: len(site.history.of(node, writer)) == len(site.history.of(own, writer)))
    # Of m2 they lack what came later, and have it once that message is gone, as if this were that release.
    assert len(site.history.of(one, second)) < len(site.history.of(two, second))
    with site.servers.client() as client:
        number = next(number for number, _, _, body in client.messages(STREAM, f"{STREAM}.log.m2") if body.startswith(b"saltcellar block 2"))
        client.api(f"STREAM.MSG.DELETE.{STREAM}", seq=number)
    for node in (one, three):
        node.stop()
        node.start()
    for writer in site.writers:
        writer.resume()
    site.is_complete()


#: The form of messages, and the header of a block of a version that no release has (crates/store/src/log/frame.rs).
FORM = b"saltcellar block 1 "
NEWER_BLOCK = bytes.fromhex("92f036e6ffff000000000000000000000000000000000000000000000100000000000000000000006a5b544ab1fe0e20")


def in_parts(body, block):
    """Two messages with a block behind the one in a message."""
    header = json.loads(body[len(FORM) + 9 : body.index(b"\n")])
    following = {"before": header["last"], "first": header["last"] + 1, "last": header["last"] + 1, "parts": 2}
    for part, piece in enumerate((block[:20], block[20:]), 1):
        rest = b" " + json.dumps({**header, **following, "part": part}).encode() + b"\n" + piece
        yield FORM + b"%08x" % zlib.crc32(rest) + rest


def test_a_block_in_parts_of_a_newer_release_is_reread_from_its_first_part(site):
    site = site().start()
    site.write()
    site.stored()
    for writer in site.writers:
        writer.hold()
    site.history.is_complete()
    eventually("m2 has published all", lambda: site.nodes[1].status()["cluster"]["unpublished_entries"] == 0)
    last = messages(site, "m2")[-1][3]
    with site.servers.client() as client:
        for body in in_parts(last, NEWER_BLOCK):
            client.store(f"{STREAM}.log.m2", body)
    for writer in site.writers:
        writer.resume()
    one, _, three = site.nodes
    for node in (one, three):
        node.says("cluster", "m2", "version 65535")
        # The same after a start, as if it could read the block then.
        node.stop()
        node.start()
        node.says("cluster", "m2", "version 65535")
    with site.servers.client() as client:
        for number, _, _, body in client.messages(STREAM, f"{STREAM}.log.m2"):
            if body.endswith((NEWER_BLOCK[:20], NEWER_BLOCK[20:])):
                client.api(f"STREAM.MSG.DELETE.{STREAM}", seq=number)
    for node in (one, three):
        node.stop()
        node.start()
    site.is_complete()


def test_a_message_that_comes_again_is_stored_once(site):
    site = site().start()
    site.write()
    site.stored()
    for name in ("m1", "m2"):
        with site.servers.client() as client:
            for _, subject, head, body in messages(site, name)[:20]:
                client.store(subject, body, headers_of(head))
    site.stored()
    site.is_complete()


def test_nats_lets_no_master_publish_for_another(site):
    site = site().start()
    site.write()
    site.stored(5)
    (_, _, head, body), *_ = eventually("messages", lambda: messages(site, "m2"))
    with site.servers.client("m1", site.users["m1"]["password"], inbox="_INBOX_m1") as client:
        client.publish(f"{STREAM}.log.m2", body, headers=headers_of(head))
        with pytest.raises(Denied, match="Publish"):
            client.flush()
    site.is_complete()


def test_garbage_as_beats_changes_nothing(site):
    site = site(nodes=2).start()
    site.write()
    site.stored()
    with site.servers.client() as client:
        for body in (b"", b"{}", b"[" * 5000, os.urandom(2000), b'{"name": "m1", "at": -1}'):
            for name in ("m1", "m2", "x"):
                client.publish(f"{STREAM}.beat.{name}", body)
        client.flush()
    site.stored()
    site.is_complete()


# ------------------------------------------------------------------- twins
def test_two_nodes_with_one_name_are_reported(site):
    site = site(nodes=2).start()
    twin = site.add("m1", "2/3", "twin")
    site.nodes.remove(twin)
    site.write()
    site.stored(5)
    twin.start()
    eventually("a twin", lambda: any("name" in line for node in (twin, site.nodes[0]) for line in node.reasons() if "cluster" in line))
    twin.kill()
    site.is_complete()


def test_two_nodes_with_one_slot_lose_nothing(site):
    site = site(nodes=2)
    site.nodes[1].configure(slot="1/2")
    site.start()
    site.write()
    site.stored(5)
    site.is_complete()


# ------------------------------------------------------------------- the stream
def test_a_stream_that_is_deleted_is_reported_and_nothing_is_lost(site):
    site = site().start()
    site.write()
    site.stored()
    late = site.nodes[2]
    late.kill()
    before = len(site.writers[0].jids)
    eventually("more jobs", lambda: len(site.writers[0].jids) > before + 10)
    with site.servers.client() as client:
        assert client.api(f"STREAM.DELETE.{STREAM}").get("success")
    late.start()
    site.stored()
    site.is_complete()


def test_a_restored_store_takes_nothing_twice_from_a_stream_that_is_filled_anew(site):
    """It has entries that its marks do not have, and they come once more long after it has begun to read the new stream."""
    site = site().start()
    site.write(*site.nodes[:2])
    site.stored()
    *senders, late = site.nodes
    eventually("it has entries of both", lambda: {one.get("master") for one in late.entries()} >= {"m1", "m2"})
    late.backup(site.place / "backup")
    late.kill()
    late.restore(site.place / "backup")
    for sender in senders:
        sender.freeze()
    with site.servers.client() as client:
        assert client.api(f"STREAM.DELETE.{STREAM}").get("success")
        late.start()
        eventually("the stream is made again", lambda: "config" in client.api(f"STREAM.INFO.{STREAM}"))
    for sender in senders:
        sender.thaw()
    site.stored()
    # Nor after one more start.
    late.kill()
    late.start()
    site.stored()
    site.is_complete()


@pytest.mark.parametrize("change", [{"max_msgs": 1000}, {"max_bytes": 10_000_000}, {"max_age": 3600_000_000_000}, {"max_msgs_per_subject": 500}])
def test_a_stream_with_other_limits_is_reported(site, change):
    site = site(nodes=2).start()
    site.write()
    site.stored(5)
    with site.servers.client() as client:
        config = eventually("the stream", lambda: client.api(f"STREAM.INFO.{STREAM}").get("config"))
        changed = client.api(f"STREAM.UPDATE.{STREAM}", **{**config, **change})
        assert "error" not in changed, changed
    for node in site.nodes:
        node.doctor_says("cluster.stream", "keeps messages for 1h" if "max_age" in change else next(iter(change)))
    site.stored(5)
    site.is_complete()


@pytest.mark.parametrize(("other", "word"), [
    ({"retention": "workqueue"}, "retention is workqueue"), ({"storage": "memory"}, "in memory"), ({"subjects": ["elsewhere.>"]}, "does not keep the subject"),
    ({"discard": "new", "max_msgs": 3}, "discard new"),
])
def test_a_stream_that_somebody_else_made_is_reported(site, other, word):
    site = site(nodes=2)
    site.servers.start()
    with site.servers.client() as client:
        made = client.api(f"STREAM.CREATE.{STREAM}", **{"name": STREAM, "subjects": [f"{STREAM}.log.*"], "storage": "file", "retention": "limits", **other})
        assert "error" not in made, made
    site.start()
    site.write()
    for node in site.nodes:
        node.doctor_says("cluster.stream", word)
    with site.servers.client() as client:
        assert client.api(f"STREAM.DELETE.{STREAM}").get("success")
    site.stored(5)
    site.is_complete()


def test_an_entry_larger_than_nats_accepts_is_split(site):
    site = site(max_payload=64 * 1024).start()
    site.write(size=200_000, pause=0.2)
    site.write(size=30_000, pause=0.05)
    site.stored(5)
    site.is_complete()


def test_credentials_that_are_revoked_are_reported_and_nothing_is_lost(site):
    site = site().start()
    # So many that some are on their way when the rights end.
    site.write(site.nodes[0], pause=0.005)
    site.write(*site.nodes[1:])
    site.stored()
    first, *others = site.users.values()
    for _ in range(3):
        site.admit({**first, "password": "another"}, *others)
        site.nodes[0].says("cluster", "authorization", "nothing is published", "nothing received")
        site.stored()
        site.admit(first, *others)
        site.nodes[0].is_well()
    site.is_complete()


def test_a_user_who_may_not_publish_is_reported_and_nothing_is_lost(site):
    site = site(nodes=2).start()
    site.write()
    site.stored(5)
    first, *others = site.users.values()
    rights = first["permissions"]
    fewer = [subject for subject in rights["publish"] if ".log." not in subject]
    site.admit({**first, "permissions": {**rights, "publish": fewer}}, *others)
    site.nodes[0].says("cluster")
    # `doctor` says it once, where it says what follows for the other masters.
    site.nodes[0].doctor_says("status", "behind for the other masters")
    assert site.nodes[0].doctor("sinks") == []
    site.stored()
    site.admit(first, *others)
    site.nodes[0].is_well()
    site.is_complete()


# ------------------------------------------------------------------- older logs
def published(site, node):
    """Waits until each entry of a node is on all others: what comes after an older log must be known there."""
    writer = next(one for one in site.writers if one.node is node)
    writer.hold()
    eventually(f"the entries of {node.name} everywhere", lambda: len({len(site.history.of(one, writer)) for one in site.nodes}) == 1)
    return writer


def test_a_restored_backup_learns_again_what_it_had_and_publishes_what_is_new(site):
    site = site().start()
    node = site.nodes[0]
    site.write()
    site.stored()
    backup = site.place / "backup"
    node.backup(backup)
    site.stored()
    writer = published(site, node)
    site.history.keep(node)
    node.kill()
    node.restore(backup)
    site.history.forget(node)
    node.start()
    writer.resume()
    site.stored()
    site.is_complete()


def test_a_copy_of_the_state_directory_is_recognised_as_older(site):
    """As a snapshot of a virtual machine that is put back: nobody says that it is one."""
    site = site().start()
    node = site.nodes[0]
    site.write()
    site.stored()
    writer = published(site, node)
    node.stop()
    copy = site.place / "copy"
    shutil.copytree(node.state, copy, symlinks=True, ignore=lambda path, names: [name for name in names if name.endswith(".sock")])
    node.start()
    writer.resume()
    site.stored()
    published(site, node)
    site.history.keep(node)
    node.kill()
    shutil.rmtree(node.state)
    shutil.copytree(copy, node.state, symlinks=True)
    site.history.forget(node)
    node.start()
    writer.resume()
    site.stored()
    site.is_complete()


# ------------------------------------------------------------------- no space
def test_a_node_without_space_takes_what_it_missed_later(site):
    if os.geteuid():
        missing("root, for a file system of its own")
    site = site(others={"store": {"free_bytes_low": "1MiB", "free_bytes_min": "8MiB", "segment_bytes_max": "1MiB"}})
    disk = site.place / "m1" / "state"
    disk.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", disk], check=True)
    with contextlib.ExitStack() as stack:
        stack.callback(subprocess.run, ["umount", "-l", disk])
        site.start()
        site.write()
        site.stored()
        with open(disk / "filler", "wb") as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(1 << 20))
                filler.flush()
        site.nodes[0].says("space")
        before = len(site.writers[1].jids)
        eventually("jobs of others", lambda: len(site.writers[1].jids) > before + 10)
        (disk / "filler").unlink()
        site.stored()
        site.is_complete()
        site.nodes[0].kill()
