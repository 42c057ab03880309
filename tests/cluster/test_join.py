"""A node copies from another node's backup what the stream does not have any more."""
import json
import subprocess

import procs
from nodes import History
from procs import WAIT_MAX, eventually


def joined(node, backup, peer):
    """Joins offline, from the backup of the daemon of `peer`."""
    done = procs.run([node.program, "cluster", "join", str(backup), "--peer", peer, "--output", "json", "--config",
                      str(node.place / "saltcellar.yaml"), "--state-dir", str(node.state)], stdin=subprocess.DEVNULL, timeout=WAIT_MAX,
                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_new_node_copies_what_is_older_than_the_stream(site):
    site = site()
    site.servers.start()
    one, two, late = site.nodes
    for node in (one, two):
        node.start()
    site.write(one, two)
    site.stored()
    for writer in site.writers:
        writer.hold()
    history = History([one, two], site.writers)
    eventually("both have all", lambda: history.problem() is None)
    with site.servers.client() as client:
        client.api("STREAM.PURGE.saltcellar")
    held = site.writers[0].jids[0]
    one.cli("store", "holds", "add", held, "--reason", "audit")
    one.backup(site.place / "backup")
    # It must have a configuration, and a numbering of its own, before it joins.
    late.start()
    late.stop()
    found = joined(late, site.place / "backup", "m1")
    assert found["stored"] > 0 and found["masters"] == ["m1", "m2"], found
    assert joined(late, site.place / "backup", "m1")["stored"] == 0
    # Before it hears of any other node: its retention must not drop the job.
    servers, late.nats = late.nats, None
    late.start()
    rows = json.loads(late.cli("store", "holds", "list", "--output", "json").stdout)
    assert [(row["jid"], row["master"]) for row in rows] == [(held, "m1")], rows
    late.stop()
    late.nats = servers
    late.start()
    for writer in site.writers:
        writer.resume()
    site.stored()
    site.is_complete()
    assert not [line for line in late.reasons() if "missing" in line], late.reasons()
