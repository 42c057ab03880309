"""Entries that are held back reach the daemon when a process of Salt ends: Salt's processes end in os._exit."""

import multiprocessing
import time

import pytest
import salt.utils.process
from conftest import JID, RETURN
from saltext.saltcellar.utils import client as client_
from saltext.saltcellar.utils import fold


def hold(opts, held, how):
    client = client_.of(opts)
    fold.hold(client, "returner", {"at": time.time_ns() // 1000, "load": RETURN}, RETURN)
    # A count that could not be written yet.
    client.spool._keep_counts({"failed": 1})
    held.set()
    if how == "SIGTERM":
        time.sleep(60)


def hold_with_counts(opts, held, how):
    from saltext.saltcellar.utils import spool

    spool.at_exit(client_.of(opts).spool.write_counts)
    hold(opts, held, how)


@pytest.mark.parametrize("how", ["SIGTERM", "return"])
@pytest.mark.parametrize("kind", [salt.utils.process.SignalHandlingProcess, multiprocessing.Process])
def test_a_held_return_and_counts_survive_the_end_of_a_process(kind, how, opts, daemon, spool):
    if how == "SIGTERM" and kind is multiprocessing.Process:
        pytest.skip("Python's own processes have no handler for SIGTERM")
    held = multiprocessing.Event()
    process = kind(target=hold_with_counts, args=(opts, held, how))
    process.start()
    assert held.wait(30)
    if how == "SIGTERM":
        process.terminate()
    process.join(30)
    assert process.exitcode == 0
    (stored,) = daemon.named("returner")
    assert stored["load"]["jid"] == JID
    assert spool.counters() == {"failed": 1}
