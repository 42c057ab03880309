#!/usr/bin/env python3
"""run: all tests, in stages that run side by side, and one table at the end. `make test` calls this.

  run.py                    all stages
  run.py rust systemd       these stages, and what they need
  run.py --list             the stages

Each stage is a target of the Makefile, so that `make test-NAME` runs it alone. Its output is in target/tests/NAME.log; that of a
failed stage is printed. Stages start in the order of the list, as soon as what they need is done and there is room: tests mostly wait, for
disks, sockets and masters, so more of them run than there are processors (TEST_ROOM, default three more than processors; one more in CI,
where the release build runs beside them).
"""
import argparse
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lab"))
import procs  # noqa: E402
import salt_lab  # noqa: E402

TARGET = os.path.abspath(os.environ.get("CARGO_TARGET_DIR") or os.path.join(salt_lab.REPO, "target"))
LOGS = os.path.join(TARGET, "tests")
CI = bool(os.environ.get("CI"))


@dataclasses.dataclass
class Stage:
    """A target of the Makefile. `needs` names the stages before it, `room` how many processors it may keep busy."""

    name: str
    what: str
    needs: tuple = ()
    room: float = 1
    #: Whether it prepares others: it has no tests to count.
    prepares: bool = False

    process = None
    started = ended = None
    code = None
    #: Seconds of processor time of the stage's processes: what a faster run has to save, where all processors are busy.
    cpu = 0

    @property
    def log(self):
        return os.path.join(LOGS, f"{self.name}.log")

    @property
    def seconds(self):
        return round((self.ended or time.monotonic()) - self.started) if self.started else 0


def stages():
    """In the order in which they start. By hand, only the longest stage runs during the build of the tests. The crates' tests, which compute,
    then begin early and fill the processors while other stages wait (docs/decisions/test-time.md)."""
    # By hand the program is there before its tests, and after `make run` at once. The long run tests the release build.
    program = ("release" if CI else "program", "salt")
    rust = Stage("rust", "the crates", ("build",), 2)
    return [
        Stage("packages", "Debian packages that tests need", prepares=True),
        Stage("salt", "Python environments with Salt, and destinations of sinks", ("packages",), prepares=True),
        *([] if CI else [Stage("program", "the program, as `make run` builds it", ("packages",), 2, prepares=True)]),
        Stage("build", "the crates and their tests", ("packages",) if CI else ("program",), 2 if CI else 4, prepares=True),
        Stage("systemd", "the units under a real systemd", program),
        Stage("integration", "a real Salt master", program),
        # In CI they run beside the release build, which uses one processor most of the time.
        *([Stage("release", "the release build", ("build",), prepares=True)] if CI else []),
        rust,
        Stage("python", "the extension", program),
        # These wait for most of their time.
        Stage("sinks", "real destinations of sinks", program, 0.5),
        Stage("cluster", "one history of several daemons", program, 0.5),
        Stage("page", "the page in Chromium", program, 0.5),
        Stage("http", "a real Prometheus", program, 0),
        Stage("sls", "files of the reactor, as Salt renders them", ("build", "salt")),
        Stage("docs", "the site"),
        Stage("lint", "format and code of the extension", ("packages",), 0),
    ]


@dataclasses.dataclass
class Counts:
    """What a stage's output says of its tests."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    reasons: list = dataclasses.field(default_factory=list)
    #: The failed tests, one line each.
    failures: list = dataclasses.field(default_factory=list)

    #: The last line of a run: of nextest, of `cargo test`, of pytest.
    NEXTEST = re.compile(r"^ *Summary \[.*\] *\d+ tests? run: (.*)$")
    CARGO = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")
    PYTEST = re.compile(r"^(?:\[\d+/\d+\] )?=* ?((?:\d+ \w+,? ?)+)in \d[\d.]*s")
    REASON = re.compile(r"^(?:\[\d+/\d+\] )?SKIPPED \[\d+\] \S+: (.*)$")
    #: As pytest lists it at the end (`-rfE`), nextest and `cargo test`.
    FAILURE = re.compile(r"^(?:\[\d+/\d+\] )?((?:FAILED|ERROR) \S+::.*|test .* \.\.\. FAILED)$|^ *((?:FAIL|TIMEOUT|SIG\w+) \[.*)$")

    @classmethod
    def of(cls, text):
        """Reads the summaries of all runs in a log."""
        counts = cls()
        skipped = 0
        for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines():
            if match := cls.CARGO.match(line):
                passed, failed, _ignored = map(int, match.groups())
                counts.passed, counts.failed = counts.passed + passed, counts.failed + failed
            elif match := cls.NEXTEST.match(line) or cls.PYTEST.match(line):
                for number, word in re.findall(r"(\d+) (\w+)", match[1]):
                    counts.passed += int(number) if word == "passed" else 0
                    counts.failed += int(number) if word in ("failed", "errors", "error", "timed") else 0
                    # Those that nextest skips are left out on purpose: they have targets of their own.
                    counts.skipped += int(number) if word == "skipped" and cls.PYTEST.match(line) else 0
            elif match := cls.REASON.match(line):
                counts.reasons.append(match[1])
            elif line.startswith("SKIPPED: "):
                skipped += 1
                counts.reasons.append(line.removeprefix("SKIPPED: "))
            elif match := cls.FAILURE.match(line):
                counts.failures.append(match[1] or match[2])
        # The crates' tests that say so are among the passed ones; a stage without tests has none.
        counts.skipped, counts.passed = counts.skipped + skipped, max(counts.passed - skipped, 0)
        counts.reasons, counts.failures = (list(dict.fromkeys(lines)) for lines in (counts.reasons, counts.failures))
        return counts


def read(path):
    with open(path, errors="replace") as file:
        return file.read()


class Run:
    def __init__(self, wanted):
        self.all = {stage.name: stage for stage in stages()}
        self.stages = self.with_needs(wanted or list(self.all))
        self.room = float(os.environ.get("TEST_ROOM") or (os.cpu_count() or 1) + (1 if CI else 3))
        self.begin = time.monotonic()

    def with_needs(self, wanted):
        chosen, left = set(), list(wanted)
        while left:
            name = left.pop()
            if name not in self.all:
                raise salt_lab.LabError(f"there is no stage {name}; there are {', '.join(self.all)}")
            chosen.add(name)
            left.extend(self.all[name].needs)
        return [stage for stage in self.all.values() if stage.name in chosen]

    def say(self, text):
        elapsed = round(time.monotonic() - self.begin)
        print(f"{elapsed // 60:3}:{elapsed % 60:02}  {text}", flush=True)

    def start(self, stage):
        os.makedirs(LOGS, exist_ok=True)
        stage.started = time.monotonic()
        self.say(f"{stage.name}: {stage.what}")
        command = [os.environ.get("MAKE") or "make", "--no-print-directory", f"test-{stage.name}"]
        # Emptied, and then only appended to: tests that are skipped write there, too (`missing` in crates/testkit).
        open(stage.log, "w").close()
        with open(stage.log, "a") as log:
            # A stage of its own has make's settings from the environment, but not the jobs of the make above it.
            env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
            env |= {"TEST_STAGES": "1", "TEST_LOG": stage.log}

            def note(process):
                stage.process = process
            procs.spawn(command, note, cwd=salt_lab.REPO, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def has_ended(self, stage):
        """Whether the process has ended, of which it takes the exit code and the processor time."""
        pid, status, usage = os.wait4(stage.process.pid, os.WNOHANG)
        if pid:
            stage.process.returncode = os.waitstatus_to_exitcode(status)
            stage.cpu = round(usage.ru_utime + usage.ru_stime)
        return bool(pid)

    def finish(self, stage):
        stage.ended, stage.code = time.monotonic(), stage.process.returncode
        result = "FAILED" if stage.code else "done" if stage.prepares else "passed"
        self.say(f"{stage.name}: {result} after {stage.seconds} s")
        if result == "FAILED":
            print(f"\n== {stage.name} ({stage.log})\n{read(stage.log)}", flush=True)

    def is_ready(self, stage):
        return all(self.all[need].code == 0 for need in stage.needs if self.all[need] in self.stages)

    def step(self):
        """Starts and finishes what it can; whether something is left to wait for."""
        for stage in self.stages:
            if stage.process and stage.code is None and self.has_ended(stage):
                self.finish(stage)
        used = sum(stage.room for stage in self.stages if stage.process and stage.code is None)
        for stage in self.stages:
            if not stage.process and self.is_ready(stage) and (used == 0 or used + stage.room <= self.room):
                self.start(stage)
                used += stage.room
        return used > 0

    def table(self):
        rows = [("stage", "passed", "failed", "skipped", "seconds", "CPU s", "")]
        failures = []
        for stage in self.stages:
            counts = Counts.of(read(stage.log)) if stage.process else Counts()
            note = "; ".join(counts.reasons)
            failures.extend((stage.name, failure) for failure in counts.failures)
            if not stage.process:
                note = f"not run, because {' and '.join(need for need in stage.needs if self.all[need].code != 0)} failed"
            elif stage.code:
                note = f"FAILED, see {os.path.relpath(stage.log, salt_lab.REPO)}"
            numbers = ("", "", "") if stage.prepares else (counts.passed, counts.failed, counts.skipped)
            rows.append((stage.name, *numbers, stage.seconds, stage.cpu, note))
        widths = [max(len(str(row[n])) for row in rows) for n in range(6)]
        width_max = max(40, shutil.get_terminal_size((160, 24)).columns - sum(widths) - 10)
        print()
        for name, *numbers, note in rows:
            cells = [str(number).rjust(width) for number, width in zip(numbers, widths[1:])]
            note = note if len(note) <= width_max else f"{note[:width_max - 1]}…"
            print("  ".join([name.ljust(widths[0]), *cells, note]).rstrip())

        # Once more at the end, because whoever reads a long log, or only its tail, looks here first.
        if failures:
            print("\nfailed:")
        for name, failure in failures:
            print(f"  {name}: {failure}")

        elapsed = round(time.monotonic() - self.begin)
        print(f"\n{elapsed // 60} min {elapsed % 60} s in all", flush=True)

    def run(self):
        procs.install()
        try:
            while self.step():
                time.sleep(0.2)
        except KeyboardInterrupt as exc:
            procs.ignore_signals()
            procs.end([stage.process.pid for stage in self.stages if stage.process], grace=30)
            return 128 + exc.signum
        self.table()
        return 0 if all(stage.code == 0 for stage in self.stages) else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.list:
        for stage in stages():
            print(f"{stage.name:12}{stage.what}")
        return 0
    return Run(args.stages).run()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except salt_lab.LabError as exc:
        sys.exit(f"run: {exc}")
