"""A real master stores its jobs in the daemon, and reads them back with Salt's commands."""

import time

import pytest

#: Time for what happens behind a command, in seconds.
WAIT_S = 60


def eventually(probe):
    """The first true value of the probe."""
    until = time.monotonic() + WAIT_S
    while True:
        found = probe()
        if found or time.monotonic() > until:
            return found
        time.sleep(0.2)


def job(salt_run, word):
    """The newest stored job that echoes the word, with its returns."""

    def probe():
        found = salt_run.run("saltcellar.jobs", fun="test.echo").data["jobs"]
        jids = [one["jid"] for one in found if word in str(one)]
        shown = salt_run.run("saltcellar.job", jids[0]).data if jids else None
        return shown if shown and shown["returns"] else None

    return eventually(probe)


def test_a_job_and_its_return_are_stored(salt_cli, salt_run, minion):
    ret = salt_cli.run("test.echo", "stored", minion_tgt=minion.id)
    assert ret.data == "stored"
    found = job(salt_run, "stored")
    assert found["fun"] == "test.echo"
    assert [one["return"] for one in found["returns"]] == ["stored"]
    # Salt's runner reads the job cache.
    ret = salt_run.run("jobs.lookup_jid", found["jid"])
    assert ret.data == {minion.id: "stored"}


def test_a_minion_returns_by_itself(salt_call, salt_run, minion):
    ret = salt_call.run("--return", "saltcellar", "test.echo", "by itself")
    assert ret.data == "by itself"
    found = job(salt_run, "by itself")
    assert [one["minion"] for one in found["returns"]] == [minion.id]


def test_jobs_of_an_outage_are_delivered_afterwards(salt_cli, salt_run, salt_call, minion, daemon):
    daemon.stop()
    try:
        ret = salt_cli.run("test.echo", "while it was down", minion_tgt=minion.id)
        assert ret.data == "while it was down"
        status = salt_call.run("saltcellar.status").data
        assert status["reachable"] is False
    finally:
        daemon.start()
    # Any later call of the master hands the spool over.
    assert salt_cli.run("test.ping", minion_tgt=minion.id).data is True
    found = job(salt_run, "while it was down")
    assert [one["return"] for one in found["returns"]] == ["while it was down"]


@pytest.mark.parametrize("function", ["status", "jobs", "events"])
def test_the_runner_reads_the_daemon(salt_run, function):
    ret = salt_run.run(f"saltcellar.{function}")
    assert ret.returncode == 0
    assert ret.data
