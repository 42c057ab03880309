#!/usr/bin/env python3
"""Renders templates with an installed Salt's reactor and records the results.

usage: python jinja_oracle.py FILE        update the results in FILE (crates/salt-sls/tests/data/jinja-3008.3.jsonl, crates/salt-sls/tests/data/realistic.jsonl), in place
       python jinja_oracle.py FILE -      the same, to standard output

Each line of FILE is a mapping: a `name`, the template `t`, `files` for imports, `opts` of the master. Salt adds `text`, unless it fails. The first line has the event's `data`. To add a case, append a line with `t` alone.
"""
import copy
import json
import logging
import os
import pwd
import shutil
import sys
import tempfile

os.environ.update(TZ="UTC", LANG="C.UTF-8", LC_ALL="C.UTF-8")
if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable] + sys.argv)

import salt.config
import salt.utils.reactor
import salt.utils.templates
import salt.version


class Oracle:
    def __init__(self, data):
        self.data, self.text = data, None
        self.root = tempfile.mkdtemp(prefix="jinja-")
        for name in ("srv/salt", "srv/reactor"):
            os.makedirs(os.path.join(self.root, name))
        config = os.path.join(self.root, "master")
        with open(config, "w", encoding="utf-8") as out:
            user = pwd.getpwuid(os.getuid()).pw_name
            out.write(f"root_dir: {self.root}\nuser: {user}\nid: saltmaster_master\nfile_roots:\n  base: [{self.root}/srv/salt]\n")
        self.opts = salt.config.master_config(config)
        self.opts["reactor"] = []
        self.reactors = {}  # by options
        jinja = salt.utils.templates.JINJA

        def spy(*args, **kwargs):
            self.text = None
            ret = jinja(*args, **kwargs)
            self.text = ret["data"] if ret.get("result") else None
            return ret

        salt.utils.templates.JINJA = spy

    def write(self, name, text):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8", newline="") as out:
            out.write(text)
        return path

    def answer(self, case):
        paths = [self.write("srv/salt/" + name, text) for name, text in case.get("files", {}).items()]
        path = self.write("srv/reactor/r.sls", case["t"])
        options = json.dumps(case.get("opts", {}))
        if options not in self.reactors:
            self.reactors[options] = salt.utils.reactor.Reactor(dict(self.opts, **case.get("opts", {})))
        reactor = self.reactors[options]
        self.text = None
        try:
            reactor.render_reaction(path, "test/tag", copy.deepcopy(self.data))
        except Exception:  # pylint: disable=broad-except
            pass
        for name in paths:
            os.unlink(name)
        shutil.rmtree(self.root + "/var/cache/salt/master/files", ignore_errors=True)
        row = {key: case[key] for key in ("name", "t", "files", "opts") if case.get(key)}
        if self.text is not None:
            row["text"] = self.text.replace(self.root, "${ROOT}")
        return row


def main():
    logging.disable(logging.CRITICAL)
    name = sys.argv[1]
    with open(name, encoding="utf-8") as lines:
        head, *cases = [json.loads(line) for line in lines if line.strip()]
    oracle = Oracle(head["data"])
    rows = [dict(head, salt=salt.version.__version__)] + [oracle.answer(case) for case in cases]
    shutil.rmtree(oracle.root)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if sys.argv[2:] == ["-"]:
        sys.stdout.write(text)
        return
    with open(name, "w", encoding="utf-8") as out:
        out.write(text)


if __name__ == "__main__":
    main()
