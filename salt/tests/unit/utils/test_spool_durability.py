"""Durability of the spool: every write, truncation and new name is synced before the call returns."""

import os

import pytest

from saltext.saltcellar.utils import spool as spool_

CALL = ("returner", {"load": {"n": 1}})


class Disk:
    """
    The system calls that change files or make changes durable, in order, as ``(name, act)``.

    A name is relative to the spool's directory. A power failure may undo the changes in ``unsynced``.
    """

    def __init__(self, monkeypatch, directory):
        self.directory = directory
        self.acts = []
        self.fail_sync_of = None
        real = {
            name: getattr(os, name) for name in ("open", "mkdir", "pwrite", "ftruncate", "fsync")
        }

        def open_(path, flags, *args, **kwargs):
            made = flags & os.O_CREAT and not os.path.lexists(path)
            fd = real["open"](path, flags, *args, **kwargs)
            if made:
                self.acts.append((self.name(os.path.dirname(path)), "new name"))
            return fd

        def mkdir(path, *args, **kwargs):
            real["mkdir"](path, *args, **kwargs)
            self.acts.append((self.name(os.path.dirname(path)), "new name"))

        def pwrite(fd, data, at):
            self.acts.append((self.name_of(fd), "write"))
            return real["pwrite"](fd, data, at)

        def ftruncate(fd, size):
            self.acts.append((self.name_of(fd), "cut"))
            return real["ftruncate"](fd, size)

        def fsync(fd):
            if self.name_of(fd) == self.fail_sync_of:
                raise OSError(5, "as if the disk had failed")
            self.acts.append((self.name_of(fd), "sync"))
            return real["fsync"](fd)

        for function in (open_, mkdir, pwrite, ftruncate, fsync):
            monkeypatch.setattr(os, function.__name__.rstrip("_"), function)

    def name(self, path):
        return os.path.relpath(path, self.directory)

    def name_of(self, fd):
        return self.name(os.readlink(f"/proc/self/fd/{fd}"))

    def unsynced(self, acts=None):
        """Changes that a power failure could undo, after these acts or all."""
        found = set()
        for name, act in self.acts if acts is None else acts:
            if act == "sync":
                found.discard(name)
            else:
                found.add(name)
        return found

    def before(self, name, act):
        """Unsynced changes at the first occurrence of an act."""
        return self.unsynced(self.acts[: self.acts.index((name, act))])


@pytest.fixture
def disk(spool, monkeypatch):
    return Disk(monkeypatch, spool.directory)


def test_a_spooled_call_could_be_lost_in_a_power_failure(spool, disk):
    spool.append(*CALL)
    assert ("spool", "write") in disk.acts
    assert disk.unsynced() == set(), (
        "the first one also creates the directory, its name, and the state"
    )
    for _ in range(2):
        del disk.acts[:]
        spool.append(*CALL)
        # The state is rebuilt from the records if it is out of date.
        assert disk.acts[:2] == [("spool", "write"), ("spool", "sync")]
        assert disk.unsynced() <= {"spool.state"}


def test_the_directory_of_the_spool_could_be_lost_in_a_power_failure(spool, disk):
    assert not os.path.exists(spool.directory)
    spool.append(*CALL)
    new = [name for name, act in disk.acts if act == "new name"]
    assert set(new) == {"../..", "..", "."}, (
        "Salt's cache is new, the directory in it, and the files in that"
    )
    assert disk.before("spool", "write") == set(), (
        "the name is on disk before the record is written"
    )
    last = {name: len(disk.acts) - 1 - disk.acts[::-1].index((name, "new name")) for name in new}
    assert all((name, "sync") in disk.acts[at:] for name, at in last.items())


def test_a_call_that_was_not_synced_was_reported_as_kept(spool, disk):
    spool.append(*CALL)
    kept = os.stat(spool.path).st_size
    disk.fail_sync_of = "spool"
    with pytest.raises(spool_.SpoolError) as raised:
        spool.append(*CALL)
    assert raised.value.reason == "spool_failed"
    assert os.stat(spool.path).st_size == kept, "an entry counted as lost is not handed over"
    disk.fail_sync_of = None
    assert len(list(spool.records())) == 1


def test_a_truncated_torn_record_could_reappear_after_a_new_one(spool, disk):
    spool.append(*CALL)
    spool.append(*CALL)
    os.truncate(spool.path, os.stat(spool.path).st_size - 3)
    del disk.acts[:]
    spool.append(*CALL)
    assert disk.acts[:2] == [("spool", "cut"), ("spool", "sync")], (
        "synced before new data is written there"
    )
    assert "spool" not in disk.unsynced()


def test_an_emptied_spool_could_skip_new_records_after_a_power_failure(spool, disk):
    spool.append(*CALL)
    spool.append(*CALL)
    del disk.acts[:]
    spool.advance(os.stat(spool.path).st_size)
    assert not spool.pending()
    assert [act for act in disk.acts if act[0] == "spool"] == [("spool", "cut"), ("spool", "sync")]
    assert disk.before("spool.state", "write") == set(), (
        "the file is empty before the state is updated"
    )
    assert disk.unsynced() == set()


def test_a_state_left_by_a_crash_while_emptying_was_not_replaced_before_the_next_record(
    spool, disk
):
    spool.append(*CALL)
    stale = os.stat(spool.path).st_size
    os.truncate(spool.path, 0)
    spool._write_state(spool_.State(stale, stale))
    del disk.acts[:]
    spool.append(*CALL)
    assert ("spool.state", "write") in disk.acts[: disk.acts.index(("spool", "write"))]
    assert disk.before("spool", "write") == set(), (
        "a stale offset is removed before the file grows past it"
    )


def test_the_position_of_delivered_calls_could_be_lost(spool, disk):
    for _ in range(3):
        spool.append(*CALL)
    del disk.acts[:]
    spool.advance(next(spool.records()).end)
    assert disk.unsynced() == set()
    assert ("spool.state", "sync") in disk.acts


def test_a_dead_lettered_call_could_be_lost_in_a_power_failure(spool, disk):
    spool.append(*CALL)
    records, _ = spool.first(1, 1 << 20)
    del disk.acts[:]
    spool.dead_letter(records[0])
    assert ("spool.dead-letter", "write") in disk.acts
    assert disk.unsynced() == set(), "the record, and the name of its file"


def test_salt_continued_before_its_return_was_on_disk(client, disk):
    """Through the client, as the returner calls it, without a daemon."""
    client.write(*CALL)
    assert len(list(client.spool.records())) == 1
    assert "spool" not in disk.unsynced() and "." not in disk.unsynced()
