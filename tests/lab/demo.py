#!/usr/bin/env python3
"""demo: saltcellar next to a real Salt master with two minions, and queries about a few jobs.

  demo.py                 build, start, run some jobs, show them; stay up until Ctrl-C
  demo.py --once          the same, and stop at the end (also when there is no terminal)
  demo.py --only daemon   build and run the daemon alone, in the foreground

`make run` calls this. All files are in one new directory, which is removed at the end
(KEEP=1 keeps it). Ctrl-C at any moment stops everything.
"""
import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback on Ctrl-C before anything is started

import argparse  # noqa: E402
import contextlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import shlex  # noqa: E402
import shutil  # noqa: E402
import socket  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import textwrap  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import procs  # noqa: E402
import salt_lab  # noqa: E402

STATES = {
    "hello.sls": """
        the greeting:
          file.managed:
            - name: {work}/{{{{ grains['id'] }}}}.txt
            - contents: hello from {{{{ grains['id'] }}}}
        """,
    "broken.sls": """
        this one fails:
          test.fail_without_changes:
            - comment: as requested
        this one does not run:
          test.succeed_without_changes:
            - require:
              - test: this one fails
        """,
}


class Screen:
    """The output: steps, commands, and one line of progress."""

    def __init__(self):
        self.tty = sys.stdout.isatty()
        self.colour = self.tty and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.moving = False
        self.closed = False  # the reader of the output has closed it

    def write(self, text, end="\n"):
        """A closed terminal or pipe ends the demo, but must not interrupt the cleanup."""
        try:
            print(text, end=end, flush=True)
        except (OSError, ValueError):
            if not self.closed:
                self.closed = True
                procs.ignore_signals()
                raise procs.Interrupted(signal.SIGPIPE) from None

    def complain(self, text):
        self.settle()
        with contextlib.suppress(OSError):
            print(f"demo: {text}", file=sys.stderr, flush=True)

    def paint(self, code, text):
        return f"\033[{code}m{text}\033[0m" if self.colour else text

    def line(self, text=""):
        self.settle()
        self.write(text)

    def step(self, text):
        self.line()
        self.line(self.paint("1;36", "==> ") + self.paint("1", text))

    def command(self, cmd):
        self.line()
        self.line(self.paint("32", "$ ") + self.paint("1", cmd))

    def progress(self, text):
        """Overwrites the line on a terminal, prints a line each elsewhere."""
        if not self.tty:
            self.write(f"    {text}")
            return
        width = shutil.get_terminal_size().columns - 5
        self.write(f"\r\033[K    {text[:width]}", end="")
        self.moving = True

    def settle(self):
        if self.moving:
            self.moving = False
            self.write("")


screen = Screen()


def target_dir():
    return os.environ.get("CARGO_TARGET_DIR") or os.path.join(salt_lab.REPO, "target")


def build():
    given = os.environ.get("SALTCELLAR_BIN")
    if given:
        screen.step(f"Using {given}")
        return os.path.abspath(given)
    cargo = os.environ.get("CARGO") or "cargo"
    if not shutil.which(cargo):
        raise salt_lab.LabError("cargo is not installed; see https://rustup.rs")
    binary = os.path.join(os.path.abspath(target_dir()), "debug", "saltcellar")
    if os.path.exists(binary):
        screen.step("Building saltcellar: less than a minute, as most of it was built before")
    else:
        screen.step("Building saltcellar: about four minutes on two processors, the first time only")
    # The build of the tests: `make test` builds nothing of this again.
    if procs.run([cargo, "build"], cwd=salt_lab.REPO, stdin=subprocess.DEVNULL).returncode:
        raise salt_lab.LabError("the build failed")
    return binary


def prepare_salt():
    """Makes Salt's Python environment in the background, while cargo compiles. `ensure_venv` waits for it, and shows its errors."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "salt_lab.py")
    born = []
    procs.spawn([sys.executable, script, "venv"], born.append, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return born[0]


def answers(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        try:
            s.connect(path)
            return True
        except OSError:
            return False


class Demo:
    def __init__(self):
        self.root = self.daemon = self.lab = self.preparing = None
        self.complete = False  # everything was shown

    # ------------------------------------------------------------ up
    def up(self):
        with procs.held():
            self.preparing = prepare_salt()
        self.bin = build()
        screen.step(f"Preparing Python with Salt {salt_lab.default_release()} and the extension")
        salt_lab.ensure_venv(salt_lab.default_release(), screen.progress)
        with procs.held():
            self.root = salt_lab.new_dir("saltcellar-")
        self.sock = f"{self.root}/saltcellar.sock"
        bus = f"{self.root}/lab/master/run"

        screen.step("Starting the saltcellar daemon; it waits for the master's event bus")
        (port,) = salt_lab.free_ports(1)
        salt_lab.write(f"{self.root}/saltcellar.yaml", f"http: {{listen: '127.0.0.1:{port}'}}\n")
        cmd = [self.bin, "serve", "--config", f"{self.root}/saltcellar.yaml", "--state-dir", f"{self.root}/state", "--socket", self.sock, "--bus", bus]
        screen.command(self.shown(cmd))
        with open(f"{self.root}/daemon.log", "ab") as log:
            procs.spawn(cmd, self.note_daemon, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        if not procs.poll(lambda: self.daemon.poll() is not None or answers(self.sock), 20) \
                or self.daemon.poll() is not None:
            raise salt_lab.LabError(f"the daemon did not start:\n{self.log_tail()}")
        screen.line(f"    it runs as process {self.daemon.pid}; its files are in {self.root}/state")

        screen.step("Starting a Salt master and two minions wired to it")
        master = {"master_job_cache": "saltcellar", "event_return": "saltcellar", "saltcellar.socket": self.sock}
        for k, v in master.items():
            screen.line(f"    {k}: {v}")
        # the lab writes its state file before its first process, so `down` finds all started processes
        salt_lab.start(prefix="minion-", directory=f"{self.root}/lab", master_conf={**master, "log_level": "error"},
                       minion_conf={"saltcellar.socket": self.sock}, progress=screen.progress)
        self.lab = salt_lab.load(f"{self.root}/lab")
        self.env = salt_lab.full_env(self.lab)
        self.env["PATH"] = os.path.dirname(self.bin) + os.pathsep + self.env["PATH"]
        self.env["SALTCELLAR_SOCKET"] = self.sock
        if not screen.colour:
            self.env["NO_COLOR"] = "1"
        os.makedirs(f"{self.root}/work")
        for name, text in STATES.items():
            salt_lab.write(f"{self.root}/lab/srv/salt/{name}", textwrap.dedent(text).format(work=f"{self.root}/work"))
        salt_lab.write(f"{self.root}/env", "".join(
            f"export {k}={shlex.quote(self.env[k])}\n" for k in ("SALT_CONFIG_DIR", "SALTCELLAR_SOCKET", "PYTHONWARNINGS"))
            + f"export PATH={shlex.quote(os.path.dirname(self.bin))}:{shlex.quote(self.lab['bin'])}:\"$PATH\"\n")

    def note_daemon(self, p):
        self.daemon = p

    def shown(self, cmd):
        short = os.path.relpath(cmd[0], salt_lab.REPO)
        return " ".join(shlex.quote(c) for c in [short if not short.startswith("..") else cmd[0], *cmd[1:]])

    def log_tail(self):
        text = salt_lab.read(f"{self.root}/daemon.log") or ""
        return "\n".join(text.splitlines()[-15:])

    # ------------------------------------------------------------ jobs
    def do(self, *cmd, cut=40):
        """Shows a command and its output. The exit code is ignored, because a failing job is part of the demo."""
        screen.command(" ".join(shlex.quote(c) for c in cmd))
        p = procs.run(cmd, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                      stderr=subprocess.STDOUT, text=True, errors="replace", timeout=120)
        lines = p.stdout.rstrip("\n").split("\n")
        for text in lines[:cut]:
            screen.line(text)
        if len(lines) > cut:
            screen.line(screen.paint("2", f"    ... {len(lines) - cut} more lines"))
        return p

    def jobs(self):
        screen.step("Running a few jobs")
        self.do("salt", "*", "test.ping")
        self.do("salt", "minion-1", "grains.item", "os", "kernel")
        self.do("salt", "*", "cmd.run", "uname -sr")
        self.do("salt", "--state-output=terse", "*", "state.apply", "hello")
        self.do("salt", "--state-output=terse", "*", "state.apply", "broken")
        self.do("salt-run", "manage.up")

    def show(self):
        screen.step("Jobs in saltcellar")
        self.do("saltcellar", "jobs", "list")
        screen.step("One job in full: the state that failed")
        self.do("saltcellar", "jobs", "show", self.failed_job(), cut=60)
        screen.step("The last events of the bus")
        self.do("saltcellar", "events", "list", "--limit", "10")

    def failed_job(self):
        p = procs.run([self.bin, "jobs", "list", "--output", "json"], env=self.env, stdin=subprocess.DEVNULL,
                      stdout=subprocess.PIPE, text=True, timeout=30)
        if p.returncode:
            raise salt_lab.LabError("`saltcellar jobs list` failed")
        jobs = json.loads(p.stdout)["jobs"]
        states = [j for j in jobs if j["fun"] == "state.apply"] or jobs
        if not states:
            raise salt_lab.LabError(f"saltcellar has no job. End of the daemon's log:\n{self.log_tail()}")
        return states[0]["jid"]

    def page(self):
        p = procs.run([self.bin, "page"], env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30)
        if p.returncode:
            raise salt_lab.LabError(f"`saltcellar page` failed:\n{p.stdout}")
        return p.stdout.strip()

    def stay(self):
        self.complete = True
        screen.step("Everything is up. The page, signed in (the link works once, within two minutes):")
        screen.line()
        screen.line(f"  {self.page()}")
        screen.step("In another terminal:")
        screen.line()
        screen.line(f"  . {self.root}/env")
        screen.line("  salt '*' state.apply broken && saltcellar jobs list   # a job that fails, and its row")
        screen.line("  saltcellar events tail                                # what happens on the bus")
        screen.line("  saltcellar page                                       # another link to the web UI")
        screen.line()
        screen.line(screen.paint("1", "Press Ctrl-C to stop everything."))
        while self.daemon.poll() is None:
            signal.sigtimedwait([], 0.5)
        raise salt_lab.LabError(f"the daemon exited unexpectedly (exit code {self.daemon.returncode}):\n{self.log_tail()}")

    # ------------------------------------------------------------ down
    def down(self, keep):
        """Stops Salt first and the daemon last, so that it gets all events."""
        procs.ignore_signals()
        if self.preparing:
            procs.end([self.preparing.pid], grace=3)
        if not self.root:
            return
        screen.line()
        screen.line(screen.paint("1;36", "==> ") + "Stopping Salt, then saltcellar")
        if os.path.exists(f"{self.root}/lab/{salt_lab.STATE}"):
            salt_lab.stop(salt_lab.load(f"{self.root}/lab"), keep=True)
        if self.daemon:
            left = procs.end([self.daemon.pid], grace=15)
            if left:
                raise salt_lab.LabError(f"the daemon (process {self.daemon.pid}) did not exit")
        if keep:
            screen.line(f"    everything is stopped; the files are kept in {self.root}")
        else:
            shutil.rmtree(self.root, ignore_errors=True)
            screen.line("    everything is stopped and removed")


def daemon_alone():
    exe = build()
    screen.step("Starting the daemon with its default state directory; Ctrl-C stops it")
    screen.line("    other commands find it without options: `saltcellar status`, `saltcellar jobs list`")
    screen.command(os.path.relpath(exe, salt_lab.REPO) + " serve")
    os.execv(exe, [exe, "serve"])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--once", action="store_true", help="stop after showing everything")
    ap.add_argument("--only", choices=["daemon"], help="run the daemon alone")
    args = ap.parse_args()
    once = args.once or os.environ.get("ONCE") == "1" or not sys.stdin.isatty()

    procs.install()
    demo, rc = Demo(), 0
    keep = bool(os.environ.get("KEEP"))
    try:
        if args.only:
            daemon_alone()
        demo.up()
        demo.jobs()
        demo.show()
        if not once:
            demo.stay()
    except procs.Interrupted as exc:
        screen.closed = screen.closed or exc.signum in (signal.SIGHUP, signal.SIGPIPE)
        if not demo.complete:
            screen.line()
            screen.line("interrupted")
            rc = 128 + exc.signum
    except salt_lab.LabError as exc:
        screen.complain(exc)
        keep, rc = True, 1
    except subprocess.TimeoutExpired as exc:
        screen.complain(f"{' '.join(exc.cmd)} did not finish within {exc.timeout:.0f} s")
        keep, rc = True, 1
    except Exception:
        keep = True
        raise
    finally:
        try:
            demo.down(keep)
        except salt_lab.LabError as exc:
            screen.complain(exc)
            rc = 1
    return rc


if __name__ == "__main__":
    sys.exit(main())
