"""Messages on the socket when a real master stores jobs: one per call of Salt. And returns sent directly by minions."""
import contextlib
import json
import os
import shutil
import socket
import struct
import threading

import msgpack
import pytest
import salt_lab
from conftest import FEW, TIMEOUT, Daemon, Lab, eventually, started


class Tap:
    """A socket that forwards everything to the daemon's, and records each call: `(call, args)`."""

    def __init__(self, path, daemon):
        self.path, self.daemon, self.calls = path, daemon, []
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        self.listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                ours, _ = self.listener.accept()
            except OSError:
                return
            theirs = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                theirs.connect(self.daemon.socket)
            except OSError:
                ours.close()
                continue
            threading.Thread(target=self._requests, args=(ours, theirs), daemon=True).start()
            threading.Thread(target=self._pump, args=(theirs, ours), daemon=True).start()

    def _pump(self, source, to, note=lambda data: None):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                note(data)
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)

    def _requests(self, source, to):
        held = bytearray()
        self._pump(source, to, lambda data: self._note(held, data))

    def _note(self, held, data):
        held += data
        while held:
            if held[:6] == b"SCWIRE":
                del held[:8]
            elif len(held) >= 4 and len(held) >= 4 + (size := struct.unpack_from(">I", held)[0]):
                _, call, args = msgpack.unpackb(bytes(held[4:4 + size]), strict_map_key=False)
                self.calls.append((call, args))
                del held[:4 + size]
            else:
                return

    def about(self, jid):
        """Names of the calls about this job, in order."""
        def jid_of(args):
            load = args.get("load")
            return args.get("jid") or args.get("passed_jid") or (load.get("jid") if isinstance(load, dict) else None)
        return [call for call, args in self.calls if jid_of(args) == jid]

    def close(self):
        self.listener.close()


@pytest.fixture(scope="module")
def tapped():
    """A lab whose master stores end times, with a tap in between; its minion has another tap as alternative profile."""
    root = salt_lab.new_dir("sc-tap-")
    daemon = Daemon(root, bus=f"{root}/lab/master/run")
    daemon.tap, daemon.other = Tap(f"{root}/tap.sock", daemon), Tap(f"{root}/other.sock", daemon)
    daemon.raw = f"{root}/raw.json"
    try:
        daemon.start()
        with started(
            Lab, f"{root}/lab", minions=1,
            master_conf={**FEW, "master_job_cache": "saltcellar", "saltcellar.socket": daemon.tap.path,
                         "saltcellar.timeout": TIMEOUT, "job_cache_store_endtime": True},
            minion_conf={"saltcellar.socket": daemon.socket, "saltcellar.timeout": TIMEOUT, "alternative.saltcellar.socket": daemon.other.path,
                         "saltcellar.return_kwargs": ["timeout"], "rawfile_json.filename": daemon.raw},
        ) as daemon.lab:
            daemon.wait_for_bus()
            yield daemon
    finally:
        for tap in (daemon.tap, daemon.other):
            tap.close()
        if daemon.running:
            daemon.stop()
        if not os.environ.get("KEEP"):
            shutil.rmtree(root, ignore_errors=True)


def newest(daemon, *args, **want):
    """The jid of the newest job with these values in its row."""
    def find():
        return next((j["jid"] for j in daemon.jobs(*args) if all(j[k] == v for k, v in want.items())), None)
    return eventually(f"a job with {args} {want}", find)


def endtime(daemon, jid):
    return eventually(f"the end of {jid}", lambda: (daemon.job(jid) or {}).get("endtime"))


def test_each_call_of_the_master_is_one_message(tapped):
    calls = tapped.status()["counters"]["calls"]
    seen = len(tapped.tap.calls)
    jid = tapped.lab.publish("*", "test.echo", "counted")
    endtime(tapped, jid)
    assert tapped.tap.about(jid) == ["save_load", "save_load", "returner", "update_endtime"]
    assert tapped.returned(jid) == ["lab-1"]
    # Calls counted by the daemon: the jid, the load, the return, the master's maintenance, and the test's own queries.
    since = [call for call, _ in tapped.tap.calls[seen:]]
    assert sorted(call for call in since if call != "clean_old_jobs") == [
        "prep_jid", "returner", "save_load", "save_load", "update_endtime"]
    assert tapped.status()["counters"]["calls"] - calls >= len(since)


def test_a_return_without_a_job_is_stored_once(tapped):
    assert tapped.lab.call("lab-1", "test.arg", "alone") is not None
    jid = newest(tapped, "--fun", "test.arg")
    endtime(tapped, jid)
    assert tapped.tap.about(jid)[-2:] == ["returner", "update_endtime"]
    assert tapped.tap.about(jid).count("returner") == 1
    assert tapped.job(jid)["minions"] == ["lab-1"]


def test_a_runner_is_stored_once(tapped):
    tapped.lab.run("test.arg", "runs")
    jid = newest(tapped, "--fun", "runner.test.arg")
    endtime(tapped, jid)
    assert tapped.tap.about(jid).count("returner") == 1


def test_several_returners_at_once_and_another_configuration(tapped):
    assert tapped.lab.salt("lab-1", "test.echo", "thrice", "--return", "saltcellar,rawfile_json,saltcellar",
                           "--return_config", "alternative") == {"lab-1": "thrice"}
    jid = newest(tapped, arg=["thrice"])
    eventually("the minion's own return", lambda: tapped.other.about(jid) == ["returner"])

    def written():
        with contextlib.suppress(FileNotFoundError), open(tapped.raw) as raw:
            return [json.loads(line)["return"] for line in raw if line.endswith("\n")]
    assert eventually("the other returner", written) == ["thrice"]
    assert [(r["return"], r["duplicates"]) for r in tapped.job(jid)["returns"]] == [("thrice", 0)]


def test_a_job_cannot_change_protected_settings(tapped):
    kwargs = json.dumps({"socket": tapped.other.path, "timeout": 5})
    assert tapped.lab.salt("lab-1", "test.echo", "here", "--return", "saltcellar", "--return_kwargs", kwargs) \
        == {"lab-1": "here"}
    jid = newest(tapped, arg=["here"])
    log = f"{tapped.lab.lab['dir']}/lab-1/log"
    eventually("the message in the minion's log",
               lambda: f"job {jid} must not set socket, ignored: to permit it" in open(log).read())
    assert tapped.other.about(jid) == []
    assert tapped.returned(jid) == ["lab-1"]
