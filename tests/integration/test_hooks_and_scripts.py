"""Events from outside on a real master's bus: `POST /hook/<tag>`, and the lines of a script. Salt's `webhook` and `script` engines have the same reactors."""
import json
import os
import socket
import stat
import urllib.error
import urllib.request

import pytest
import salt_lab
from conftest import Daemon, eventually, running

#: As in the documentation of Salt's engine `webhook`: the body is text or a form, the headers a mapping.
REACTIONS = {
    "deploy.sls": """
deploy:
  local.test.arg:
    - tgt: lab-1
    - arg:
      - {{ (data['body'] | load_json)['version'] }}
      - {{ data['headers']['X-From'] }}
      - {{ tag }}
""",
    "hot.sls": """
hot:
  local.test.arg:
    - tgt: lab-2
    - arg:
      - {{ data['celsius'] }}
      - {{ data['id'] }}
""",
}
RULES = {"salt/engines/hook/deploy/*": "deploy.sls", "lab/hot": "hot.sls"}
SCRIPT = """#!/bin/sh
echo 'not an event'
echo '{"tag": "lab/hot", "data": {"celsius": 41}}'
exec sleep 1000
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def outside(lab, place):
    for name, text in REACTIONS.items():
        salt_lab.write(f"{place}/r/{name}", text)
    program = f"{place}/thermometer"
    salt_lab.write(program, SCRIPT)
    os.chmod(program, stat.S_IRWXU)
    os.makedirs(f"{place}/sc")
    daemon = Daemon(f"{place}/sc", bus=f"{lab.lab['dir']}/master/run")
    daemon.port = free_port()
    reactor = {"master": f"{lab.lab['dir']}/conf/master", "rules": [{tag: [f"{place}/r/{name}"]} for tag, name in RULES.items()]}
    conf = {"reactor": reactor, "http": {"listen": f"127.0.0.1:{daemon.port}"}, "scripts": {"thermometer": {"command": [program]}}}
    salt_lab.write(f"{daemon.root}/c.yaml", json.dumps(conf))
    daemon.flags = ["--config", f"{daemon.root}/c.yaml"]
    with running(daemon):
        daemon.wait_for_bus()
        yield daemon


def post(daemon, path, body, **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{daemon.port}{path}", body, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def reaction(daemon, tag):
    def found():
        rows = daemon.json("reactor", "history", "--tag", tag, "--limit", "10")["reactions"]
        return [row for row in rows if len(row["reaction"]["calls"]) == 1]
    return eventually(f"a reaction to {tag}", found)[0]


def returned(daemon, row, minion):
    def found():
        job = daemon.job(row["reaction"]["calls"][0]["jid"])
        rows = [one for one in job["returns"] if one["minion"] == minion] if job else []
        return rows and rows[0]
    return eventually(f"the return of {minion}", found)["return"]["args"]


def test_a_hook_reaches_the_bus_and_its_reactor_as_with_salts_webhook_engine(outside):
    token = outside.cli("tokens", "create", "forge", "--scope", "write", "--tag", "salt/engines/hook/deploy/*").stdout.split()[-1]
    status, refused = post(outside, "/hook/deploy/shop", b"{}")
    assert status == 401 and "token" in refused["error"]["message"], refused
    allowed = {"Authorization": f"Bearer {token}", "X-From": "forge"}
    status, refused = post(outside, "/hook/other", b"{}", **allowed)
    assert status == 403, refused
    assert post(outside, "/hook/deploy/shop", b'{"version": "1.4.2"}', **allowed) == 202
    (event,) = eventually("the event in the archive", lambda: outside.events("--tag", "salt/engines/hook/deploy/shop"))
    assert token not in json.dumps(event)
    row = reaction(outside, "salt/engines/hook/deploy/shop")
    assert returned(outside, row, "lab-1") == ["1.4.2", "forge", "salt/engines/hook/deploy/shop"]
    assert not outside.events("--tag", "salt/engines/hook/other")


def test_a_line_of_a_script_is_an_event_of_the_master(outside, lab):
    row = reaction(outside, "lab/hot")
    celsius, sender = returned(outside, row, "lab-2")
    assert celsius == 41
    (event,) = outside.events("--tag", "lab/hot")
    assert event["data"]["id"] == sender and sender.endswith("_master"), event
    assert outside.status()["counters"]["script_lines_rejected"] == 1
