"""What a syndic forwards to its master while the daemon is unreachable, with Salt's code and configuration."""

import asyncio
import contextlib
import inspect
import types

import pytest
import salt.config
import salt.minion
import yaml

from tests.support.helpers import JID
from tests.support.helpers import RETURN
from tests.support.helpers import with_dirs

LOAD = {"jid": JID, "fun": "test.ping", "tgt": "*", "tgt_type": "glob", "arg": [], "user": "root"}


class Syndic:
    """Salt's manager of a syndic, without connections: takes events, and makes what it would send."""

    def __init__(self, run_dir, opts):
        conf = with_dirs({"syndic_master": "127.0.0.1"}, run_dir, opts)
        conf.update(root_dir=str(run_dir), id="lower", pillar_cache=False)
        paths = [run_dir / "master", run_dir / "minion"]
        for path in paths:
            path.write_text(yaml.safe_dump(conf))
        self.manager = salt.minion.SyndicManager(salt.config.syndic_config(*map(str, paths)))
        event = types.SimpleNamespace(unpack=lambda event: event)
        self.manager.local = types.SimpleNamespace(event=event, destroy=lambda: None)

    def event(self, minion):
        """Takes the event of a return. Salt drops what is raised, and continues with the next event."""
        event = f"salt/job/{JID}/ret/{minion}", dict(RETURN, id=minion)
        with contextlib.suppress(Exception):
            taken = self.manager._process_event(event)
            # Since 3007.
            if inspect.isawaitable(taken):
                asyncio.run(taken)

    def forwarded(self):
        """What `_syndic_return` of the master above would get, one for each job."""
        rets = [ret for by_tag in self.manager.job_rets.values() for ret in by_tag.values()]
        self.manager.job_rets = {}
        sent = []

        class Minion(salt.minion.Minion):
            def __init__(self, opts):  # pylint: disable=super-init-not-called
                self.opts, self.functions, self.proc_dir = opts, {}, opts["cachedir"]

            def _send_req_sync(self, load, timeout):
                sent.append(load)

        Minion(self.manager.opts)._return_pub_multi(rets, "_syndic_return", sync=True)
        return sent[0]["load"]


@pytest.fixture
def syndic(run_dir, opts):
    made = Syndic(run_dir, opts)
    yield made
    made.manager.destroy()


def test_a_syndic_forwards_the_load_with_the_first_return(daemon, syndic):
    daemon.answers["get_load"] = dict(LOAD, Minions=["web1", "web2"])
    syndic.event("web1")
    syndic.event("web2")
    (job,) = syndic.forwarded()
    assert job["load"] == dict(LOAD, Minions=["web1", "web2"])
    assert sorted(job["return"]) == ["web1", "web2"]
    assert len(daemon.named("get_load")) == 1


def test_a_syndic_forwards_returns_without_their_load_while_the_daemon_is_away(
    daemon, syndic, caplog
):
    daemon.stop()
    syndic.event("web1")
    syndic.event("web2")
    (job,) = syndic.forwarded()
    assert job["return"] == {
        minion: {"return": True, "retcode": 0, "fun_args": []} for minion in ("web1", "web2")
    }
    assert (job["jid"], job["fun"], job["load"]) == (JID, "test.ping", {})
    assert f"cannot look up the job {JID}" in caplog.text


def test_a_syndic_forwards_a_load_that_waits_in_the_spool(daemon, syndic):
    daemon.stop()
    syndic.manager.mminion.returners["saltcellar.save_load"](JID, LOAD, ["web1"])
    syndic.event("web1")
    (job,) = syndic.forwarded()
    assert (job["load"], list(job["return"])) == (dict(LOAD, Minions=["web1"]), ["web1"])
