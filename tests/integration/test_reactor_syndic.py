"""The reactor beside a master of masters, and beside the master below. A Salt syndic connects the two."""
import os
import uuid

import procs
import pytest
import salt_lab
from conftest import Reactor, eventually, live_lab, running

SAY = """
say:
  local.test.arg:
    - tgt: {{ data['id'] }}
    - arg:
      - {{ data['data']['word'] }} BY
"""


@pytest.fixture(scope="module")
def masters(place):
    """`{"top": (lab, reactor), "lower": (lab, reactor)}`; the only minion, `lab-1`, belongs to the lower master."""
    if os.environ["SALT_RELEASE"].startswith("3008."):
        # The same happens without saltcellar: all requests of a syndic but its first one time out, and
        # `SyndicManager._return_pub_syndic` then uses the result of a synchronous call as a future (`'str' object has
        # no attribute 'done'`).
        pytest.skip("the syndic of Salt 3008.3 forwards no event and no return")
    with live_lab(f"{place}/t", minions=0, master_conf={"order_masters": True}) as top, \
            live_lab(f"{place}/l", minions=1) as lower, \
            running(reactor(place, "top", top)) as of_top, running(reactor(place, "lower", lower)) as of_lower:
        for one in (of_top, of_lower):
            one.wait_for_bus()
        start_syndic(lower, top)

        def is_through():
            # The publisher drops events from before a syndic subscribes.
            jid = top.publish("lab-1", "test.ping")
            return procs.poll(lambda: of_top.returned(jid), 5)
        eventually("a job of the top master to reach the minion, and its return to come back", is_through)
        yield {"top": (top, of_top), "lower": (lower, of_lower)}


def reactor(place, name, lab):
    salt_lab.write(f"{place}/r/{name}.sls", SAY.replace("BY", name))
    return Reactor(f"{place}/{name}", lab.sock_dir, master=f"{lab.lab['dir']}/conf/master",
                   rules=[{f"{name}/*": [f"{place}/r/{name}.sls"]}])


def start_syndic(lower, top):
    """The syndic reads the configuration of its master, and over it a minion's in the same directory. Paths of both are below one
    `root_dir`."""
    root = lower.lab["dir"]
    conf = salt_lab.common(root, "syndic", [])
    conf.update({
        "id": "lower", "root_dir": root, "acceptance_wait_time": 1, "syndic_master": "127.0.0.1",
        "syndic_master_port": top.lab["ret_port"], "publish_port": top.lab["publish_port"],
        "syndic_log_file": conf["log_file"], "syndic_pidfile": conf["pidfile"],
    })
    salt_lab.write(f"{root}/conf/minion", salt_lab.to_yaml(conf))
    salt_lab.spawn(lower.lab, "syndic", "salt-syndic", "-c", f"{root}/conf")


@pytest.mark.parametrize("name", ["top", "lower"])
def test_an_event_below_a_syndic_causes_one_job_and_one_return(masters, name):
    lower, (lab, d), word = masters["lower"][0], masters[name], uuid.uuid4().hex
    assert lower.call("lab-1", "event.send", f"{name}/{word}", f"{{word: {word}}}") is True
    row = d.reaction(f"{name}/{word}")
    call = row["reaction"]["calls"][0]
    assert call["outcome"] == "published", row
    for master in ("top", "lower"):  # both get the job and its return
        archive = masters[master][1]
        eventually(f"the return on the {master} master", lambda: archive.returned(call["jid"]))
        returns = archive.job(call["jid"])["returns"]
        assert [(one["minion"], one["return"]["args"]) for one in returns] == [("lab-1", [f"{word} {name}"])]
    assert len(d.history(f"{name}/{word}")) == 1
    assert row["minion"] == "lab-1"
