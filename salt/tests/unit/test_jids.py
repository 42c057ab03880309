"""Jids generated without the daemon."""

import os
import re
import time

import pytest

from saltext.saltcellar.utils import jids, spool as spool_


def made(opts, spool, count):
    return [jids.local_jid(opts, spool) for _ in range(count)]


def test_a_jid_is_the_time_of_an_odd_microsecond(opts, spool):
    before = time.strftime("%Y%m%d%H%M%S", time.gmtime())
    (jid,) = made(opts, spool, 1)
    assert re.fullmatch(r"\d{19}[13579]", jid)
    assert before <= jid[:14] <= time.strftime("%Y%m%d%H%M%S", time.gmtime())


@pytest.mark.parametrize("clock", [[5_000_000], [5_000_000, 4_000_000, 5_000_000]])
def test_jids_increase_while_the_clock_stops_or_steps_back(opts, spool, monkeypatch, clock):
    ticks = iter(clock * 10)
    monkeypatch.setattr(time, "time_ns", lambda: next(ticks) * 1000)
    got = made(opts, spool, 9)
    assert got == sorted(set(got))
    assert got[0] == "19700101000005000001"


def test_jids_continue_at_most_an_hour_ahead_of_the_clock(opts, spool, monkeypatch):
    monkeypatch.setattr(time, "time_ns", lambda: 10**15)
    (ahead,) = made(opts, spool, 1)
    monkeypatch.setattr(time, "time_ns", lambda: 10**15 - 3000 * 10**9)
    assert made(opts, spool, 1) == [f"{int(ahead) + 2:020d}"]
    monkeypatch.setattr(time, "time_ns", lambda: 10**15 - 4000 * 10**9)
    assert made(opts, spool, 1)[0] < ahead


def test_with_unique_jid_the_process_id_follows(opts, spool):
    assert re.fullmatch(rf"\d{{20}}_{os.getpid()}", jids.local_jid(dict(opts, unique_jid=True), spool))


def test_several_processes_never_generate_the_same_jid(opts, spool, run_dir, in_child):
    def work(name):
        (run_dir / name).write_text("\n".join(made(opts, spool, 500)))

    pids = [in_child(work, f"made{n}", wait=False) for n in range(8)]
    for pid in pids:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    each = [(run_dir / f"made{n}").read_text().split() for n in range(8)]
    assert all(one == sorted(one) for one in each)
    everything = [jid for one in each for jid in one]
    assert len(set(everything)) == 8 * 500


def test_without_a_state_file_a_process_does_not_repeat_jids(opts, run_dir, monkeypatch):
    (run_dir / "file").write_text("")
    spool = spool_.Spool(str(run_dir / "file" / "no"), 1000, 1000)
    monkeypatch.setattr(time, "time_ns", lambda: 10**15)
    got = made(opts, spool, 50)
    assert got == sorted(set(got))
