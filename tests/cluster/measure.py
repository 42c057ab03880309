"""What sharing costs and reaches, beside a plain JetStream publisher of the same run (``make cluster-bench``). Prints; asserts no time.

``ENTRIES`` is the number of entries of a rate, ``BEHIND`` that by which a node is behind, ``LIVE`` the seconds at 2,000 entries/s, ``ONLY`` (of
`make cluster-bench`) a part of a test's name: rate, delay, ingest, backlog, catching.
"""
import collections
import contextlib
import json
import multiprocessing
import os
import pathlib
import signal
import statistics
import struct
import threading
import time

import msgpack
from conftest import STREAM
from nodes import Wire, job_calls
from procs import eventually, poll

ENTRIES = int(os.environ.get("ENTRIES", "200000"))
BEHIND = int(os.environ.get("BEHIND", "1000000"))
LIVE = int(os.environ.get("LIVE", "20"))
#: Entries per second of the measurement of the delay.
LIVE_RATE = 2_000
#: Messages of the plain publisher whose acknowledgements are awaited, and calls of a client of the daemon.
WINDOW = 64
BATCH = 512
#: Seconds until a measurement is given up.
GIVEN_UP = 1800
TICK = os.sysconf("SC_CLK_TCK")


def cpu(pid):
    """Seconds of processor time of a process."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def cpu_of_threads(pid):
    """Seconds of processor time of the threads of a process that run now, by name."""
    found = collections.Counter()
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found[(task / "comm").read_text().strip()] += int((task / "schedstat").read_text().split()[0]) / 1e9
    return found


def cpu_of_machine():
    """Seconds of processor time of everything on this machine."""
    fields = [int(one) for one in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return (sum(fields[:3]) + sum(fields[5:8])) / TICK


class Usage:
    """Processor time of the processes of a measurement from now on."""

    def __init__(self, site, nodes):
        self.pids = {**{node.name: node.process.pid for node in nodes}, **{one.name: one.process.pid for one in site.servers.all}, "load": os.getpid()}
        self.began, self.before = time.monotonic(), self._now()

    def _now(self):
        return {name: (cpu(pid), cpu_of_threads(pid)) for name, pid in self.pids.items()}, cpu_of_machine()

    def seconds(self):
        """Of all its processes together."""
        (before, _), (now, _) = self.before, self._now()
        return sum(now[name][0] - before[name][0] for name in self.pids)

    def text(self, entries):
        """What it was, for each entry, and how busy the host was."""
        seconds = time.monotonic() - self.began
        (before, all_before), (now, all_now) = self.before, self._now()
        own, lines = 0, []
        for name in self.pids:
            used = now[name][0] - before[name][0]
            own += used
            threads = now[name][1] - before[name][1] if name.startswith("m") else {}
            parts = ", ".join(f"{thread} {1e6 * part / entries:.1f}" for thread, part in sorted(threads.items(), key=lambda one: -one[1]) if 1e6 * part / entries >= 0.2)
            lines.append(f"    {name} {1e6 * used / entries:.1f}" + (f" ({parts})" if parts else ""))
        room = seconds * os.cpu_count()
        return (f"  CPU in us per entry; the processors were used {own / room:.0%} by these and {max(0, all_now - all_before - own) / room:.0%} by others:\n" + "\n".join(lines))


def frames(name, entries):
    """Requests of jobs with about so many entries, packed: lists of (count, bytes, last id)."""
    made, calls, number = [], [], 0
    per_job = 20
    for _ in range(entries // (per_job + 2)):
        calls += job_calls(name, minions=per_job, size=200)[1]
        if len(calls) >= BATCH:
            made.append(packed(calls, number))
            number, calls = number + len(calls), []
    return made


def packed(calls, number):
    out = []
    for n, (call, args) in enumerate(calls):
        frame = msgpack.packb([number + n + 1, call, args])
        out.append(struct.pack(">I", len(frame)) + frame)
    return len(calls), b"".join(out)


def store(node, batches):
    """Stores packed requests as fast as the daemon takes them; returns the seconds until the last response."""
    began = time.monotonic()
    with Wire(node.socket) as wire:
        def read():
            # Only the lengths of the responses are looked at: whoever makes the load shares the processors.
            left, data, at = sum(count for count, _ in batches), b"", 0
            while left:
                data, at = data[at:] + wire.socket.recv(1 << 18), 0
                while left and len(data) - at >= 4:
                    size = int.from_bytes(data[at:at + 4], "big")
                    if len(data) - at < 4 + size:
                        break
                    left, at = left - 1, at + 4 + size
        reader = threading.Thread(target=read)
        reader.start()
        for _, data in batches:
            wire.socket.sendall(data)
        reader.join()
    return time.monotonic() - began


def last_number(node):
    return node.ask("status")["durable"]


def jobs_of(node):
    """Entries of jobs that are on the disk of a node."""
    return sum(one["entries"] for one in node.ask("status")["classes"] if one["class"] == "jobs")


def warm(sender, receiver):
    """Waits until an entry gets through: the stream is made, both are connected."""
    jid, calls = job_calls("warm")
    with Wire(sender.socket) as wire:
        wire.ask_all(calls)
    eventually("the first job", lambda: (receiver.job(jid) or {}).get("endtime"))


def stream_bytes(site):
    with site.servers.client() as client:
        state = client.api(f"STREAM.INFO.{STREAM}")["state"]
    return state["messages"], state["bytes"]


def stored_messages(site):
    """Messages of the stream; none before it is made."""
    with site.servers.client() as client:
        return client.api(f"STREAM.INFO.{STREAM}").get("state", {}).get("messages", 0)


def plain_rate(site, sizes):
    """Seconds of a publisher that sends messages of these sizes to a stream of the same kind, with `WINDOW` of them under way."""
    with site.servers.client() as client:
        made = client.api("STREAM.CREATE.plain", name="plain", subjects=["plain.*"], storage="file", num_replicas=len(site.servers.all), duplicate_window=120_000_000_000)
        assert "error" not in made, made
        data = os.urandom(max(sizes))
        began, under_way = time.monotonic(), 0
        for number, size in enumerate(sizes):
            client.publish("plain.a", data[:size], f"{client.inbox}.ack", {"Nats-Msg-Id": str(number)})
            under_way += 1
            if under_way >= WINDOW:
                assert b"seq" in client.next(60)[2]
                under_way -= 1
        for _ in range(under_way):
            assert b"seq" in client.next(60)[2]
        seconds = time.monotonic() - began
        client.api("STREAM.DELETE.plain")
    return seconds


def test_rate(site):
    site = site(nodes=2, servers=3).start()
    sender, receiver = site.nodes
    warm(sender, receiver)
    before = eventually("the whole first job", lambda: jobs_of(receiver) == jobs_of(sender) and jobs_of(receiver))
    batches = frames("m1", ENTRIES)
    entries = sum(count for count, _ in batches)
    usage, began = Usage(site, site.nodes), time.monotonic()
    own = store(sender, batches)
    assert poll(lambda: jobs_of(receiver) - before >= entries, GIVEN_UP, pause=0.05), receiver.reasons()
    seconds = time.monotonic() - began
    used = usage.text(entries)

    raw = next(one for one in sender.ask("status")["classes"] if one["class"] == "jobs")["raw_bytes"]
    with site.servers.client() as client:
        sizes = [len(head) + len(body) for _, _, head, body in client.messages(STREAM, f"{STREAM}.log.m1")]
    plain = plain_rate(site, sizes)
    print(f"\nrate: {entries / seconds:,.0f} entries/s stored, published and received ({entries:,} entries, stored within {own:.1f} s)\n{used}\n"
          f"  {len(sizes)} messages of {statistics.mean(sizes):,.0f} bytes; a plain publisher of them: {plain:.2f} s, {entries / plain:,.0f} entries/s; ratio {plain / seconds:.2f}\n"
          f"  wire bytes over raw bytes: {sum(sizes) / raw:.3f} ({sum(sizes):,} of {raw:,})")


def test_delay(site):
    site = site(nodes=2, servers=3).start()
    sender, receiver = site.nodes
    warm(sender, receiver)
    arrived, stopping = {}, threading.Event()

    def read():
        since = last_number(receiver)
        with Wire(receiver.socket) as wire:
            while not stopping.is_set():
                page = wire.ask("entries", **{"from": since})
                now = time.monotonic()
                for entry in page["entries"]:
                    since = entry["seq"] + 1
                    arrived[entry.get("jid"), entry.get("minion"), entry["kind"]] = now
                if not page["entries"]:
                    time.sleep(0.002)
    threading.Thread(target=read, daemon=True).start()
    acked, sent = {}, 0
    began = time.monotonic()
    with Wire(sender.socket) as wire:
        while time.monotonic() - began < LIVE:
            jid, calls = job_calls("m1", minions=18, size=200)
            wire.ask_all(calls)
            now = time.monotonic()
            for call, args in calls:
                kind = {"save_load": "load", "returner": "return", "update_endtime": "endtime"}[call]
                acked[jid, args.get("load", {}).get("id"), kind] = now
            sent += len(calls)
            time.sleep(max(0, began + sent / LIVE_RATE - time.monotonic()))
    seconds = time.monotonic() - began
    assert poll(lambda: len(arrived) >= len(acked), 60), (len(arrived), len(acked))
    stopping.set()
    delays = sorted(arrived[one] - at for one, at in acked.items())

    def share(part):
        return f"{1000 * delays[min(int(len(delays) * part), len(delays) - 1)]:.0f} ms"
    print(f"\ndelay at {sent / seconds:,.0f} entries/s, from the acknowledgement on one node to the reading on another: median {share(0.5)}, p99 {share(0.99)}, longest {share(1)}")


def publish_plain(client, sizes, seconds):
    """Publishes messages of these sizes within so many seconds, and waits to be killed."""
    data, began = os.urandom(max(sizes)), time.monotonic()
    for number, size in enumerate(sizes):
        time.sleep(max(0, began + seconds * number / len(sizes) - time.monotonic()))
        client.publish("plain.a", data[:size], f"{client.inbox}.ack")
        assert b"seq" in client.next(60)[2]
    signal.pause()


def own_messages(site, since):
    """Sizes of the messages of m1 behind a number, and the number of the last one."""
    with site.servers.client() as client:
        found = [(number, len(head) + len(body)) for number, _, head, body in client.messages(STREAM, f"{STREAM}.log.m1", since + 1)]
    return [size for _, size in found], max((number for number, _ in found), default=since)


def until_published(site):
    """Waits until the stream does not grow any more."""
    seen = []

    def is_still():
        seen.append(stream_bytes(site)[0])
        return len(seen) > 10 and len(set(seen[-10:])) == 1
    assert poll(is_still, GIVEN_UP, pause=0.2)


def test_own_ingest(site):
    """Without a peer, in three kinds: `with` an outbox; `beside` servers that a plain publisher gives the same messages in the same time; and
    `without` either, while the servers rest. The first two differ by what the outbox takes in the daemon."""
    whole = site(nodes=1, servers=3)
    whole.servers.start()
    (node,) = whole.nodes
    nats, last, rates, used = node.nats, 0, {"with": [], "beside": [], "without": []}, collections.defaultdict(list)
    for _ in range(3):
        for kind, found in rates.items():
            node.nats = nats if kind == "with" else None
            node.start()
            if kind == "with":
                eventually("the node is well", lambda: not any("cluster" in one for one in node.reasons()))
                # What was stored without an outbox is published first.
                until_published(whole)
                _, last = own_messages(whole, last)
            batches = frames("m1", ENTRIES)
            entries = sum(count for count, _ in batches)
            publisher = None
            if kind == "beside":
                plain = whole.servers.client()
                made = plain.api("STREAM.CREATE.plain", name="plain", subjects=["plain.*"], storage="file", num_replicas=len(whole.servers.all))
                assert "error" not in made, made
                publisher = multiprocessing.get_context("fork").Process(target=publish_plain, args=(plain, sizes, seconds))
                publisher.start()
            usage = Usage(whole, [node])
            took = store(node, batches)
            used[kind].append(1e6 * usage.seconds() / entries)
            print(f"\n{kind}: {entries / took:,.0f} entries/s\n{usage.text(entries)}")
            found.append(entries / took)
            if kind == "with":
                until_published(whole)
                (sizes, last), seconds = own_messages(whole, last), took
            if publisher:
                publisher.kill()
                publisher.join()
                with whole.servers.client() as client:
                    state = client.api("STREAM.INFO.plain")["state"]
                    print(f"  the plain publisher stored {state['messages']} of {len(sizes)} messages")
                    client.api("STREAM.DELETE.plain")
            node.stop()
    best = {kind: max(found) for kind, found in rates.items()}
    print(f"\nown ingest: {best['without']:,.0f} entries/s without a cluster, {best['beside']:,.0f} beside a plain publisher of the same messages, "
          f"{best['with']:,.0f} with an outbox; with over beside {best['with'] / best['beside']:.3f}, with over without {best['with'] / best['without']:.3f} "
          f"(all: {json.dumps({k: [round(r) for r in v] for k, v in rates.items()})})\n"
          f"  us CPU per entry of all processes but the plain publisher: {json.dumps({k: [round(r, 1) for r in v] for k, v in used.items()})}")


def test_backlog(site):
    """What the outbox takes alone: a daemon publishes what it had stored without one, and does nothing else."""
    whole = site(nodes=1, servers=3)
    whole.servers.start()
    (node,) = whole.nodes
    nats, node.nats = node.nats, None
    node.start()
    batches = frames("m1", ENTRIES)
    entries = sum(count for count, _ in batches)
    store(node, batches)
    node.stop()
    node.nats = nats
    node.start()
    assert poll(lambda: stored_messages(whole) and not node.ask("status")["cluster"]["unpublished_entries"], GIVEN_UP, pause=0.2), node.reasons()
    # Threads that read ahead have ended, so the other threads are taken from the whole.
    used, threads = cpu(node.process.pid), cpu_of_threads(node.process.pid)
    own = sum(part for thread, part in threads.items() if not thread.startswith(("sc-sink", "sc-outbox")))
    messages, size = stream_bytes(whole)
    print(f"\nbacklog: {entries:,} entries in {messages} messages of {size / messages:,.0f} bytes; us CPU per entry: {1e6 * used / entries:.2f}, "
          f"without the threads that do something else {1e6 * (used - own) / entries:.2f}")


def test_catching_up(site):
    site = site(nodes=2, servers=3)
    site.servers.start()
    sender, late = site.nodes
    sender.start()
    left = BEHIND
    while left > 0:
        part_of_it = min(left, 200_000)
        store(sender, frames("m1", part_of_it))
        left -= part_of_it
    entries = jobs_of(sender)
    until_published(site)
    began = time.monotonic()
    late.start()
    assert poll(lambda: jobs_of(late) >= entries, GIVEN_UP, pause=0.05), late.reasons()
    seconds = time.monotonic() - began
    print(f"\ncatching up: {entries:,} entries in {seconds:.1f} s, {entries / seconds:,.0f} entries/s, {1e6 * cpu(late.process.pid) / entries:.1f} us CPU per entry")
