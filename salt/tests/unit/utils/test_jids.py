"""Jids generated without the daemon."""

import os
import random
import re
import time

import pytest

from saltext.saltcellar.utils import jids
from saltext.saltcellar.utils import settings as settings_
from saltext.saltcellar.utils import spool as spool_


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
    assert re.fullmatch(
        rf"\d{{20}}_{os.getpid()}", jids.local_jid(dict(opts, unique_jid=True), spool)
    )


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


# ---- slots

WRONG = [
    "0/3",
    "4/3",
    "a",
    "1/0",
    "0/0",
    "1/65",
    "-1/3",
    "1/3 ",
    "1/3\n",
    "",
    "1",
    2,
    ["1/3"],
    None,
]


def time_of(jid):
    return jids._EPOCH.strptime(jid[:20], "%Y%m%d%H%M%S%f")


def micros(jid):
    return (time_of(jid) - jids._EPOCH) // jids.datetime.timedelta(microseconds=1)


@pytest.mark.parametrize("text", ["1/1", "2/3", "64/64"])
def test_a_slot_is_number_and_count(text):
    assert "/".join(map(str, jids.Slot.parse(text))) == text


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_slot_is_an_error_that_says_what_is_accepted(text):
    with pytest.raises(
        ValueError,
        match="is not a slot k/n: the number n of masters, from 1 to 64, and the number k of this one",
    ):
        jids.Slot.parse(text)


def test_every_microsecond_belongs_to_one_daemon_or_one_extension():
    """In any 2n microseconds each daemon has one, and each extension; see ``Slot::first_from`` of the daemon for its half."""
    for of in range(1, jids.SLOTS_MAX + 1):
        begin = random.randrange(10**15, 2 * 10**15)
        daemons = {begin + (2 * (k - 1) - begin) % (2 * of) for k in range(1, of + 1)}
        extensions = {jids.Slot(k, of).first_from(begin) for k in range(1, of + 1)}
        assert sorted(daemons | extensions) == list(range(begin, begin + 2 * of)), (of, begin)


def test_extensions_of_distinct_slots_never_make_the_same_jid(opts, run_dir, monkeypatch):
    """Clocks that stop, step back, and differ."""
    ticks = random.Random(33)
    monkeypatch.setattr(time, "time_ns", lambda: (10**15 + ticks.randrange(400)) * 1000)
    spools = [spool_.Spool(str(run_dir / str(k)), 1000, 1000) for k in range(5)]
    each = [[] for _ in spools]
    for _ in range(500):
        k = ticks.randrange(5)
        each[k].append(jids.local_jid(opts, spools[k], jids.Slot(k + 1, 5)))
    assert all(one == sorted(set(one)) for one in each)
    assert all(micros(jid) % 10 == 2 * k + 1 for k, one in enumerate(each) for jid in one)
    assert len(set().union(*each)) == 500


def test_with_a_slot_but_without_a_file_a_process_does_not_repeat_jids(opts, run_dir, monkeypatch):
    (run_dir / "file").write_text("")
    spool = spool_.Spool(str(run_dir / "file" / "no"), 1000, 1000)
    monkeypatch.setattr(time, "time_ns", lambda: 10**15)
    got = [jids.local_jid(opts, spool, jids.Slot(2, 3)) for _ in range(50)]
    assert got == sorted(set(got)) and {micros(jid) % 6 for jid in got} == {3}


def slot_of(spool, slot=None):
    return tuple(jids.slot_of(settings_.Settings(slot=slot), spool))


def test_the_daemons_slot_has_precedence_over_the_configured_one(spool):
    assert slot_of(spool) == (1, 1)
    assert slot_of(spool, "3/3") == (3, 3)
    jids.learn(spool, "2/3")
    assert slot_of(spool, "3/3") == (2, 3)
    jids.learn(spool, "12/16")
    jids.learn(spool, "1/3")
    assert slot_of(spool) == (1, 3)
    jids.learn(spool, None)
    assert slot_of(spool, "3/3") == (3, 3)
    assert not os.path.exists(os.path.join(spool.directory, "slot"))


def test_a_daemon_without_a_slot_makes_no_file(spool):
    jids.learn(spool, None)
    assert not os.path.exists(spool.directory)


def test_another_process_knows_the_slot(spool, in_child):
    in_child(jids.learn, spool, "2/3")
    assert slot_of(spool) == (2, 3)


@pytest.mark.parametrize("slot", ["4/3", 7, b"1/3", {}])
def test_a_slot_of_the_daemon_that_cannot_be_read_is_logged_and_ignored(spool, slot, caplog):
    jids.learn(spool, "2/3")
    jids.learn(spool, slot)
    assert slot_of(spool) == (2, 3)
    assert "is not a slot k/n" in caplog.text


def test_a_slot_that_cannot_be_kept_counts_in_this_process(run_dir, caplog):
    (run_dir / "file").write_text("")
    spool = spool_.Spool(str(run_dir / "file" / "no"), 1000, 1000)
    jids.learn(spool, "2/3")
    assert slot_of(spool, "3/3") == (2, 3)
    assert "cannot keep the slot of job ids" in caplog.text


@pytest.mark.parametrize("text", ["", "\n", "9/3\n", "x" * 100, "2/3\n3\n"])
def test_a_damaged_file_of_the_slot(spool, text):
    spool.set_slot("1/3")
    with open(os.path.join(spool.directory, "slot"), "w") as file:
        file.write(text)
    assert slot_of(spool, "3/3") == ((2, 3) if text.startswith("2/3") else (3, 3))


@pytest.mark.parametrize("value", [value for value in WRONG if value not in (None, "")])
def test_an_invalid_configured_slot_is_logged_and_ignored(value, caplog):
    assert settings_.Settings(slot=value).slot is None
    assert "saltcellar: invalid " in caplog.text and "saltcellar.slot" in caplog.text
