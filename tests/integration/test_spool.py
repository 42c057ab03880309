"""The daemon stops under load from several processes: the spool fills to its limit, and every entry is found once."""
import multiprocessing
import os
import shutil
import tempfile

import pytest
import salt.config
import salt.loader
from conftest import WAIT_MAX, Daemon, eventually

WRITERS = 4
EVENTS = 5
SPOOL_BYTES = 400_000


@pytest.fixture
def own_daemon(root):
    """A separate daemon without a bus."""
    directory = tempfile.mkdtemp(prefix="spool-", dir=root)
    daemon = Daemon(directory, bus=f"{directory}/no-bus")
    daemon.start()
    yield daemon
    if daemon.running:
        daemon.stop()


def master_opts(daemon, spool_bytes):
    paths = {key: f"{daemon.root}/{key}" for key in ("root_dir", "cachedir", "sock_dir", "pki_dir", "extension_modules")}
    return dict(
        salt.config.DEFAULT_MASTER_OPTS, __role="master", **paths,
        **{"saltcellar.socket": daemon.socket, "saltcellar.timeout": 5, "saltcellar.spool_bytes_max": spool_bytes},
    )


def write(opts, writer, stop, sent):
    """A process of a master: returns and batches of events, each with a unique name."""
    returners = salt.loader.returners(opts, {})
    store, archive = returners["saltcellar.returner"], returners["saltcellar.event_return"]
    number = 0
    while not stop.is_set():
        load = {"jid": f"20260201{writer:02d}{number:010d}", "id": f"w{writer}", "fun": "test.echo", "return": number}
        store(dict(load, retcode=0, success=True))
        archive([{"tag": f"spool/{writer}/{number}/{n}", "data": {"n": number}} for n in range(EVENTS)])
        number += 1
        sent[writer] = number


def counters(daemon):
    """Counters of the extension, and the size of its spool in bytes."""
    from saltext.saltcellar.utils import spool

    found = spool.Spool(f"{daemon.root}/cachedir/saltcellar", 1, 1)
    # No file exists before the first entry waits.
    return found.counters(), os.path.getsize(found.path) if os.path.exists(found.path) else 0


@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize("spool_bytes", [SPOOL_BYTES, 1 << 30])
def test_every_entry_is_stored_once_or_counted(own_daemon, how, spool_bytes):
    daemon, full = own_daemon, spool_bytes == SPOOL_BYTES
    stop, sent = multiprocessing.Event(), multiprocessing.Array("l", WRITERS)
    opts = master_opts(daemon, spool_bytes)
    writers = [multiprocessing.Process(target=write, args=(opts, n, stop, sent), daemon=True) for n in range(WRITERS)]
    for writer in writers:
        writer.start()
    eventually("load on the daemon", lambda: min(sent) >= 50)
    getattr(daemon, how)()
    before = list(sent)
    if full:
        eventually("the spool to be full", lambda: counters(daemon)[0].get("spool_full", 0) >= 100)
    eventually("some more", lambda: min(now - then for now, then in zip(sent, before)) >= 50)
    assert counters(daemon)[1] <= spool_bytes
    daemon.start()
    # Under continued load, so that spooled and new entries arrive together.
    after = list(sent)
    eventually("load on the daemon again", lambda: min(now - then for now, then in zip(sent, after)) >= 50)
    stop.set()
    for writer in writers:
        writer.join(WAIT_MAX)
        assert writer.exitcode == 0
    empty = salt.loader.returners(opts, {})["saltcellar.clean_old_jobs"]

    def handed_over():
        empty()
        return counters(daemon)[1] == 0

    eventually("the spool to be handed over", handed_over)
    counted, _ = counters(daemon)
    assert set(counted) <= ({"spool_full"} if full else set()), counted
    check(daemon, list(sent), counted.get("spool_full", 0))


def check(daemon, sent, lost):
    """No duplicates, no unsent entries, and no missing entry that was not counted."""
    events = [event["tag"] for event in daemon.events("--tag", "spool/*")]
    assert len(events) == len(set(events)), "an event is in the archive twice"
    expected = {f"spool/{w}/{n}/{e}" for w, count in enumerate(sent) for n in range(count) for e in range(EVENTS)}
    assert set(events) <= expected
    with daemon.connect() as wire:
        shown = [
            wire.call("job_show", jid=f"20260201{w:02d}{n:010d}") for w, count in enumerate(sent) for n in range(count)
        ]
    returns = [one for job in shown if job for one in job["returns"]]
    assert all(one["duplicates"] == 0 and one["minion"].startswith("w") for one in returns)
    status = daemon.status()["counters"]
    assert status["returns_differing"] == 0
    missing = len(expected) - len(events) + sum(sent) - len(returns)
    assert missing == lost, f"{missing} entries are missing, {lost} are counted: " + evidence(
        daemon, expected - set(events), sum(sent) - len(returns), status
    )


def evidence(daemon, events, returns, status):
    """Evidence of missing entries: their names, the daemon's counters, and a copy of its directory."""
    numbers = [tuple(int(part) for part in tag.split("/")[1:]) for tag in events]
    spans = {w: (min(own), max(own)) for w in range(WRITERS) if (own := [n for n in numbers if n[0] == w])}
    copy = tempfile.mkdtemp(prefix="saltcellar-lost-")
    shutil.copytree(daemon.root, f"{copy}/daemon", symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
    counted = {name: n for name, n in status.items() if n}
    return f"{len(events)} events from and to {spans}, {returns} returns; {counted}; all of it is in {copy}"
