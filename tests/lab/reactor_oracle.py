#!/usr/bin/env python3
"""Runs reactor conformance cases through an installed, unmodified Salt and records the results.

usage:
    python tests/lab/reactor_oracle.py update PLACE [PLACE...]   # (re)write "expect" in each file, or in every .json of a directory
    python tests/lab/reactor_oracle.py check  PLACE [PLACE...]   # exit 1 when "expect" differs from Salt

Salt's own Reactor.run() loop is driven with a scripted event bus, so event
filtering, tag matching, rendering, compiling and dispatching are all Salt's.
Only the outermost edge is replaced: the transport below LocalClient.pub, the
thread pool in front of RunnerClient.low / WheelClient.low, the module call in
Caller.cmd, and the bus itself.  tests/data/reactor-cases/README.md describes the files.
"""
import base64
import copy
import json
import logging
import os
import re
import shutil
import sys
import tempfile

os.environ.update(TZ="UTC", LANG="C.UTF-8", LC_ALL="C.UTF-8")
if os.environ.get("PYTHONHASHSEED") != "0":
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable] + sys.argv)

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src", "reactor", "helper"))

import render_helper
import salt.client
import salt.config
import salt.loader
import salt.payload
import salt.utils.event
import salt.utils.master
import salt.utils.process
import salt.utils.reactor as R
import salt.utils.templates as T
import salt.version

MASTER_KEY = "test-master-key"
FAKE_JID = "20300101000000000000"
BASE = """\
root_dir: {root}
user: {user}
id: saltmaster_master
file_roots:
  base:
    - {root}/srv/salt
  dev:
    - {root}/srv/salt-dev
pillar_roots:
  base:
    - {root}/srv/pillar
"""
LOG_PREFIXES = (
    "salt.utils.reactor", "salt.template", "salt.utils.templates", "salt.utils.data",
    "salt.state", "salt.utils.requisite", "salt.utils.jinja", "salt.loaded.int.render",
    "salt.renderers", "salt.fileclient", "salt.loaded.int.module.cp",
    "salt.loaded.int.module.logmod", "salt.client", "salt.config",
)


# ---------------------------------------------------------------- encoding
def enc(v, sub):
    """The JSON form (docs/WIRE.md), with placeholders in its texts."""
    def placed(form):
        if isinstance(form, str):
            return sub(form)
        if isinstance(form, list):
            return [placed(x) for x in form]
        if isinstance(form, dict):
            found = {sub(k): placed(x) for k, x in form.items()}
            # Members of a set have no order, but two recordings should be equal.
            return {"$set": sorted(found["$set"], key=json.dumps)} if set(found) == {"$set"} else found
        return form

    return placed(render_helper.enc(v))


dec = render_helper.dec


def shorten(msg):
    """Drops Python tracebacks, which contain local paths and no behaviour."""
    mark = "Traceback (most recent call last)"
    if msg.startswith(mark):
        return [l for l in msg.splitlines() if l.strip()][-1]
    if "\n" + mark in msg:
        msg = msg.split("\n" + mark, 1)[0]
    return re.sub(r"/\S*/site-packages/", "", msg)


# ---------------------------------------------------------------- log capture
class Capture(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.rows = []

    def emit(self, rec):
        if not rec.name.startswith(LOG_PREFIXES) and not rec.name.startswith("saltcases"):
            return
        row = {"level": rec.levelname, "logger": rec.name, "message": rec.getMessage()}
        ei = rec.exc_info
        if ei is True:
            ei = sys.exc_info()
        if ei and ei[0]:
            row["exc_type"] = ei[0].__name__
            row["exc_message"] = shorten(str(ei[1]))
        self.rows.append(row)


# ---------------------------------------------------------------- fake edges
class FakeBus:
    def __init__(self, events, h):
        self.events, self.h = events, h

    def __enter__(self):
        return self

    def __exit__(self, *a):
        return False

    def iter_events(self, full=True, **kw):
        for ev in self.events:
            self.h.begin(ev)
            yield {"tag": ev["tag"], "data": ev["data"]}
            self.h.end()

    def fire_event(self, data, tag, **kw):
        self.h.cur["fired"].append({"tag": tag, "data": copy.deepcopy(data)})
        return True


class FakePool:
    full = False

    def __init__(self, *a, **k):
        self.spec = a, k

    def fire_async(self, func, args=None, kwargs=None):
        if FakePool.full:
            return False
        func(*args)
        return True


class FakeLocal(salt.client.LocalClient):
    """Real cmd_async / run_job / _prep_pub; only the transport is gone."""

    harness = None

    def __init__(self, *a, **k):  # pylint: disable=super-init-not-called
        self.opts = FakeLocal.harness.opts
        self.key = "k"
        self.salt_user = "root"
        self.event = None

    def __del__(self):
        pass

    def destroy(self):
        pass

    def cmd_async(self, *args, **kwargs):
        names = ("tgt", "fun")
        FakeLocal.harness.cur["calls"].append(
            dict({"client": "local"}, **dict(zip(names, args)), kwargs=copy.deepcopy(kwargs))
        )
        return super().cmd_async(*args, **kwargs)

    def pub(self, tgt, fun, arg=(), tgt_type="glob", ret="", jid="", timeout=None, listen=False, **kwargs):
        if timeout is None:
            timeout = self.opts.get("publish_timeout", 30)
        p = self._prep_pub(tgt, fun, arg, tgt_type, ret, jid, timeout, **kwargs)
        # The transport packs the request, which fails for some types.
        salt.payload.dumps(p)
        p.pop("key", None)
        p["__publish_timeout"] = timeout
        FakeLocal.harness.cur["calls"][-1]["publish"] = copy.deepcopy(p)
        return {"jid": jid or FAKE_JID, "minions": ["m"]}


class FakeMasterClient:
    kind = None
    #: The functions of the case, by kind: another case has other modules.
    _funcs = {}

    def __init__(self, opts):
        self.opts = opts
        if self.kind not in FakeMasterClient._funcs:
            loader = {"runner": salt.loader.runner, "wheel": salt.loader.wheels}[self.kind]
            FakeMasterClient._funcs[self.kind] = loader(opts)
        self.functions = FakeMasterClient._funcs[self.kind]

    def low(self, fun, low):
        FakeLocal.harness.cur["calls"].append(
            {
                "client": self.kind,
                "fun": fun,
                "invoke": {"args": list(low["arg"]), "kwargs": copy.deepcopy(low["kwarg"])},
                "low": copy.deepcopy(low),
            }
        )


class FakeRunner(FakeMasterClient):
    kind = "runner"


class FakeWheel(FakeMasterClient):
    kind = "wheel"


class FakeCaller:
    def __init__(self, *a, **k):
        pass

    def cmd(self, fun, *args, **kwargs):
        FakeLocal.harness.cur["calls"].append(
            {"client": "caller", "fun": fun, "args": list(args), "kwargs": copy.deepcopy(kwargs)}
        )


class RecordingFunc:
    def __init__(self, name, fn):
        self.name, self.fn = name, fn

    def __call__(self, *a, **k):
        row = {"fun": self.name, "args": copy.deepcopy(list(a)), "kwargs": copy.deepcopy(k)}
        FakeLocal.harness.cur["salt_calls"].append(row)
        try:
            ret = self.fn(*a, **k)
        except Exception as exc:
            row["raised"] = {"type": type(exc).__name__, "message": str(exc)}
            raise
        row["return"] = copy.deepcopy(ret)
        return ret


class RecordingMod:
    def __init__(self, name, mod, stubs):
        self._n, self._m, self._s = name, mod, stubs

    def __getattr__(self, fun):
        full = f"{self._n}.{fun}"
        if full in self._s:
            return RecordingFunc(full, stub(self._s[full]))
        return RecordingFunc(full, getattr(self._m, fun))


def stub(spec):
    def fn(*a, **k):
        if "raise" in spec:
            import salt.exceptions as E

            raise getattr(E, spec["raise"]["type"])(spec["raise"]["message"])
        return dec(spec["return"])

    return fn


_RealAliased = T.AliasedLoader


class AliasedLoader(_RealAliased):
    def __getitem__(self, name):
        st = FakeLocal.harness.stubs
        if name in st:
            return RecordingFunc(name, stub(st[name]))
        return RecordingFunc(name, super().__getitem__(name))

    def __getattr__(self, name):
        st = FakeLocal.harness.stubs
        if any(s.startswith(name + ".") for s in st):
            return RecordingMod(name, None, st)
        obj = super().__getattr__(name)
        return RecordingMod(name, obj, st) if type(obj).__name__ == "LoadedMod" else obj

    def __contains__(self, name):
        return name in FakeLocal.harness.stubs or super().__contains__(name)


AliasedLoader.__module__ = _RealAliased.__module__


# ---------------------------------------------------------------- one case
class Harness:
    def __init__(self, case, keep=False):
        self.case, self.cur, self.done = case, None, []
        self.inp = case["input"]
        self.stubs = self.inp.get("salt_stubs", {})
        self.root = os.path.realpath(tempfile.mkdtemp(prefix="rc-"))
        self.keep = keep
        self.cap = Capture()

    def sub(self, s):
        s = re.sub(r"0x[0-9a-f]{8,16}\b", "0xADDRESS", s) if " at 0x" in s else s
        return s.replace(self.root + "/var/cache/salt/master", "${CACHE}").replace(self.root, "${ROOT}")

    def write(self, rel, text):
        p = os.path.join(self.root, rel)
        os.makedirs(os.path.dirname(p), exist_ok=True)
        if isinstance(text, dict):
            with open(p, "wb") as fh:
                fh.write(base64.b64decode(text["$bin"]))
            return
        with open(p, "w", encoding="utf-8", newline="") as fh:
            fh.write(text.replace("${ROOT}", self.root))

    def begin(self, ev):
        self.cap.rows.clear()
        self.cur = {"matched": None, "renders": [], "high": None, "low": None, "calls": [],
                    "salt_calls": [], "fired": []}

    def end(self, crash=None):
        if self.cur is None:
            return
        c = {k: v for k, v in self.cur.items() if v not in (None, []) or k == "calls"}
        if crash:
            c["crash"] = crash
        if self.inp.get("unordered_renders") and "renders" in c:
            c["renders"] = sorted(c["renders"], key=lambda r: r["file"])
        c["logs"] = list(self.cap.rows)
        self.done.append(enc(c, self.sub))
        self.cur = None

    def run(self):
        inp = self.inp
        FakeLocal.harness = self
        for d in ("srv/salt", "srv/salt-dev", "srv/pillar", "srv/reactor", "etc/salt/master.d"):
            os.makedirs(os.path.join(self.root, d), exist_ok=True)
        import pwd

        user = pwd.getpwuid(os.getuid()).pw_name
        self.write("etc/salt/master", BASE.format(root=self.root, user=user) + inp.get("master_config", ""))
        for rel, text in inp.get("files", {}).items():
            self.write(rel, text)
        rootlog = logging.getLogger()
        rootlog.addHandler(self.cap)
        rootlog.setLevel(logging.WARNING)
        out = {}
        try:
            self.opts = salt.config.master_config(self.root + "/etc/salt/master")
            out["effective_reactor"] = enc(self.opts.get("reactor"), self.sub)
            config_logs = list(self.cap.rows)
            if config_logs:
                out["config_logs"] = enc(config_logs, self.sub)
            self.cap.rows.clear()
            crash = None
            try:
                re = R.Reactor(self.opts)
                re.is_leader = inp.get("is_leader", True)
                self.hook(re)
                re.run()
            except Exception as exc:  # the engine process would die here
                crash = {"type": type(exc).__name__, "message": str(exc)}
            self.end(crash)
            out["events"] = self.done
        finally:
            rootlog.removeHandler(self.cap)
            if not self.keep:
                shutil.rmtree(self.root, ignore_errors=True)
        return out

    def hook(self, re):
        h = self
        FakePool.full = self.inp.get("pool_full", False)
        FakeMasterClient._funcs = {}
        R.ReactWrap.client_cache = None
        R.ReactWrap.reaction_class = {"local": FakeLocal, "runner": FakeRunner, "wheel": FakeWheel, "caller": FakeCaller}
        salt.utils.process.ThreadPool = FakePool
        salt.utils.master.get_master_key = lambda *a, **k: MASTER_KEY
        salt.utils.event.get_event = lambda *a, **k: FakeBus(
            [dec(json.loads(json.dumps(e).replace("${ROOT}", h.root))) for e in h.inp["events"]], h
        )
        T.AliasedLoader = AliasedLoader
        lr, rx, rr = re.list_reactors, re.reactions, re.render_reaction

        def list_reactors(tag):
            ret = lr(tag)
            h.cur["matched"] = copy.deepcopy(ret)
            return ret

        def render_reaction(ref, tag, data):
            ret = rr(ref, tag, data)
            h.cur["high"] = (h.cur["high"] or []) + [copy.deepcopy(ret)]
            return ret

        def reactions(tag, data, reactors):
            ret = rx(tag, data, reactors)
            h.cur["low"] = copy.deepcopy(ret)
            return ret

        re.list_reactors, re.reactions, re.render_reaction = list_reactors, reactions, render_reaction


_JINJA = T.JINJA


def jinja_spy(src, *a, **k):
    h = FakeLocal.harness
    try:
        ret = _JINJA(src, *a, **k)
    except Exception:
        if h is not None and h.cur is not None:
            h.cur["renders"].append({"file": k.get("tmplpath"), "failed": True})
        raise
    if h is not None and h.cur is not None:
        row = {"file": k.get("tmplpath")}
        if ret.get("result"):
            row["text"] = ret["data"]
        else:
            row["failed"] = True
        h.cur["renders"].append(row)
    return ret


T.JINJA = jinja_spy


# ---------------------------------------------------------------- entry points
def cases(places):
    for place in places:
        files = [place] if place.endswith(".json") else sorted(os.path.join(place, fn) for fn in os.listdir(place) if fn.endswith(".json"))
        for p in files:
            with open(p, encoding="utf-8") as fh:
                yield p, json.load(fh)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    mode, dirs = sys.argv[1], sys.argv[2:]
    bad = n = 0
    for p, case in cases(dirs):
        n += 1
        got = Harness(case).run()
        if mode == "update":
            case["salt_version"] = salt.version.__version__
            case["expect"] = got
            if any("crash" in e for e in got["events"]):
                case.setdefault("advice", "salt-crash: the reactor process dies here; log it and continue instead")
            with open(p, "w", encoding="utf-8") as fh:
                json.dump(case, fh, indent=1, ensure_ascii=False)
                fh.write("\n")
        elif got != case.get("expect"):
            bad += 1
            print("DIFF", p)
    print(f"{n} cases, {bad} differ" if mode == "check" else f"{n} cases written")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
