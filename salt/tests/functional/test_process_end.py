"""Counts that could not be written reach the disk when a process of Salt ends: Salt's processes end in os._exit."""

import multiprocessing
import time

import pytest
import salt.utils.process

from saltext.saltcellar.utils import client as client_


def keep_a_count(opts, kept, how):
    from saltext.saltcellar.utils import spool

    waiting = client_.get_client(opts).spool
    spool.at_exit(waiting.write_counts)
    # A count that could not be written yet.
    waiting._keep_counts({"failed": 1})
    kept.set()
    if how == "SIGTERM":
        time.sleep(60)


@pytest.mark.parametrize("how", ["SIGTERM", "return"])
@pytest.mark.parametrize(
    "kind", [salt.utils.process.SignalHandlingProcess, multiprocessing.Process]
)
def test_counts_survive_the_end_of_a_process(kind, how, opts, spool):
    if how == "SIGTERM" and kind is multiprocessing.Process:
        pytest.skip("Python's own processes have no handler for SIGTERM")
    kept = multiprocessing.Event()
    process = kind(target=keep_a_count, args=(opts, kept, how))
    process.start()
    assert kept.wait(30)
    if how == "SIGTERM":
        process.terminate()
    process.join(30)
    assert process.exitcode == 0
    assert spool.counters() == {"failed": 1}
