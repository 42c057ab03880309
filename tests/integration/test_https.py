"""Minions that reach the daemon over HTTPS, each with its own Salt key: a separate master with two minions."""
import os
import shutil

import pytest
import salt_lab
from conftest import CACHED, FEW, REPO, TIMEOUT, Daemon, Lab, eventually, started

from saltext.saltcellar.utils import client

DATA = os.path.join(REPO, "salt", "tests", "data", "https")
BOTH = ["far-1", "far-2"]


@pytest.fixture(scope="module")
def far():
    """A daemon with a minion listener, and a lab whose minions reach it only that way."""
    root = salt_lab.new_dir("sc-far-")
    (port,) = salt_lab.free_ports(1)
    daemon = Daemon(root, bus=f"{root}/lab/master/run")
    config = {"listen": f"127.0.0.1:{port}", "certificate": f"{DATA}/server.pem", "key": f"{DATA}/server.key",
              "pki_dir": f"{root}/lab/master/pki", "read": "own"}
    salt_lab.write(f"{root}/saltcellar.yaml", salt_lab.to_yaml({"https": config}))
    daemon.config, daemon.flags = config, ["--config", f"{root}/saltcellar.yaml"]
    try:
        daemon.start()
        eventually("the source", lambda: daemon.status()["https"]["state"] == "open")
        with started(
            Lab, f"{root}/lab", minions=2, prefix="far-",
            master_conf={**FEW, "ext_job_cache": "saltcellar", "saltcellar.socket": daemon.socket, "saltcellar.timeout": TIMEOUT},
            minion_conf={**CACHED, "saltcellar.url": f"https://localhost:{port}", "saltcellar.ca": f"{DATA}/ca.pem",
                         "saltcellar.timeout": TIMEOUT},
        ) as daemon.lab:
            yield daemon
    finally:
        if daemon.running:
            daemon.stop()
        if not os.environ.get("KEEP"):
            shutil.rmtree(root, ignore_errors=True)


def counter(daemon, name):
    return daemon.status()["counters"][name]


def spooled(lab, minion, word):
    path = f"{lab.lab['dir']}/{minion}/cache/saltcellar/spool"
    try:
        with open(path, "rb") as spool:
            return spool.read().count(word.encode())
    except FileNotFoundError:
        return 0


def call(daemon, minion, word):
    """`salt-call` without the master, so its return arrives over HTTPS. Returns the number of stored copies."""
    assert daemon.lab.call(minion, "--local", "test.echo", word, "--return", "saltcellar") == word
    return stored(daemon, word)


def stored(daemon, word):
    jobs = [daemon.job(job["jid"]) for job in daemon.jobs() if job["fun"] == "test.echo"] if daemon.running else []
    return sum(r["return"] == word for job in jobs for r in job["returns"])


def test_returns_through_ext_job_cache_arrive_signed(far):
    # ext_job_cache: the master selects the minions' returner, without an option of the command line.
    batches = counter(far, "https_batches")
    jid = far.lab.detached("*", "test.echo", "direct return")
    eventually("both returns", lambda: far.returned(jid) == BOTH)
    # These jobs are known from the bus as well; this test is about the minions' returns.
    eventually("both batches", lambda: counter(far, "https_batches") >= batches + 2)
    assert far.lab.run("jobs.lookup_jid", jid) == {m: "direct return" for m in BOTH}
    refused = [n for n in far.status()["counters"] if n.startswith("https_") and n not in ("https_connections", "https_batches")]
    assert {n: counter(far, n) for n in refused if counter(far, n)} == {}


def test_a_return_option_of_one_job(far):
    batches = counter(far, "https_batches")
    assert far.lab.salt("far-1", "test.ping", "--return", "saltcellar") == {"far-1": True}
    eventually("the batch", lambda: counter(far, "https_batches") > batches)
    assert call(far, "far-2", "called") == 1


def test_a_minion_reads_its_own_returns(far):
    jid = far.lab.detached("*", "test.echo", "mine")
    eventually("both returns", lambda: far.returned(jid) == BOTH)
    found = far.lab.call("far-1", "--local", "ret.get_jid", "saltcellar", jid)
    assert {minion: one["return"] for minion, one in found.items()} == {"far-1": "mine"}


def ask(daemon, function, *args):
    """The extension's answer on far-1, and whether it logged a denial."""
    pki = f"{daemon.lab.lab['dir']}/far-1/pki"
    url = f"https://localhost:{daemon.config['listen'].rpartition(':')[2]}"
    opts = {"id": "far-1", "__role": "minion", "saltcellar.url": url, "saltcellar.ca": f"{DATA}/ca.pem",
            "saltcellar.pki_dir": pki, "saltcellar.spool_dir": f"{daemon.root}/asking", "saltcellar.timeout": TIMEOUT}
    denied = counter(daemon, "https_calls_denied")
    answer = getattr(client.get_client(opts), function)(*args)
    return answer, counter(daemon, "https_calls_denied") > denied


@pytest.mark.parametrize("read, whose, listed", [("none", [], False), ("all", BOTH, True), ("own", ["far-1"], False)])
def test_https_read_limits_the_readable_returns(far, read, whose, listed):
    jid = far.lab.detached("*", "test.echo", "to be read")
    eventually("both returns", lambda: far.returned(jid) == BOTH)
    far.stop()
    salt_lab.write(f"{far.root}/saltcellar.yaml", salt_lab.to_yaml({"https": dict(far.config, read=read)}))
    far.start()
    eventually("the source", lambda: far.status()["https"]["state"] == "open")
    denied_expected = read == "none"
    returns, denied = ask(far, "get_jid", {}, jid)
    assert (sorted(returns), denied) == (whose, denied_expected)
    assert ask(far, "get_fun", {}, "test.echo") == ({m: jid for m in whose}, denied_expected)
    jobs, denied = ask(far, "read", "get_jids", {}, {}, True)
    assert (jid in jobs, denied) == (listed, not listed)
    minions, denied = ask(far, "read", "get_minions", {}, [], True)
    assert (set(BOTH) <= set(minions), denied) == (listed, not listed)


def test_the_masters_own_job_cache_has_the_load_and_no_returns(far):
    """With `ext_job_cache` the minions send their own returns; the master stores the publish, in both releases."""
    jid = far.lab.detached("*", "test.echo", "elsewhere")
    eventually("both returns", lambda: far.returned(jid) == BOTH)
    import salt.config
    import salt.loader

    opts = salt.config.client_config(f"{far.lab.lab['dir']}/conf/master")
    theirs = salt.loader.returners(opts, functions={})
    assert theirs["local_cache.get_load"](jid)["Minions"] == BOTH
    assert theirs["local_cache.get_jid"](jid) == {}
    assert theirs["saltcellar.get_load"](jid)["Minions"] == BOTH
    assert {m: one["return"] for m, one in far.lab.run("jobs.list_job", jid)["Result"].items()} == dict.fromkeys(BOTH, "elsewhere")


def test_with_an_unreachable_daemon_returns_wait_on_the_minion(far):
    assert far.stop() == 0
    assert call(far, "far-2", "while away") == 0
    assert spooled(far.lab, "far-2", "while away") > 0
    far.start()
    eventually("the source", lambda: far.status()["https"]["state"] == "open")
    # Spooled entries are sent with the next call.
    assert call(far, "far-2", "back again") == 1
    assert spooled(far.lab, "far-2", "while away") == 0
    assert stored(far, "while away") == 1


def test_a_minion_without_an_accepted_key_is_rejected_and_spools(far):
    key = f"{far.lab.lab['dir']}/master/pki/minions/far-2"
    refused = counter(far, "https_rejected_key_not_accepted")
    os.rename(key, f"{key}.away")
    try:
        assert call(far, "far-2", "rejected call") == 0
        assert counter(far, "https_rejected_key_not_accepted") > refused
        assert spooled(far.lab, "far-2", "rejected call") > 0
    finally:
        os.rename(f"{key}.away", key)
    assert call(far, "far-2", "let in") == 1
    assert stored(far, "rejected call") == 1
    assert spooled(far.lab, "far-2", "rejected call") == 0
