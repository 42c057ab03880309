"""The keys of `saltcellar top`, and the pager, in a pseudo terminal of 80 by 24."""

import datetime
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

import pytest
from conftest import BIN, DEADLINE, program

WIDTH, HEIGHT = 80, 24
CONTROL = re.compile(rb"\x1b\[([?0-9;]*)([A-Za-z])|\x1b([=>78M])|\x1b\([AB0]|\x1b\][^\x07]*\x07")


class Terminal:
    """A command on a terminal of its own, and what its screen shows."""

    def __init__(self, *command, **env):
        self.master, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
        self.before = termios.tcgetattr(side)
        env = {**os.environ, "TERM": "xterm", **env}
        env.pop("LESS", None)
        self.process = subprocess.Popen([str(word) for word in command], stdin=side, stdout=side, stderr=side, env=env, start_new_session=True)
        self.side, self.all, self.rest = side, b"", b""
        self.clear()

    def clear(self):
        self.rows, self.row, self.column = [[" "] * WIDTH for _ in range(HEIGHT)], 0, 0

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.side)
        os.close(self.master)

    def key(self, keys):
        os.write(self.master, keys.encode())

    def has_output(self, seconds):
        # Unlike select, for any number of a file.
        poll = select.poll()
        poll.register(self.master, select.POLLIN)
        return poll.poll(1000 * seconds)

    def receive(self, seconds):
        if self.has_output(seconds):
            data = os.read(self.master, 65536)
            self.all += data
            self.show(self.rest + data)

    def show(self, data):
        self.rest = b""
        while data:
            found = CONTROL.match(data)
            if found:
                self.control(*(part or b"" for part in found.groups()))
                data = data[found.end():]
            elif data[0] == 0x1b and len(data) < 20:
                self.rest, data = data, b""
            elif data[:1] in (b"\r", b"\n", b"\x08"):
                self.column = max(0, self.column - 1) if data[:1] == b"\x08" else 0 if data[:1] == b"\r" else self.column
                if data[:1] == b"\n":
                    self.row += 1
                    if self.row == HEIGHT:
                        self.rows, self.row = [*self.rows[1:], [" "] * WIDTH], HEIGHT - 1
                data = data[1:]
            else:
                if data[0] < 0x80:
                    self.put(chr(data[0]))
                    data = data[1:]
                else:
                    # One cell for each character beyond ASCII.
                    self.put("?")
                    data = data[1:].lstrip(bytes(range(0x80, 0xc0)))

    def put(self, text):
        if self.column < WIDTH:
            self.rows[self.row][self.column] = text
        self.column += 1

    def control(self, given, kind, other):
        if other == b"M":
            # The cursor moves up, in the first row by scrolling down.
            if self.row == 0:
                self.rows = [[" "] * WIDTH, *self.rows[:-1]]
            self.row = max(0, self.row - 1)
        numbers = [int(one) for one in given.lstrip(b"?").split(b";") if one]
        if kind == b"H":
            self.row, self.column = ((numbers or [1, 1])[0] - 1, (numbers[1:] or [1])[0] - 1)
        elif kind == b"J" and numbers == [2]:
            self.clear()
        elif kind == b"K":
            self.rows[self.row][self.column:] = [" "] * (WIDTH - min(self.column, WIDTH))

    def lines(self):
        return ["".join(row).rstrip() for row in self.rows]

    def wait(self, what, look):
        """Waits until the lines of the screen satisfy this."""
        until = time.monotonic() + DEADLINE
        while not look(self.lines()):
            assert time.monotonic() < until, (what, self.lines())
            if self.process.poll() is None:
                self.receive(0.1)
            else:
                self.receive(0)

    def wait_for(self, text):
        self.wait(text, lambda lines: any(text in line for line in lines))

    def wait_for_last(self, line):
        self.wait(f"the last line to be {line!r}", lambda lines: lines[-1] == line)

    def ended(self):
        """The exit code; the terminal must be as it was."""
        until = time.monotonic() + DEADLINE
        while self.process.poll() is None:
            assert time.monotonic() < until, self.lines()
            self.receive(0.05)
        while self.has_output(0):
            self.receive(0)
        assert termios.tcgetattr(self.side) == self.before, "the terminal is restored"
        return self.process.returncode


@pytest.fixture
def terminal():
    opened = []

    def open_terminal(*command, **env):
        opened.append(Terminal(*command, **env))
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.close()


def put_jobs(daemon, count, fun="test.ping"):
    """Jobs of one minion, the latest last; their ids."""
    lines, jids = ['{"kind": "saltcellar", "version": 2}'], []
    now = datetime.datetime.now(datetime.timezone.utc)
    for n in range(count):
        # Ten seconds apart: so much of an id stays at 80 columns, see `shown`.
        time_ = now + datetime.timedelta(seconds=10 * (n - count))
        jid = time_.strftime("%Y%m%d%H%M%S%f")
        at = time_.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        lines.append('{"kind": "load", "time": "%s", "jid": "%s", "load": {"jid": "%s", "fun": "%s", "tgt": "web1", "user": "root"}, "minions": ["web1"]}' % (at, jid, jid, fun))
        lines.append('{"kind": "return", "time": "%s", "jid": "%s", "minion": "web1", "confirmed": true, "data": {"jid": "%s", "id": "web1", "fun": "%s", "return": "answer %s", "retcode": 0, "success": true}}' % (at, jid, jid, fun, n))
        jids.append(jid)
    subprocess.run([BIN, "import", "jsonl", "-", "--socket", daemon.socket], input="\n".join(lines) + "\n", text=True, check=True, capture_output=True)
    return jids


def shown(jid):
    """What a table of 80 columns has of an id at least."""
    return jid[:13]


def test_the_keys_of_top(daemon, terminal):
    jids = put_jobs(daemon, 2)
    top = terminal(BIN, "top", "--socket", daemon.socket)
    top.wait_for(shown(jids[1]))
    top.wait_for_last("up/down select  Enter open  / filter  F failed only  p pause  ? keys  q quit")
    # The second job, the older one.
    top.key("\x1b[B")
    top.key("\r")
    top.wait_for(f"job {jids[0]}")
    # What it is, and its return.
    top.wait_for("returned  1 of 1, 0 failed")
    top.wait_for("answer 0")
    top.wait_for_last("up/down scroll  Esc back  ? keys")
    top.key("\x1b")
    top.wait_for("q quit")
    # While paused, a new job is not shown.
    top.key("p")
    top.wait_for("PAUSED")
    (other,) = put_jobs(daemon, 1, "cmd.run")
    top.key("/")
    top.key("cmd")
    top.wait_for("filter: cmd_")
    top.wait("no job passes", lambda lines: not any("test.ping" in line for line in lines))
    assert not any(shown(other) in line for line in top.lines())
    top.key("\r")
    top.wait_for("filter: cmd  Esc remove")
    top.key("p")
    top.wait_for(shown(other))
    top.wait("no pause is shown", lambda lines: not any("PAUSED" in line for line in lines))
    top.key("\x1b")
    top.wait_for("test.ping")
    assert b"\x1b[?1049h" in top.all and b"\x1b[?1049l" not in top.all, "on the alternate screen"
    top.key("q")
    assert top.ended() == 0
    assert b"\x1b[?1049l" in top.all and top.all.rstrip().endswith(b"\x1b[?25h"), top.all[-100:]


def test_top_ends_with_control_c(daemon, terminal):
    top = terminal(BIN, "top", "--socket", daemon.socket)
    top.wait_for("q quit")
    top.key("\x03")
    assert top.ended() == 0


def test_long_output_is_paged_and_short_output_is_not(daemon, terminal):
    program("less")
    jids = put_jobs(daemon, 40)
    listing = ("jobs", "list", "--socket", daemon.socket, "--limit", "40")
    paged = terminal(BIN, *listing, PAGER="less")
    paged.wait_for(shown(jids[-1]))
    paged.wait("a prompt", lambda lines: lines[-1].startswith(":"))
    assert all(len(line) <= WIDTH for line in paged.lines())
    assert not any(shown(jids[0]) in line for line in paged.lines()), "40 jobs do not fit"
    # To the end, and back.
    paged.key("G")
    paged.wait_for(shown(jids[0]))
    paged.key("g")
    paged.wait_for(shown(jids[-1]))
    paged.key("q")
    assert paged.ended() == 0
    short = terminal(BIN, "jobs", "list", "--socket", daemon.socket, "--limit", "3", PAGER="/nonexistent")
    assert short.ended() == 0
    short.wait_for(shown(jids[-1]))
    # Without a pager, and with one that does not exist, all is written.
    for more, env in [(["--no-pager"], {"PAGER": "less"}), ([], {"PAGER": "/nonexistent"}), ([], {"PAGER": "cat"})]:
        plain = terminal(BIN, *listing, *more, **env)
        assert plain.ended() == 0
        plain.wait_for(shown(jids[0]))
        assert all(shown(jid).encode() in plain.all for jid in jids), (more, env)


def test_a_pager_that_ends_early_ends_the_verb(daemon, terminal, tmp_path):
    # More than a pipe holds: the verb still writes when the pager has ended.
    put_jobs(daemon, 3000)
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\nhead -n 1 > /dev/null\necho the pager has ended\n")
    pager.chmod(0o755)
    paged = terminal(BIN, "jobs", "list", "--socket", daemon.socket, "--limit", "3000", PAGER=str(pager))
    assert paged.ended() == 0
    paged.wait_for("the pager has ended")
