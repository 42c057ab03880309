"""A large fleet as JSON lines of `saltcellar import jsonl`, streamed: weeks of nightly highstates, and what else happens on a master.

`python tests/page/fleet.py [--small] [--nights N]` writes the lines to standard output.
"""

import argparse
import dataclasses
import datetime
import json
import random
import sys

import sample

#: Characters that turn text around, colour a terminal, end a script.
HOSTILE_IDS = ["snruter lbyte x/../..\u202ejobsreven", "esc\x1b[31mred", "</script><img src=x onerror=alert(1)>"]

#: The id of the master's runners.
MASTER = "salt_master"


@dataclasses.dataclass
class Sizes:
    """How much of everything there is."""

    minions: int = 1_000
    states: int = 220
    nights: int = 14
    #: Minions of the last night: failed by one of three causes, changed, and without a return.
    failed: int = 37
    changed: int = 60
    missing: int = 12
    #: Minions of one job, and how many of them do not return.
    wide: int = 10_000
    wide_missing: int = 104
    #: Jobs that minions start by their schedule, jobs of runners, and jobs of people, over all days.
    scheduled: int = 2_000
    runners: int = 500
    others: int = 400
    beacons: int = 20_000
    #: Events for a sink whose destination rejects them.
    alerts: int = 193
    #: Bytes of the hostile job's argument.
    argument: int = 100_000


SMALL = Sizes(minions=60, states=24, nights=8, failed=9, changed=10, missing=6, wide=150, wide_missing=7, scheduled=20, runners=6, others=30, beacons=60, alerts=12, argument=100_000)

# ------------------------------------------------------------------------------------------------ the states of a highstate


def linux_plan():
    """Without an end: (SLS file, module, id, function, comment)."""
    start = [
        ("base.nginx", "pkg", "nginx", "installed", "All specified packages are already installed"),
        ("base.nginx", "file", "/etc/nginx/nginx.conf", "managed", "File /etc/nginx/nginx.conf is in the correct state"),
        ("base.nginx", "service", "nginx", "running", "The service nginx is already running"),
        ("db.postgres", "pkg", "postgresql-16", "installed", "All specified packages are already installed"),
        ("base.motd", "file", "/etc/motd", "managed", "File /etc/motd is in the correct state"),
        ("base.ssh", "file", "/etc/ssh/sshd_config", "managed", "File /etc/ssh/sshd_config is in the correct state"),
        ("base.ssh", "service", "sshd", "running", "The service sshd is already running"),
        ("base.time", "pkg", "chrony", "installed", "All specified packages are already installed"),
        ("app.cache", "cmd", "warm-cache", "run", 'Command "/usr/local/bin/warm-cache --all" run'),
        ("base.release", "pkg", "base-files", "latest", "Package base-files is already up-to-date"),
    ]
    yield from start
    n = 0
    while True:
        n += 1
        yield "base.users", "user", f"deploy{n}", "present", f"User deploy{n} is present and up to date"
        yield "base.sysctl", "sysctl", f"net.ipv4.conf.eth{n}.rp_filter", "present", f"Sysctl value net.ipv4.conf.eth{n}.rp_filter = 1 is already set"
        yield "base.packages", "pkg", f"lib-common-{n}", "installed", "All specified packages are already installed"
        yield "monitoring.checks", "file", f"/etc/checks.d/check-{n:02}.yaml", "managed", f"File /etc/checks.d/check-{n:02}.yaml is in the correct state"
        yield "backup.restic", "cron", f"restic backup --tag set{n}", "present", f"Cron restic backup --tag set{n} already present"


def windows_plan():
    yield from [
        ("win.rds", "file", "C:\\ProgramData\\rds\\broker.conf", "managed", "File C:\\ProgramData\\rds\\broker.conf is in the correct state"),
        ("base.motd", "file", "/etc/motd", "managed", "File C:\\Windows\\motd.txt is in the correct state"),
        ("win.rds", "service", "TermService", "running", "The service TermService is already running"),
    ]
    n = 0
    while True:
        n += 1
        yield "win.registry", "reg", f"HKLM\\SOFTWARE\\Policies\\rds{n}", "present", f"vdata in HKEY_LOCAL_MACHINE\\SOFTWARE\\Policies\\rds{n} is already present"
        yield "win.packages", "chocolatey", f"tool-{n}", "installed", f"The package tool-{n} is already installed"
        yield "win.firewall", "firewall", f"rds-{n}", "add_rule", "A rule with that name already exists"


#: A diff that is the same on every minion.
NGINX_DIFF = "--- \n+++ \n@@ -3,6 +3,6 @@\n user www-data;\n-worker_processes 2;\n+worker_processes auto;\n pid /run/nginx.pid;\n events {\n-    worker_connections 512;\n+    worker_connections 2048;\n }"
MOTD_DIFF = "--- \n+++ \n@@ -1 +1 @@\n-Managed since 2024\n+Managed by Salt: changes are overwritten"
OPENSSL = {"openssl": {"old": "3.0.14-1", "new": "3.0.15-1"}}


class Fleet:
    """What there is, known before the first line is written."""

    def __init__(self, sizes=None, now=None, seed=1):
        self.sizes = sizes = sizes or Sizes()
        self.now = now or datetime.datetime.now(datetime.timezone.utc)
        self.random = random.Random(seed)
        shares = {"web": 0.5, "app": 0.2, "db": 0.15}
        counts = {kind: int(share * sizes.minions) for kind, share in shares.items()}
        self.kinds = {kind: [f"{kind}{n}.example.net" for n in range(1, count + 1)] for kind, count in counts.items()}
        self.kinds["WIN-RDS"] = [f"WIN-RDS{n:02}" for n in range(1, sizes.minions - sum(counts.values()) + 1)]
        self.minions = [minion for kind in self.kinds.values() for minion in kind]

        # The last 02:00 that is more than an hour ago, so that the morning's jobs have room. Around 02:00 that would be a day ago, and what
        # shows the last 24 hours would lack it.
        hour = 20 if self.now.hour in (1, 2) else 2
        last = self.now.replace(hour=hour, minute=0, second=0, microsecond=0)
        if self.now - last < datetime.timedelta(hours=1):
            last -= datetime.timedelta(days=1)
        self.nights = [last - datetime.timedelta(days=n) for n in range(sizes.nights - 1, -1, -1)]
        self.jids = [self.jid_at(night) for night in self.nights]
        #: The last night's highstate, and the one before it.
        self.nightly, self.before = self.jids[-1], self.jids[-2]

        self.choose()
        web = self.kinds["web"]
        #: Filled while the lines are written.
        self.wide = self.hostile = self.orchestration = self.removal = self.find_job = None
        #: A minion that never fails, and that changed in three nights.
        self.calm = web[16]
        self.plans = {}
        for kind, plan in (("linux", linux_plan), ("windows", windows_plan)):
            rows = plan()
            self.plans[kind] = [next(rows) for _ in range(sizes.states)]

    def choose(self):
        """Who failed, changed and is missing on the last night."""
        sizes, kinds = self.sizes, self.kinds
        # From the end of each kind: the calm minion is near the start.
        nginx, fetch = round(sizes.failed * 0.3), round(sizes.failed * 0.45)
        access = sizes.failed - nginx - fetch
        #: The failed minions of each cause.
        self.causes = {"nginx": kinds["web"][-nginx:], "fetch": (kinds["db"] + kinds["app"])[-fetch:], "access": kinds["WIN-RDS"][-access:]}
        self.failed = {minion: cause for cause, minions in self.causes.items() for minion in minions}

        # The morning's jobs are made by these.
        active = {*self.kinds["web"][:20], *self.kinds["db"][:3]}
        free = [minion for minion in self.minions if minion not in self.failed and minion not in active]
        missing = free[:: max(len(free) // sizes.missing, 1)][: sizes.missing]
        down, never = sizes.missing // 2, sizes.missing // 4
        #: Minions without a return, by the reason. `down` has the number of nights.
        self.missing = {
            "down": {minion: min(2 + n, sizes.nights - 1) for n, minion in enumerate(missing[:down])},
            "never": missing[down : down + never],
            "busy": missing[down + never : down + never + 1],
            "silent": missing[down + never + 1 :],
        }

        rest = [minion for minion in free if minion not in missing and not minion.startswith("WIN")]
        equal = round(sizes.changed * 0.48)
        #: What each changed minion changed. Nearly half of them got the same diff.
        self.changed = {minion: "nginx" if n < equal else "motd" for n, minion in enumerate(rest[: sizes.changed])}

    @staticmethod
    def jid_at(time):
        return time.strftime("%Y%m%d%H%M%S%f")

    # -------------------------------------------------------------------------------------------- lines

    @staticmethod
    def line(kind, time, **fields):
        return json.dumps({"kind": kind, "time": time.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), **fields})

    def event(self, time, tag, minion=None, **data):
        return self.line("event", time, on_bus=True, tag=tag, data=data, **({"minion": minion} if minion else {}))

    def load(self, time, fun, minions, arg=(), tgt="*", tgt_type="glob", user="root"):
        jid = self.jid_at(time)
        load = {"cmd": "publish", "fun": fun, "jid": jid, "tgt": tgt, "tgt_type": tgt_type, "user": user, "arg": list(arg)}
        return self.line("load", time, jid=jid, load=load, minions=list(minions))

    def returned(self, time, jid, minion, fun, value, retcode=0, arg=(), **more):
        """A return that was on the bus, and that the master stored."""
        data = {"cmd": "_return", "_stamp": time.strftime("%Y-%m-%dT%H:%M:%S.%f"), "jid": jid, "id": minion, "fun": fun, "fun_args": list(arg)}
        data |= {"return": value, "retcode": retcode, "success": retcode == 0, **more}
        return self.line("return", time, jid=jid, minion=minion, on_bus=True, tag=f"salt/job/{jid}/ret/{minion}", data=data)

    def job(self, time, fun, minions, answer, silent=(), **load):
        """A job; `answer` makes (value, retcode) for a minion."""
        jid = self.jid_at(time)
        yield self.load(time, fun, minions, **load)
        for n, minion in enumerate(minions):
            if minion not in silent:
                after = datetime.timedelta(milliseconds=200 + 3 * n + self.random.randrange(400))
                yield self.returned(time + after, jid, minion, fun, *answer(minion), arg=load.get("arg", ()))

    # -------------------------------------------------------------------------------------------- highstates

    def states(self, minion, changed=None, failed=None):
        """The return of a highstate."""
        chance, rows = self.random.random, {}
        clock = 7_200_000
        number = minion.removesuffix(".example.net").lstrip("WINRDSabdepw-")
        for n, (sls, module, label, function, comment) in enumerate(self.plans["windows" if minion.startswith("WIN") else "linux"]):
            result, changes = True, {}
            # Most states take milliseconds; packages and commands take longer.
            duration = (1_500 if module == "cmd" else 240 if function in ("latest", "run") else 40 if module in ("pkg", "service") else 4) * (0.5 + chance())
            if failed == "nginx" and (module, label) == ("service", "nginx"):
                result = False
                comment = f"Job for nginx.service failed because the control process of {minion} exited with error code.\nSee \"systemctl status nginx.service\": /etc/nginx/sites-enabled/{minion}.conf:{10 + int(number)}, PID {4000 + int(number)}"
            elif failed == "fetch" and label == "postgresql-16":
                result = False
                comment = f"Problem encountered installing package(s). E: Failed to fetch http://mirror{int(number) % 4}.example.net/pool/p/postgresql-16_16.{int(number)}_amd64.deb 404 Not Found [IP: 10.0.3.{int(number)} 80]"
            elif failed == "access" and module == "file" and sls == "win.rds":
                result = False
                comment = f"Unable to manage file: [Errno 13] Permission denied: 'C:\\\\ProgramData\\\\rds\\\\{minion}\\\\broker.conf'"
            elif changed == "nginx" and label == "/etc/nginx/nginx.conf":
                comment, changes = "File /etc/nginx/nginx.conf updated", {"diff": NGINX_DIFF}
            elif changed == "motd" and label == "/etc/motd":
                comment, changes = "File /etc/motd updated", {"diff": MOTD_DIFF}
            elif changed == "openssl" and label == "base-files":
                comment, changes = "The following packages were successfully installed/upgraded: openssl", OPENSSL
            clock += int(duration)
            start = f"{clock // 3_600_000:02}:{clock // 60_000 % 60:02}:{clock // 1000 % 60:02}.{clock % 1000:03}000"
            rows[f"{module}_|-{label}_|-{label}_|-{function}"] = {
                "__id__": label, "__run_num__": n, "__sls__": sls, "changes": changes, "comment": comment, "duration": round(duration, 3), "name": label,
                "result": result, "start_time": start,
            }
        return rows

    def night(self, n):
        """The highstate of a night: 0 is the oldest."""
        time, jid, last = self.nights[n], self.jids[n], n == len(self.nights) - 1
        back = len(self.nights) - 1 - n
        yield self.load(time, "state.apply", self.minions)

        away = {minion for minion, nights in self.missing["down"].items() if back < nights} | set(self.missing["never"])
        if last:
            away |= {*self.missing["busy"], *self.missing["silent"]}
            failed, changed = self.failed, self.changed
        else:
            # A few of the same causes, and a changing number of changes.
            failed = {minion: cause for minion, cause in self.failed.items() if self.random.random() < 0.08}
            changed = {minion: "motd" for minion in self.minions if minion not in failed and minion != self.calm and self.random.random() < 0.02}
            if back in (2, 4, 6):
                changed[self.calm] = {2: "nginx", 4: "openssl", 6: "motd"}[back]

        for minion in self.minions:
            if minion not in away:
                after = datetime.timedelta(milliseconds=20_000 + self.random.randrange(100_000))
                cause = failed.get(minion)
                value = self.states(minion, changed.get(minion), cause)
                yield self.returned(time + after, jid, minion, "state.apply", value, 2 if cause else 0, out="highstate")

    def ask(self):
        """The master asks who still runs the highstate; the busy minion says so, and the down ones do not answer."""
        time, missing = self.nights[-1] + datetime.timedelta(minutes=3), [minion for minions in self.missing.values() for minion in minions]
        running = {"jid": self.nightly, "fun": "state.apply", "pid": 4711, "tgt": "*", "tgt_type": "glob", "user": "root", "arg": [], "ret": ""}
        self.find_job = self.jid_at(time)
        silent = {*self.missing["down"], *self.missing["never"]}
        answer = lambda minion: (running if minion in self.missing["busy"] else {}, 0)
        yield from self.job(time, "saltutil.find_job", missing, answer, silent, arg=[self.nightly], tgt=",".join(missing), tgt_type="list")

    # -------------------------------------------------------------------------------------------- everything else

    def up(self):
        return [minion for minion in self.minions if minion not in self.missing["down"] and minion not in self.missing["never"]]

    def daily(self, day):
        """The small jobs and events of the day that follows a night."""
        sizes, chance = self.sizes, self.random
        start = self.nights[day] + datetime.timedelta(minutes=10)
        end = self.nights[day + 1] if day + 1 < len(self.nights) else self.now
        share = lambda count: count // sizes.nights + (1 if day < count % sizes.nights else 0)
        what = ["scheduled"] * share(sizes.scheduled) + ["runner"] * share(sizes.runners) + ["other"] * share(sizes.others) + ["beacon"] * share(sizes.beacons)
        chance.shuffle(what)
        up = self.up()
        for n, kind in enumerate(what):
            # The last minutes are for what is placed by hand.
            time = start + (end - start) * 0.8 * (n / len(what)) + datetime.timedelta(microseconds=n)
            minion = up[n * 7 % len(up)]
            if kind == "beacon":
                yield self.event(time, f"salt/beacon/{minion}/load/", minion, id=minion, **{"1m": round(chance.random() * 4, 2)})
            elif kind == "scheduled":
                # A minion's schedule makes the job id, and no load is published.
                yield self.returned(time, self.jid_at(time), minion, "status.loadavg", {"1-min": 0.3, "5-min": 0.2, "15-min": 0.1}, schedule="load", pid=1000 + n)
            elif kind == "runner":
                yield from self.runner(time, "runner.manage.status", [], {"up": up[:5], "down": list(self.missing["down"])})
            elif n % 5 == 0:
                failed = n % 2 == 0
                text = f"curl: (7) Failed to connect to api{n % 9}.example.net port 443 after {n % 90} ms: Connection refused"
                yield from self.job(time, "cmd.run", [minion], lambda _: (text, 7) if failed else ("ok", 0), arg=[f"curl -fsS https://api{n % 9}.example.net/health"], tgt=minion, user="sudo_bo")
            else:
                fun, value = chance.choice([("test.ping", True), ("pkg.version", "1.24.0-2"), ("disk.usage", {"/": {"available": "41230412", "capacity": "37%"}})])
                some = [up[(n * 7 + k) % len(up)] for k in range(3)]
                yield from self.job(time, fun, some, lambda _: (value, 0), tgt=",".join(some), tgt_type="list", user="sudo_anna")

    def runner(self, time, fun, arg, value, retcode=0):
        """The events of a runner, and its job as the master stores it at the end."""
        jid, end = self.jid_at(time), time + datetime.timedelta(milliseconds=800)
        data = {"fun": fun, "jid": jid, "user": "root", "fun_args": list(arg)}
        yield self.event(time, f"salt/run/{jid}/new", _stamp=time.isoformat(), **data)
        data |= {"return": value, "success": retcode == 0, "_stamp": end.isoformat()}
        yield self.line("event", end, on_bus=True, tag=f"salt/run/{jid}/ret", data=data)
        job = {"id": MASTER, "tgt": MASTER, "jid": jid, "fun": fun, "user": "root", "return": data}
        yield self.line("load", end, jid=jid, load=job, minions=None)
        yield self.line("return", end, jid=jid, minion=MASTER, data=job)

    def orchestrate(self, time, broken=False):
        """An orchestration that starts two jobs, the second of which fails if `broken`."""
        jid, web = self.jid_at(time), self.kinds["web"][:4]
        children = []
        for n, (fun, arg) in enumerate([("pkg.upgrade", []), ("state.apply", ["app.deploy"])]):
            begin = time + datetime.timedelta(seconds=2 + 5 * n)
            children.append((self.jid_at(begin), begin, fun, arg))
        rows = {}
        for n, (child, begin, fun, arg) in enumerate(children):
            bad = broken and n == 1
            answer = (lambda minion: (self.states(minion, None, "nginx"), 2)) if bad else (lambda minion: ({} if fun == "pkg.upgrade" else self.states(minion), 0))
            yield from self.job(begin, fun, web, answer, arg=arg, tgt="web[1-4].*")
            name, kind = ("upgrade", "function") if n == 0 else ("deploy", "state")
            rows[f"salt_|-{name}_|-{fun}_|-{kind}"] = {
                "__id__": name, "__jid__": child, "__run_num__": n, "__sls__": "orch.deploy", "changes": {}, "name": fun, "result": not bad, "duration": 4_000.0,
                "comment": "Run failed on minions: " + ", ".join(web) if bad else f"Function ran successfully. Function {fun} ran on {', '.join(web)}.", "start_time": "03:00:02.000000",
            }
        value = {"data": {MASTER: rows}, "outputter": "highstate", "retcode": int(broken)}
        yield from self.runner(time, "runner.state.orchestrate", ["orch.deploy", {"orchestration_jid": jid}], value, int(broken))
        return jid

    def morning(self):
        """What people do and look for after the last night."""
        start = self.nights[-1] + datetime.timedelta(minutes=15)
        at = lambda part: self.now - (self.now - start) * (1 - part)
        web, db = self.kinds["web"], self.kinds["db"]
        yield from self.job(at(0.80), "test.ping", self.up()[:200], lambda _: (True, 0), user="sudo_anna")
        self.orchestration = yield from self.orchestrate(at(0.82), broken=True)
        time = at(0.84)
        self.removal = self.jid_at(time)
        yield from self.job(time, "cmd.run", web[:3], lambda _: ("", 0), arg=["rm -rf /srv/cache/thumbs"], tgt="web[1-3].*", user="sudo_chiara")
        for n in range(8):
            answer = lambda minion: ("/bin/sh: 1: certbot: not found", 127)
            yield from self.job(at(0.85 + n / 200), "cmd.run", [db[n % 3]], answer, arg=["certbot renew --quiet"], tgt=db[n % 3], user="sudo_bo")
        time = at(0.91)
        self.wide = self.jid_at(time)
        many = [f"edge{n:05}.example.net" for n in range(self.sizes.wide)]
        yield from self.job(time, "test.version", many, lambda _: ("3008.3", 0), set(many[:: max(len(many) // self.sizes.wide_missing, 1)][: self.sizes.wide_missing]))
        time = at(0.95)
        self.hostile = self.jid_at(time)
        ids, word = [*HOSTILE_IDS, "web1.example.net"], "w" * 50_000
        answer = lambda minion: (word if minion == "web1.example.net" else sample.HOSTILE, 1)
        arg = ["a" * self.sizes.argument, sample.HOSTILE]
        # Salt lets no id with a slash in; a load may name one.
        silent = {one for one in ids if "/" in one}
        yield from self.job(time, "test.echo", ids, answer, silent, arg=arg, tgt="test \u202e(glob)\u2066</script>", user="sudo_\u202eeve\x1b[1m")
        for n in range(self.sizes.alerts):
            yield self.event(at(0.96) + datetime.timedelta(milliseconds=n), f"soc/alert/{n}", web[n % 20], id=web[n % 20], severity=n % 7)
        yield self.event(at(0.99), "deploy/finished", web[0], id=web[0], data={"version": "2.4.1", "steps": [{"name": "build", "ok": True}]})

    def lines(self):
        """All lines, in the order of time."""
        yield json.dumps({"kind": "saltcellar", "version": 2, "events": True})
        for n in range(len(self.nights)):
            yield from self.night(n)
            if n == len(self.nights) - 1:
                yield from self.ask()
            yield from self.daily(n)
        yield from self.morning()

    def write(self, out):
        for line in self.lines():
            out.write(line + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a form for tests")
    parser.add_argument("--nights", type=int, help="nights with a highstate")
    options = parser.parse_args()
    chosen = SMALL if options.small else Sizes()
    Fleet(dataclasses.replace(chosen, **({"nights": options.nights} if options.nights else {}))).write(sys.stdout)
