"""A small site as JSON lines of `saltcellar import jsonl`: jobs, returns and events of the last day, or hostile text in every field."""

import datetime
import json
import random

FLEET = [f"{kind}{n}.example.net" for kind, count in (("web", 6), ("db", 3), ("cache", 2), ("mail", 1)) for n in range(1, count + 1)]

#: Leaves its place in an element, an attribute, a script or a template, unless it is escaped.
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)><svg onload=alert(1)>{{ 7 * 7 }}</pre></title>&amp;"
#: An id that Salt accepts in tags, and that breaks an address.
HOSTILE_ID = "a\"><b onmouseover=alert(1)>?#&%2f é"


class Site:
    def __init__(self, now=None, seed=1):
        self.now = now or datetime.datetime.now(datetime.timezone.utc)
        self.random = random.Random(seed)
        self.lines = [json.dumps({"kind": "saltcellar", "version": 2, "events": True})]

    def at(self, minutes):
        """A time so many minutes ago."""
        return self.now - datetime.timedelta(minutes=minutes)

    def line(self, kind, time, **fields):
        self.lines.append(json.dumps({"kind": kind, "time": time.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), **fields}))

    def event(self, minutes, tag, minion=None, **data):
        fields = {"minion": minion} if minion else {}
        self.line("event", self.at(minutes), on_bus=True, tag=tag, data=data, **fields)

    def job(self, minutes, fun, minions, answer, tgt="*", arg=(), user="root", silent=()):
        """A job; `answer` makes (return, retcode) for a minion. Minions in `silent` do not return."""
        start = self.at(minutes)
        jid = start.strftime("%Y%m%d%H%M%S%f")
        load = {"cmd": "publish", "fun": fun, "jid": jid, "tgt": tgt, "tgt_type": "glob", "user": user, "arg": list(arg)}
        self.line("load", start, jid=jid, load=load, minions=list(minions))
        for n, minion in enumerate(minions):
            if minion in silent:
                continue
            value, retcode = answer(minion)
            time = start + datetime.timedelta(milliseconds=400 + 137 * n + self.random.randrange(900))
            data = {"jid": jid, "id": minion, "fun": fun, "fun_args": list(arg), "return": value, "retcode": retcode, "success": retcode == 0}
            self.line("return", time, jid=jid, minion=minion, confirmed=False, on_bus=True, tag=f"salt/job/{jid}/ret/{minion}", data=data)
            self.line("return", time, jid=jid, minion=minion, confirmed=True, data=data)
        return jid

    def text(self):
        return "\n".join(self.lines) + "\n"


def states(minion, changed=(), failed=(), text=None):
    """The return of a highstate."""
    rows = {}
    plan = [("pkg", "installed", "nginx"), ("file", "managed", "/etc/nginx/nginx.conf"), ("file", "managed", "/etc/motd"), ("service", "running", "nginx"), ("cron", "present", "logrotate"), ("user", "present", "deploy")]
    for n, (module, function, name) in enumerate(plan):
        bad, is_changed = name in failed, name in changed
        comment = f"{name} is in the correct state" if not bad else f"{name} failed: Job for nginx.service failed because the control process exited with error code"
        changes = {"diff": "--- \n+++ \n@@ -1,2 +1,2 @@\n-worker_processes 2;\n+worker_processes 4;\n user www-data;"} if is_changed and module == "file" else {name: {"old": "1.22.0", "new": "1.22.1"}} if is_changed else {}
        shown, label = (text, text) if text else (comment, name)
        rows[f"{module}_|-{label}_|-{label}_|-{function}"] = {
            "result": not bad, "changes": changes, "comment": shown, "name": label, "__id__": label, "__sls__": text or "web.nginx",
            "duration": 12.3 + n, "start_time": f"05:47:28.{100000 + n}", "__run_num__": n,
        }
    return rows


def fleet(now=None):
    site = Site(now)
    highstate = lambda changed, failed: lambda minion: (states(minion, changed.get(minion, ()), failed.get(minion, ())), 2 if minion in failed else 0)
    web = [minion for minion in FLEET if minion.startswith("web")]
    site.job(1500, "state.apply", FLEET, highstate({"web2.example.net": ["/etc/motd"]}, {}))
    site.job(1380, "test.ping", FLEET, lambda minion: (True, 0))
    for hour in range(22, 0, -1):
        for n in range(site.random.randrange(1, 6)):
            site.event(60 * hour - 7 * n, f"salt/beacon/{FLEET[n]}/load/", FLEET[n], id=FLEET[n], average={"1-min": round(0.3 + n / 7, 2)})
        if hour % 3 == 0:
            site.job(60 * hour - 20, "disk.usage", web, lambda minion: ({"/": {"available": "41230412", "capacity": "37%", "used": "23119804"}}, 0), tgt="web*", user="sudo_anna")
    site.job(190, "cmd.run", web, lambda minion: ("bash: certbot: command not found", 127) if minion == web[3] else ("", 0), tgt="web*", arg=["certbot renew --quiet"], user="sudo_anna")
    site.job(95, "pkg.upgrade", [m for m in FLEET if m.startswith("db")], lambda minion: ({"openssl": {"old": "3.0.14", "new": "3.0.15"}}, 0), tgt="db*")
    site.job(64, "state.apply", FLEET, highstate({web[0]: ["/etc/motd"], web[1]: ["/etc/motd"]}, {}))
    failed = {web[1]: ["nginx"], "mail1.example.net": ["/etc/motd", "nginx"]}
    jid = site.job(12, "state.apply", FLEET, highstate({web[0]: ["/etc/nginx/nginx.conf", "nginx"], web[2]: ["/etc/nginx/nginx.conf"]}, failed), silent={"cache2.example.net"})
    site.event(9, "salt/auth", "web7.example.net", id="web7.example.net", act="pend", result=True, pub="-----BEGIN PUBLIC KEY-----")
    site.event(8, "salt/minion/db2.example.net/start", "db2.example.net", id="db2.example.net", cmd="_minion_event", data="Minion db2.example.net started")
    site.event(3, "deploy/finished", "web1.example.net", id="web1.example.net", data={"version": "2.4.1", "hosts": web, "steps": [{"name": "build", "ok": True}, {"name": "restart", "ok": False}]})
    return site, jid


def hostile(now=None):
    site = Site(now)
    minions = [HOSTILE_ID, "web1"]
    answer = lambda minion: (states(minion, ["/etc/motd"], ["nginx"], HOSTILE), 2)
    site.job(30, "state.apply", minions, lambda minion: ({HOSTILE: [HOSTILE, {HOSTILE: HOSTILE}]}, 1), HOSTILE, [HOSTILE], HOSTILE)
    jid = site.job(20, "state.apply", minions, answer, HOSTILE, [HOSTILE], HOSTILE)
    site.job(10, HOSTILE, [*minions, HOSTILE], lambda minion: (HOSTILE, 1), HOSTILE, [HOSTILE], HOSTILE, silent={HOSTILE})
    site.event(5, f"test/{HOSTILE}", HOSTILE_ID, id=HOSTILE_ID, fun=HOSTILE, text=HOSTILE, **{HOSTILE: [HOSTILE, {HOSTILE: HOSTILE}]})
    return site, jid


#: Turns the text after it around, as far as its element and paragraph let it.
TURNING_ID = "db1\u202e.tset"
#: Letters that are written from right to left.
RIGHT_TO_LEFT_ID = "\u05d0\u05d1\u05d2"
LONG_WORD = "x" * 50_000


def unruly(now=None):
    """A minion whose id turns text around, one that is written from right to left, and long words in every field."""
    site = Site(now)
    minions = [TURNING_ID, RIGHT_TO_LEFT_ID, "web1", "web2"]
    text = LONG_WORD
    site.job(30, "state.apply", minions, lambda minion: (states(minion, ["/etc/motd"], ["nginx"], text), 2), text, [text], text)
    jid = site.job(20, "state.apply", minions, lambda minion: (states(minion, ["/etc/motd"], ["nginx"], text), 2), text, [text], text, silent=minions)
    site.job(10, text[:200], minions, lambda minion: (text, 1), text, [text], text, silent={"web2"})
    site.event(5, "test/" + text[:900], TURNING_ID, id=TURNING_ID, fun=text[:200], text=text, **{text[:900]: [text, {text[:900]: text}]})
    return site, jid
