"""The spool: crashes, full disks, concurrent processes, and its handover."""

import errno
import multiprocessing
import os
import resource
import signal
import stat
import struct
import threading
import time
import zlib

import pytest

from saltext.saltcellar.utils import client as client_
from saltext.saltcellar.utils import spool as spool_
from tests.support.helpers import Refuse
from tests.support.helpers import missing
from tests.support.helpers import spooled as read_spooled


def put(spool, *numbers):
    for number in numbers:
        spool.append("returner", {"load": {"n": number}, "replay": True})


def numbers(calls):
    return [args["load"]["n"] for call, args in calls if call == "returner"]


def waiting(spool):
    return numbers(read_spooled(spool))


def hand_over_again_and_again(client):
    """Hands over until the spool is empty: more often than the tries of one record."""
    for _ in range(spool_.TRIES_MAX * 3):
        client_._handover_not_before.clear()
        client.hand_over(60)
        if not client.spool.pending():
            return


@pytest.fixture
def refuse():
    def answer_with(code, when=lambda args: True):
        def answer(args):
            if when(args):
                raise Refuse(code)

        return answer

    return answer_with


# ---- the file


def test_records_are_ordered_and_private(spool):
    put(spool, 1, 2, 3)
    assert waiting(spool) == [1, 2, 3]
    for name in os.listdir(spool.directory):
        assert stat.S_IMODE(os.stat(os.path.join(spool.directory, name)).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(spool.directory).st_mode) == 0o700


def test_a_record_has_the_form_that_the_file_states(spool):
    put(spool, 1)
    with open(spool.path, "rb") as file:
        data = file.read()
    length, number, crc = struct.unpack(">III", data[:12])
    assert (length, number, crc) == (len(data) - 12, 1, zlib.crc32(data[4:8] + data[12:]))


def test_waiting_entries_are_counted_without_decoding_them(spool, monkeypatch):
    """A minion's main loop asks for them, and the spool may hold hundreds of thousands."""
    put(spool, *range(50))
    spool.append("event_return", {"at": 1, "events": [{}, {}, {}]})
    decoded = []
    real = spool_.wire.unpack
    monkeypatch.setattr(spool_.wire, "unpack", lambda data: decoded.append(1) or real(data))
    found = spool.waiting()
    assert (found["entries"], found["bytes"], len(decoded)) == (53, os.stat(spool.path).st_size, 1)
    records, _ = spool.first(20, 1 << 20)
    spool.advance(records[-1].end)
    assert spool.waiting()["entries"] == 33
    # A crash left the state behind the file, or none at all.
    os.unlink(f"{spool.path}.state")
    assert spool.waiting()["entries"] == 53
    put(spool, 50)
    assert spool.waiting()["entries"] == 54


@pytest.mark.parametrize("cut", [1, 7, 9, 20])
def test_a_torn_tail_is_skipped_and_cut_before_the_next_record(spool, cut):
    put(spool, 1, 2)
    good = os.stat(spool.path).st_size
    put(spool, 3)
    os.truncate(spool.path, os.stat(spool.path).st_size - cut)
    assert waiting(spool) == [1, 2]
    put(spool, 4)
    assert waiting(spool) == [1, 2, 4]
    assert spool.counters() == {"torn": 1}
    assert good < os.stat(spool.path).st_size


def test_all_records_that_a_crash_left_behind_the_last_whole_one_are_counted_as_torn(spool):
    put(spool, 1, 2, 3)
    os.truncate(spool.path, os.stat(spool.path).st_size // 2)
    put(spool, 4)
    assert waiting(spool) == [1, 4]
    assert spool.counters() == {"torn": 2}


@pytest.mark.parametrize("tail", [b"\0" * 4096, b"\xff" * 100, b"\0\0\0\x04\0\0\0\0abcd", b"\0"])
def test_a_tail_of_garbage_is_cut_before_the_next_record(spool, tail):
    put(spool, 1)
    with open(spool.path, "ab") as file:
        file.write(tail)
    put(spool, 2)
    assert waiting(spool) == [1, 2]


def test_a_torn_tail_alone_is_emptied_by_a_handover(daemon, client, spool):
    put(spool, 1)
    os.truncate(spool.path, 10)
    client.hand_over(60)
    assert not spool.pending()
    assert daemon.calls == []


def test_damage_in_the_middle_costs_one_record(daemon, client, spool):
    put(spool, 1, 2, 3)
    third = os.stat(spool.path).st_size // 3
    with open(spool.path, "r+b") as file:
        file.seek(third + 12)
        file.write(b"\xff\xff")
    assert waiting(spool) == [1, 3]
    client.hand_over(60)
    assert numbers(daemon.calls) == [1, 3]
    assert not spool.pending()
    assert spool.counters() == {"damaged": 1}


def test_damage_that_hides_all_later_records_counts_them(daemon, client, spool):
    put(spool, 1, 2, 3)
    with open(spool.path, "r+b") as file:
        # Its length.
        file.write(b"\xff\xff\xff\xff")
    client.hand_over(60)
    assert not spool.pending()
    assert spool.counters() == {"damaged": 3}


def test_a_dead_letter_without_room_is_counted_as_lost(client, spool, caplog):
    put(spool, 1)
    spool.bytes_max = 10
    (record,), _ = spool.first(1, 1 << 20)
    client._dead_letter(record)
    assert spool.counters() == {"dead_letter_full": 1}
    assert not spool.pending()
    assert "LOST" in caplog.text and "dead-letter is full" in caplog.text


def test_a_rejected_record_that_finds_no_room_for_inspection_is_logged_as_lost(
    daemon, client, spool, refuse, caplog
):
    put(spool, 1)
    spool.bytes_max = 10
    daemon.answers["returner"] = refuse("too_large")
    client.hand_over(60)
    assert spool.counters() == {"too_large": 1}
    assert "LOST" in caplog.text and "dead-letter is full" in caplog.text


def test_damage_up_to_the_end_is_counted(daemon, client, spool):
    put(spool, 1)
    with open(spool.path, "r+b") as file:
        file.seek(12)
        file.write(b"\xff\xff")
    client.hand_over(60)
    assert daemon.calls == []
    assert not spool.pending()
    assert spool.counters() == {"damaged": 1}


@pytest.mark.parametrize("state", [b"", b"short", b"\xff" * 24, struct.pack(">QQII", 5, 5, 0, 0)])
def test_a_damaged_state_file_restarts_the_handover(daemon, client, spool, state):
    put(spool, 1, 2)
    with open(f"{spool.path}.state", "wb") as file:
        file.write(state)
    put(spool, 3)
    client.hand_over(60)
    assert numbers(daemon.calls) == [1, 2, 3]


def test_a_state_file_beyond_the_end_of_the_spool_restarts_the_handover(spool):
    spool._write_state(spool_.State(1 << 20, 1 << 21, 7, 3))
    put(spool, 1)
    spool._write_state(spool_.State(1 << 20, 1 << 21, 7, 3))
    assert waiting(spool) == [1]
    put(spool, 2)
    assert waiting(spool) == [1, 2]


def test_a_crash_after_emptying_and_then_after_a_long_record_skips_nothing(spool, monkeypatch):
    put(spool, 1)
    stale = os.stat(spool.path).st_size
    os.truncate(spool.path, 0)
    spool._write_state(spool_.State(stale - 3, stale, 1))
    real = spool_.Spool._write_state

    def crash(self, state, durable=False):
        if state.end:
            raise OSError(errno.EIO, "as if the process had ended")
        return real(self, state, durable)

    monkeypatch.setattr(spool_.Spool, "_write_state", crash)
    put(spool, *range(20, 30))
    assert waiting(spool) == list(range(20, 30))


def test_a_crash_between_truncation_and_its_note_skips_nothing(spool):
    put(spool, *range(10))
    spool.advance(list(spool.records())[8].end)
    with open(f"{spool.path}.state", "rb") as file:
        stale = file.read()
    spool.advance(1 << 40)
    with open(f"{spool.path}.state", "wb") as file:
        file.write(stale)
    put(spool, *range(20, 40))
    assert waiting(spool) == list(range(20, 40))


def test_a_crash_between_a_record_and_its_note_loses_nothing(spool):
    put(spool, 1)
    with open(f"{spool.path}.state", "rb") as file:
        before = file.read()
    put(spool, 2)
    with open(f"{spool.path}.state", "wb") as file:
        file.write(before)
    put(spool, 3)
    assert waiting(spool) == [1, 2, 3]
    assert spool.counters() == {}


def test_an_entry_over_the_limit_is_rejected_counted_and_logged(opts, caplog):
    opts["saltcellar.spool_bytes_max"] = 1000
    client = client_.get_client(opts)
    for number in range(30):
        client.write("returner", {"load": {"jid": str(number), "return": "x" * 100}})
    kept = len(list(client.spool.records()))
    assert 0 < kept < 10
    assert os.stat(client.spool.path).st_size <= 1000
    assert client.spool.counters() == {"spool_full": 30 - kept}
    assert len([r for r in caplog.records if "LOST" in r.message]) == 30 - kept


def test_a_handover_frees_space(daemon, opts):
    opts["saltcellar.spool_bytes_max"] = 1000
    client = client_.get_client(opts)
    daemon.stop()
    for number in range(30):
        client.write("returner", {"load": {"n": number, "return": "x" * 100}})
    daemon.start()
    client.hand_over(60)
    daemon.stop()
    client.write("returner", {"load": {"n": 99}})
    assert waiting(client.spool) == [99]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_an_entry_lost_to_a_full_disk_is_logged_and_the_spool_stays_valid(
    client, spool, monkeypatch, caplog, error
):
    put(spool, 1)
    real = os.pwrite
    written = []

    def full(fd, data, at):
        # The record's first part fits, unlike the rest. The state and the counts are shorter.
        if len(data) > 60:
            if written:
                raise OSError(error, os.strerror(error))
            written.append(50)
            return real(fd, data[:50], at)
        return real(fd, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    client.write("returner", {"load": {"n": 2, "return": "x" * 80}})
    monkeypatch.undo()
    assert "LOST" in caplog.text
    assert spool.counters() == {"spool_failed": 1}
    put(spool, 3)
    assert waiting(spool) == [1, 3]
    assert spool.counters() == {"spool_failed": 1}


def test_a_spool_that_cannot_be_made_raises_nothing(opts, run_dir, caplog):
    (run_dir / "file").write_text("in the way")
    opts["saltcellar.spool_dir"] = str(run_dir / "file" / "spool")
    client_.get_client(opts).write("returner", {"load": {"n": 1}})
    assert "LOST" in caplog.text


def test_a_count_whose_write_failed_is_written_with_the_next_one(spool, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(
            spool_.Spool, "_open", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full"))
        )
        spool.count("spool_failed")
    spool.count("refused", 2)
    assert spool.counters() == {"spool_failed": 1, "refused": 2}


def test_a_process_without_file_descriptors_counts_its_losses_before_exit(opts, spool):
    """Neither the record nor the count can be written: no file descriptor is available (EMFILE)."""

    def child():
        client_.get_client(opts)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        for n in range(5):
            client_.get_client(opts).write(
                "event_return", {"events": [{"tag": "a", "data": {}}, {"tag": "b", "data": {}}]}
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
    assert spool.counters() == {"spool_failed": 10}


def test_maintenance_writes_pending_counts(daemon, client, spool, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(
            spool_.Spool, "_open", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full"))
        )
        spool.count("spool_failed", 3)
    client.maintain({"keep_jobs_seconds": 60})
    assert spool.counters() == {"spool_failed": 3}


def test_a_forked_child_does_not_write_the_parents_pending_counts(spool, monkeypatch, in_child):
    with monkeypatch.context() as patch:
        patch.setattr(
            spool_.Spool, "_open", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full"))
        )
        spool.count("spool_failed")
    in_child(lambda: spool.count("refused"))
    spool.count("refused")
    assert spool.counters() == {"spool_failed": 1, "refused": 2}


def test_a_symbolic_link_is_not_followed(spool, run_dir):
    os.makedirs(spool.directory)
    os.symlink(run_dir / "elsewhere", spool.path)
    with pytest.raises(spool_.SpoolError):
        put(spool, 1)
    assert not (run_dir / "elsewhere").exists()


def test_files_spooled_by_root_belong_to_the_owner_of_salts_cache(opts, run_dir):
    if os.geteuid() != 0:
        missing("root, to give files away")
    os.mkdir(opts["cachedir"])
    os.chown(opts["cachedir"], 12345, 12346)
    spool = client_.get_client(opts).spool
    put(spool, 1)
    spool.count("x")
    for name in (".", *os.listdir(spool.directory)):
        status = os.stat(os.path.join(spool.directory, name))
        assert (status.st_uid, status.st_gid) == (12345, 12346)


def test_several_processes_spool_at_once_and_every_record_is_whole(spool, in_child):
    def work(process):
        put(spool, *range(process * 100, process * 100 + 50))

    pids = [in_child(work, process, wait=False) for process in range(6)]
    for pid in pids:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    found = waiting(spool)
    assert sorted(found) == sorted(p * 100 + n for p in range(6) for n in range(50))
    for process in range(6):
        mine = [n for n in found if n // 100 == process]
        assert mine == sorted(mine)
    assert spool.counters() == {}


def test_processes_killed_while_spooling_leave_whole_records_behind(spool, in_child):
    def work(process):
        for number in range(100000):
            put(spool, process * 1000000 + number)

    for attempt in range(6):
        pids = [in_child(work, attempt * 2 + n, wait=False) for n in range(2)]
        until = time.monotonic() + 5
        while not spool.pending() and time.monotonic() < until:
            time.sleep(0.002)
        time.sleep(0.02 + attempt * 0.003)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        put(spool, -attempt)
    found = waiting(spool)
    for process in range(12):
        mine = [n - process * 1000000 for n in found if n > 0 and n // 1000000 == process]
        assert (
            mine[:1] in ([], [0], [1]) and mine == list(range(mine[0], mine[0] + len(mine)))
            if mine
            else True
        )
    assert [n for n in found if n < 0] == [-1, -2, -3, -4, -5]


def test_a_signal_handler_may_spool_in_the_middle_of_spooling(spool, monkeypatch):
    # The directory exists then, and the next record syncs nothing before the locked file.
    put(spool, 1)
    real = os.fsync
    sent = []

    def fsync(fd):
        if not sent:
            sent.append(os.path.samestat(os.fstat(fd), os.stat(spool.path)))
            # To this thread: the kernel could choose one that another test has left.
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        return real(fd)

    before = signal.signal(signal.SIGTERM, lambda *_: put(spool, 3))
    monkeypatch.setattr(os, "fsync", fsync)
    try:
        put(spool, 2)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert sent == [True]
    # A handler that ran meanwhile would have waited for the lock, and failed.
    assert waiting(spool) == [1, 2, 3]


# ---- handover


def test_spooled_records_are_delivered_once_and_in_order(daemon, client, spool):
    daemon.stop()
    for number in range(300):
        client.write("returner", {"load": {"n": number}})
    daemon.start()
    for _ in range(50):
        client.write("event_return", {"events": []})
        if not spool.pending():
            break
    assert numbers(daemon.calls) == list(range(300))
    assert all(args["replay"] is True for args in daemon.named("returner"))
    ats = [args["at"] for args in daemon.named("returner")]
    assert ats == sorted(ats)
    client.hand_over(60)
    assert len(daemon.named("returner")) == 300
    assert os.stat(spool.path).st_size == 0


def test_a_spooled_value_is_handed_over_in_the_bytes_it_was_spooled_in(daemon, client, spool):
    load = {
        "n": 1,
        "raw": b"\xff",
        1: "int",
        "name": "\udcff",
        "ext": [client_.wire.unpack(b"\xd4\x05a")],
    }
    spool.append("returner", {"load": load})
    ((payload,),) = [[record.payload for record in spool.records()]]
    client.hand_over(60)
    assert daemon.frames == [b"\x93\x01" + payload[1:]]


def test_answers_are_matched_in_any_order(daemon, client, spool, refuse):
    put(spool, *range(8))
    daemon.backwards = 7
    daemon.answers["returner"] = refuse("refused", lambda args: args["load"]["n"] == 2)
    client.hand_over(60)
    assert numbers(daemon.calls) == [0, 1, 3, 4, 5, 6, 7]
    assert spool.counters() == {"refused": 1}
    assert not spool.pending()


@pytest.mark.parametrize("code", ["refused", "bad_args", "too_large", "unknown_call"])
def test_a_permanently_rejected_record_is_counted_and_skipped(daemon, client, spool, refuse, code):
    put(spool, 1, 2, 3)
    daemon.answers["returner"] = refuse(code, lambda args: args["load"]["n"] == 2)
    client.hand_over(60)
    assert numbers(daemon.calls) == [1, 3]
    assert spool.counters() == {code: 1}
    assert not spool.pending()


def test_only_the_oversized_event_of_a_spooled_list_is_dead_lettered(daemon, client, spool, refuse):
    events = [{"tag": f"t/{n}", "data": {"n": n}} for n in range(11)]
    at = time.time_ns() // 1000
    spool.append("event_return", {"at": at, "replay": True, "events": events})
    put(spool, 1)
    daemon.answers["event_return"] = refuse(
        "too_large", lambda args: any(e["data"]["n"] == 6 for e in args["events"])
    )
    client.hand_over(60)
    taken = [args for call, args in daemon.calls if call == "event_return"]
    assert sorted(e["data"]["n"] for args in taken for e in args["events"]) == [
        0,
        1,
        2,
        3,
        4,
        5,
        7,
        8,
        9,
        10,
    ]
    assert all(
        args["replay"] and args["at"] == at + args["events"][0]["data"]["n"] for args in taken
    ), "known as replays"
    assert spool.counters() == {"too_large": 1}
    assert not spool.pending() and numbers(daemon.calls)[-1] == 1
    with open(f"{spool.path}.dead-letter", "rb") as file:
        (record,) = spool_._records(file, 0, os.stat(file.name).st_size)
    assert [event["data"]["n"] for event in record.call()[1]["events"]] == [6]


@pytest.mark.parametrize("code", ["unavailable", "internal"])
def test_a_temporarily_rejected_record_and_later_ones_wait(daemon, client, spool, refuse, code):
    put(spool, *range(5))
    daemon.answers["returner"] = refuse(code, lambda args: args["load"]["n"] >= 2)
    client.hand_over(60)
    assert waiting(spool) == [2, 3, 4]
    daemon.answers["returner"] = None
    client.hand_over(60)
    assert waiting(spool) == [2, 3, 4], "not immediately again"
    client_._handover_not_before.clear()
    client.hand_over(60)
    assert numbers(daemon.calls) == [0, 1, 2, 3, 4]


def test_a_record_that_ends_the_connection_each_time_is_dead_lettered(
    daemon, client, spool, refuse, caplog
):
    put(spool, *range(5))
    daemon.answers["returner"] = refuse("internal", lambda args: args["load"]["n"] == 2)
    hand_over_again_and_again(client)
    assert not spool.pending()
    assert spool.counters() == {"dead_lettered": 1}
    assert {0, 1, 3, 4} == set(numbers(daemon.calls))
    with open(f"{spool.path}.dead-letter", "rb") as file:
        (record,) = spool_._records(file, 0, os.stat(file.name).st_size)
    assert client_.wire.unpack(record.payload)[1]["load"] == {"n": 2}


def test_a_record_that_ends_the_connection_does_not_block_the_others(daemon, client, spool):
    put(spool, *range(3))

    def answer(args):
        if args["load"]["n"] == 1:
            daemon.drop()

    daemon.answers["returner"] = answer
    hand_over_again_and_again(client)
    assert not spool.pending()
    assert spool.counters() == {"dead_lettered": 1}
    assert {0, 2} <= set(numbers(daemon.calls))


def test_a_valid_record_is_not_blamed_for_the_next_one(daemon, client, spool):
    put(spool, *range(3))
    daemon.in_batches = True

    def answer(args):
        if args["load"]["n"] == 1:
            daemon.drop()

    daemon.answers["returner"] = answer
    hand_over_again_and_again(client)
    assert not spool.pending()
    with open(f"{spool.path}.dead-letter", "rb") as file:
        (record,) = spool_._records(file, 0, os.stat(file.name).st_size)
    assert client_.wire.unpack(record.payload)[1]["load"] == {"n": 1}


@pytest.mark.parametrize("code", ["unavailable", "version"])
@pytest.mark.parametrize("whole_connection", [False, True])
def test_a_long_outage_dead_letters_no_record(
    daemon, client, spool, refuse, code, whole_connection
):
    put(spool, 1)
    if whole_connection:
        daemon.last_words = {"code": code, "message": "as configured"}
    else:
        daemon.answers["returner"] = refuse(code)
    for _ in range(spool_.TRIES_MAX + 5):
        client_._handover_not_before.clear()
        client.hand_over(60)
    assert len(daemon.frames) == spool_.TRIES_MAX + 5
    assert waiting(spool) == [1]
    assert spool.counters() == {}


def test_a_handover_stops_at_its_time_limit_and_continues_with_the_next_call(
    daemon, client, spool, took
):
    def slow(args):
        time.sleep(0.002)

    put(spool, *range(500))
    daemon.answers["returner"] = slow
    with took() as first:
        client.write("save_load", {"jid": "1", "load": {}})
    assert 0.15 < first() < 3
    done = len(numbers(daemon.calls))
    assert 0 < done < 500
    assert waiting(spool) == list(range(done, 500))
    until = time.monotonic() + 20
    while spool.pending() and time.monotonic() < until:
        client.write("save_load", {"jid": "1", "load": {}})
    assert numbers(daemon.calls) == list(range(500))


def test_a_killed_handover_resumes_at_its_position(daemon, client, spool, in_child):
    put(spool, *range(400))
    daemon.answers["returner"] = lambda args: time.sleep(0.001)
    pid = in_child(lambda: client.hand_over(60), wait=False)
    until = time.monotonic() + 5
    while len(daemon.calls) < 150 and time.monotonic() < until:
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    left = waiting(spool)
    assert 0 < left[0] <= len(daemon.calls) + 1
    assert left == list(range(left[0], 400))
    client.hand_over(60)
    got = numbers(daemon.calls)
    assert sorted(set(got)) == list(range(400))
    assert len(got) <= 400 + client_.WINDOW_RECORDS
    assert not spool.pending()


def test_records_spooled_by_others_during_a_handover_are_not_lost(daemon, client, spool, in_child):
    def others(process):
        put(spool, *range(process * 1000, process * 1000 + 60))

    put(spool, 0)
    pids = [in_child(others, process, wait=False) for process in (1, 2, 3)]
    until = time.monotonic() + 10
    while pids and time.monotonic() < until:
        client.hand_over(60)
        pids = [pid for pid in pids if os.waitpid(pid, os.WNOHANG) == (0, 0)]
    assert not pids
    client.hand_over(5)
    assert sorted(numbers(daemon.calls)) == [0] + [
        p * 1000 + n for p in (1, 2, 3) for n in range(60)
    ]
    assert not spool.pending()


def test_several_processes_handing_over_send_each_record_once_and_in_order(
    daemon, client, spool, in_child
):
    put(spool, *range(300))

    def work():
        for _ in range(40):
            client.write("save_load", {"jid": "1", "load": {}})

    pids = [in_child(work, wait=False) for _ in range(4)]
    for pid in pids:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert numbers(daemon.calls) == list(range(300))


def test_only_one_process_hands_over_at_a_time(daemon, client, spool):
    put(spool, 1)
    with spool.handover_lock() as mine:
        assert mine
        client.hand_over(60)
        assert daemon.calls == []
    client.hand_over(60)
    assert numbers(daemon.calls) == [1]


def test_maintenance_empties_the_spool_for_longer_than_other_calls(daemon, client, spool, opts):
    put(spool, *range(80))
    daemon.answers["returner"] = lambda args: time.sleep(0.005)
    client.maintain(opts)
    assert numbers(daemon.calls) == list(range(80))


@pytest.mark.parametrize(
    "call, args",
    [("update_endtime", {"jid": "1", "endtime": "new"}), ("save_reg", {"data": "new"})],
)
def test_a_last_write_wins_call_queues_after_spooled_ones(daemon, client, spool, call, args):
    old = dict(args, **{"endtime" if "endtime" in args else "data": "old"})
    daemon.stop()
    client.write(call, old)
    daemon.start()
    client.write(call, args)
    assert [got.get("endtime") or got.get("data") for got in daemon.named(call)] == ["old", "new"]
    assert not spool.pending()


def test_a_daemon_that_hangs_during_a_handover_is_noticed_and_nothing_is_lost(
    daemon, client, spool, took
):
    put(spool, *range(10))
    daemon.hang = True
    client.settings.timeout = 0.3
    with took() as long:
        client.hand_over(60)
        client.hand_over(60)
    assert 0.25 < long() < 1.5
    assert waiting(spool) == list(range(10))
    with open(f"{spool.path}.state", "rb") as file:
        assert struct.unpack(">QQQII", file.read())[3] == 0


def test_an_empty_spool_costs_one_file_check(client, monkeypatch):
    monkeypatch.setattr(spool_.Spool, "handover_lock", lambda self: pytest.fail("looked further"))
    client.hand_over(60)


# ---- expiry


def test_expired_records_are_dropped_and_counted(daemon, opts, monkeypatch, caplog):
    opts["saltcellar.spool_age_max"] = 60
    client = client_.get_client(opts)
    spool, now = client.spool, int(time.time() * 1e6)
    for age, number in ((100, 1), (90, 2), (10, 3)):
        spool.append("returner", {"at": now - age * 1_000_000, "load": {"n": number}})
    spool.append("event_return", {"at": now - 300 * 1_000_000, "events": [{}, {}]})
    spool_._expiry_not_before.clear()
    spool.expire()
    assert waiting(spool) == [3], "in order: later records wait with records that have not expired"
    assert spool.counters() == {"spool_expired": 2}
    assert "LOST" in caplog.text
    # Not checked again immediately, but with the next entry.
    monkeypatch.setattr(spool, "age_max", 1)
    put(spool, 4)
    assert waiting(spool) == [3, 4]
    spool_._expiry_not_before.clear()
    put(spool, 5)
    assert waiting(spool) == [4, 5], "an entry without a time stays"
    assert spool.counters() == {"spool_expired": 5}


class Clocks:
    """The clock of the calendar and the one since boot. Both go on, from where a test sets them."""

    def __init__(self, monkeypatch):
        self.real, self.up = time.time(), 3600.0
        for name, now in (("time", lambda: self.real), ("monotonic", lambda: self.up)):
            monkeypatch.setattr(time, name, now)
            monkeypatch.setattr(time, f"{name}_ns", lambda now=now: int(now() * 1e9))

    def step(self, real=0, up=0):
        self.real += real
        self.up += up
        spool_._expiry_not_before.clear()

    def run(self, seconds):
        self.step(real=seconds, up=seconds)


@pytest.fixture
def clocks(monkeypatch):
    return Clocks(monkeypatch)


@pytest.fixture
def an_hour(opts):
    """A client whose entries expire after an hour, and its spool."""
    opts["saltcellar.spool_age_max"] = 3600
    client = client_.get_client(opts)
    return client, client.spool


def test_a_step_of_the_clock_expires_nothing(an_hour, clocks):
    client, spool = an_hour
    client.write("returner", {"load": {"n": 1}})
    clocks.step(real=50 * 365 * 86400)
    client.write("returner", {"load": {"n": 2}})
    spool.expire()
    assert waiting(spool) == [1, 2]
    clocks.run(3599)
    spool.expire()
    assert waiting(spool) == [1, 2]
    clocks.run(2)
    spool.expire()
    assert waiting(spool) == []
    assert spool.counters() == {"spool_expired": 2}


def test_time_in_which_the_host_is_suspended_expires_nothing(an_hour, clocks):
    client, spool = an_hour
    client.write("returner", {"load": {"n": 1}})
    clocks.step(real=86400, up=10)
    spool.expire()
    assert waiting(spool) == [1]


@pytest.mark.parametrize("up_before", [5, 600, 86400])
def test_after_a_restart_of_the_host_an_entry_has_its_time_again_and_then_expires(
    an_hour, clocks, up_before
):
    client, spool = an_hour
    clocks.up = up_before
    client.write("returner", {"load": {"n": 1}})
    clocks.step(real=7 * 86400, up=20 - up_before)
    for _ in range(59):
        clocks.run(60)
        spool.expire()
        assert waiting(spool) == [1], clocks.up
    # What it had been up before may come on top, less than the limit itself.
    for _ in range(61):
        clocks.run(60)
        spool.expire()
    assert waiting(spool) == []
    assert spool.counters() == {"spool_expired": 1}


def test_an_entry_is_kept_while_the_clock_is_behind(an_hour, clocks):
    client, spool = an_hour
    client.write("returner", {"load": {"n": 1}})
    clocks.step(real=-86400, up=7200)
    spool.expire()
    assert waiting(spool) == [1]


def test_an_entry_that_is_spooled_again_in_parts_keeps_its_age(daemon, an_hour, clocks, refuse):
    client, spool = an_hour
    daemon.stop()
    client.write("event_return", {"events": [{"tag": "a", "data": {}}, {"tag": "b", "data": {}}]})
    clocks.run(1800)
    (record,) = spool.records()

    def ask(*_args, **_more):
        raise client_.Unreachable("as configured")

    client._ask = ask
    assert client._split(record, client_.wire.Refusal("too_large", "as configured"))
    spool.advance(record.end)
    assert [len(args["events"]) for _, args in read_spooled(spool)] == [1, 1]
    clocks.run(1802)
    spool.expire()
    assert waiting(spool) == [] and spool.counters() == {"spool_expired": 2}


def test_expired_records_free_space(opts):
    opts.update({"saltcellar.spool_bytes_max": 1000, "saltcellar.spool_age_max": 60})
    client = client_.get_client(opts)
    put_at = lambda at: client.spool.append(
        "returner", {"at": int(at * 1e6), "load": {"n": 0, "pad": "x" * 800}}
    )
    put_at(time.time() - 61)
    spool_._expiry_not_before[client.spool.path] = float("inf")
    with pytest.raises(spool_.SpoolError):
        put_at(time.time())
    spool_._expiry_not_before.clear()
    put_at(time.time())
    assert client.spool.counters() == {"spool_expired": 1}


def test_a_handover_that_meets_an_expiry_moves_forward_only(spool):
    put(spool, 1, 2, 3)
    ends = [record.end for record in spool.records()]
    spool.advance(ends[1])
    spool.advance(ends[0])
    assert waiting(spool) == [3]
