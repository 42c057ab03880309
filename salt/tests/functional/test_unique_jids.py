"""Jids are unique by construction: from many processes at once, from the daemon and without it."""

import re

import pytest
import salt.loader

PROCESSES = 8


def make(opts, count, path):
    """Make so many jids as the master's workers do, and note them."""
    prep_jid = salt.loader.returners(opts, {})["saltcellar.prep_jid"]
    path.write_text("\n".join(prep_jid(nocache=False, passed_jid=None) for _ in range(count)))


@pytest.fixture
def made(in_child, run_dir, master_opts):
    """What some processes at once make; each one's jids in the order it got them."""

    def run(count, name="made"):
        import os

        paths = [run_dir / f"{name}{n}" for n in range(PROCESSES)]
        pids = [in_child(make, master_opts, count, path, wait=False) for path in paths]
        for pid in pids:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        return [path.read_text().split() for path in paths]

    return run


def unique(each, form=r"\d{20}"):
    everything = [jid for one in each for jid in one]
    assert all(re.fullmatch(form, jid) for jid in everything)
    assert all(one == sorted(one) for one in each), "in order, for each who asks"
    assert len(set(everything)) == len(everything)
    return set(everything)


def test_eight_processes_ask_the_daemon(cellar, master_opts, made):
    master_opts["saltcellar.socket"] = cellar.socket
    assert len(unique(made(10_000))) == PROCESSES * 10_000


def test_eight_processes_go_without(made):
    assert len(unique(made(1_000))) == PROCESSES * 1_000


def test_with_unique_jid_the_digits_are_unique_all_the_same(cellar, master_opts, made):
    master_opts["saltcellar.socket"] = cellar.socket
    master_opts["unique_jid"] = True
    each = made(200)
    unique(each, r"\d{20}_\d+")
    unique([[jid[:20] for jid in one] for one in each])


def test_what_is_made_without_the_daemon_is_never_made_by_it(cellar, master_opts, made):
    """Some cannot reach it while others do, in the same microseconds."""
    away = made(500, "before")
    master_opts["saltcellar.socket"] = cellar.socket
    ours = made(500, "with")
    master_opts["saltcellar.socket"] = cellar.socket + ".gone"
    later = made(500, "after")
    unique(away + ours + later)
    last = {int(jid) % 2 for one in away + later for jid in one}, {int(jid) % 2 for one in ours for jid in one}
    assert last == ({1}, {0})
