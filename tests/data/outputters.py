"""Makes outputters.jsonl: returns, and their output by Salt's outputters.

  salt_lab.py in-venv -- python tests/data/outputters.py > tests/data/outputters.jsonl
"""
import copy
import json
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src", "reactor", "helper"))

import render_helper
import salt.config
import salt.output


def state(num, result=True, changes=None, comment="fine", name="x", id_=None, **more):
    return {"name": name, "changes": changes or {}, "result": result, "comment": comment, "__sls__": "web",
            "__run_num__": num, "start_time": f"18:24:4{num}.081879", "duration": 0.5 + num, "__id__": id_ or name, **more}


RUN = {
    "pkg_|-nginx_|-nginx_|-installed": state(0, changes={"nginx": {"old": "", "new": "1.24.0-2"}}, name="nginx",
                                             comment="The following packages were installed/updated: nginx"),
    "file_|-site_|-/etc/nginx/site_|-managed": state(1, changes={"diff": "--- \n+++ \n@@ -1 +1 @@\n-a\n+b\n", "mode": "0644"},
                                                     name="/etc/nginx/site", id_="site", comment="File updated\nTwice"),
    "service_|-nginx_|-nginx_|-running": state(2, result=False, name="nginx", comment="Failed to start\n  deeper\n"),
    "test_|-maybe_|-maybe_|-nop": state(3, result=None, name="maybe", duration=1234.5),
}
WARNED = {
    "file_|-w_|-/tmp/w_|-managed": state(0, name="/tmp/w", id_="w", warnings=["The argument one is old. " * 6, "And another."]),
    "file_|-p_|-/tmp/p_|-managed": state(1, name="/tmp/p", id_="p", __parallel__=True, duration=700.0),
    "file_|-q_|-/tmp/q_|-managed": state(2, name="/tmp/q", id_="q", __parallel__=True, duration="900.25 ms"),
}
ORCHESTRATED = {
    "salt_|-a state_|-a state_|-state": state(
        0, name="a state", comment="States ran successfully. Updating web1.", __jid__="20261121182440627053",
        changes={"out": "highstate", "ret": {"web1": {k: v for k, v in RUN.items() if "pkg" in k}, "web2": True}}),
    "salt_|-a function_|-test.ping_|-function": state(1, name="test.ping", id_="a function", changes={"ret": {"web1": True}},
                                                      __jid__="20261121182441247042"),
    "salt_|-nested_|-state.orchestrate_|-runner": state(
        2, name="state.orchestrate", id_="nested", comment="Runner function 'state.orchestrate' executed.",
        changes={"return": {"outputter": "highstate", "retcode": 0, "data": {"vm_master": {
            "salt_|-inner_|-test.echo_|-function": state(0, name="test.echo", id_="inner", changes={"ret": {"web2": "hi"}})}}}}),
}
EVENT = {"fun": "runner.state.orchestrate", "jid": "20261121182439743078", "user": "root", "fun_args": ["orch"],
         "return": {"data": {"vm_master": ORCHESTRATED}, "outputter": "highstate", "retcode": 0}, "success": True}

CASES = [
    ("ping", {"web1": True, "web2": True}),
    ("texts", {"web1": "one line", "web2": "two\nlines\n", "web3": "", "web4": " a\tb \r\nc"}),
    ("numbers", {"web1": [1, -2, 0.1, 1e16, 1e-05, 3.0, 2**63, None, False], "web2": 12345}),
    ("empty", {"web1": {}, "web2": [], "web3": None}),
    ("deep", {"web1": {"list": ["a", ["b", ["c", "d\ne"]], {"k": "v", "a": {"x": 1}}, {}], "map": {"b": 1, "a": "z\ny"}}}),
    ("keys", {"web1": {1: "int", "2": "str", None: "none"}, "web2": {10: "a", 9: "b"}}),
    ("bytes", {"web1": {"text": b"bytes that are text"}}),
    ("unicode", {"wéb1": "grün \u2014 日本"}),
    ("escape", {"web1": "\033[31mred\033[0m"}),
    ("multi", {"web1": {"test.ping": True, "cmd.run": "Linux\nx"}}),
    ("states", {"web1": RUN}),
    ("states of two", {"web1": RUN, "web2": {"test_|-a_|-a_|-nop": state(0, name="a")}}),
    ("warnings", {"web1": WARNED}),
    ("errors", {"web1": ["Rendering SLS 'base:x' failed: Jinja variable 'y' is undefined", "No matching sls found"]}),
    ("refused", {"web1": "Minion did not return. [No response]", "web2": 5}),
    ("no states", {"web1": {"os": "Debian", "ram": 1024}}),
    ("orchestration", {"vm_master": ORCHESTRATED}),
    ("orchestration looked up", {"vm_master": EVENT}),
    ("invalid changes", {"web1": {"x_|-a_|-a_|-b": state(0, name="a", changes=["odd"])}}),
    ("comment list", {"web1": {"x_|-a_|-a_|-b": state(0, name="a", comment=["one", 2])}}),
    ("no comment", {"web1": {"x_|-a_|-a_|-b": {"result": True, "changes": {}, "__run_num__": 0}}}),
]


def shown(data, out, colour, retcode):
    opts = salt.config.DEFAULT_MASTER_OPTS.copy()
    opts.update(color=colour, extension_modules="", state_output_profile=True)
    return salt.output.out_format(copy.deepcopy(data), out, opts, _retcode=retcode)


for name, data in CASES:
    # Salt's highstate passes escape characters to the terminal; saltcellar does not.
    for out in ("nested",) if name == "escape" else ("nested", "highstate"):
        for colour in (False, True) if name in ("deep", "states", "orchestration looked up") else (False,):
            retcode = 1 if colour else 0
            json.dump({"name": name, "out": out, "colour": colour, "retcode": retcode, "data": render_helper.enc(data),
                       "text": shown(data, out, colour, retcode)}, sys.stdout, ensure_ascii=False)
            print()
