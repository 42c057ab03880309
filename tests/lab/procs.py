"""procs: start and end processes so that Ctrl-C, at any moment, leaves none behind.

Every process starts in a separate session: a terminal's Ctrl-C reaches only this process, which stops the others in
order. The first signal becomes an exception, later ones are ignored. Signals are blocked between the start of a process
and the recording of its id (`held`), so no process can be left behind.
"""
import contextlib
import os
import signal
import subprocess
import time

#: Maximum wait for any condition of a test, in seconds: a limit, which a test reaches only if it fails, also beside other builds.
WAIT_MAX = 180

_depth = 0  # depth of nested `held` blocks
_pending = None  # a signal that arrived while held


class Interrupted(KeyboardInterrupt):
    """SIGINT, SIGTERM or SIGHUP; `signum` is its number."""

    def __init__(self, signum):
        super().__init__(signum)
        self.signum = signum


def _on_signal(signum, _frame):
    global _pending
    if _depth:
        _pending = _pending or signum
    else:
        ignore_signals()
        raise Interrupted(signum)


def install():
    for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(s, _on_signal)


def ignore_signals():
    """Ignores further signals during the cleanup. (SIG_IGN would be inherited.)"""
    for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(s, lambda *_: None)


@contextlib.contextmanager
def held():
    global _depth, _pending
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if not _depth and _pending is not None:
            signum, _pending = _pending, None
            ignore_signals()
            raise Interrupted(signum)


def spawn(cmd, note=None, **kw):
    """Popen in a new session; `note(process)` is called before any signal is delivered."""
    with held():
        p = subprocess.Popen(cmd, start_new_session=True, **kw)
        if note:
            note(p)
    return p


def run(cmd, timeout=None, lines=None, **kw):
    """Like subprocess.run, for a whole process group, which is stopped on a signal or a timeout.

    `lines` is called with each line of output (stdout and stderr together) as it arrives.
    """
    born = []
    try:
        if lines:
            kw.update(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        p = spawn(cmd, born.append, **kw)
        out = err = None
        if lines:
            for line in p.stdout:
                lines(line.rstrip("\n"))
            p.wait()
        else:
            out, err = p.communicate(timeout=timeout)
        return subprocess.CompletedProcess(cmd, p.returncode, out, err)
    except BaseException:
        for p in born:
            end([p.pid], grace=3)
        raise


def alive(pgid):
    """Whether a process of the group exists. (Our own zombies are reaped first.)"""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pgid, os.WNOHANG)
    try:
        os.killpg(pgid, 0)
        return True
    except ProcessLookupError:
        return False
    except PermissionError:
        return True


def gone(pid):
    try:
        os.kill(pid, 0)
        return False
    except ProcessLookupError:
        return True


def signal_each(ids, signum, send):
    for i in ids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(i, signum)


def poll(probe, seconds, pause=0.05):
    """The first true value of `probe()` within so many seconds; else its last value."""
    until = time.monotonic() + seconds
    while True:
        value = probe()
        if value or time.monotonic() > until:
            return value
        time.sleep(pause)


def eventually(what, probe, seconds=WAIT_MAX):
    """The first true value of `probe()`; fails with the awaited condition and the last value."""
    value = poll(probe, seconds, pause=0.1)
    assert value, f"not within {seconds} s: {what}; the last value was {value!r}"
    return value


def end(groups, grace=8.0):
    """Stops process groups: the leaders first, because they stop their children in order; then all, with SIGKILL at last.

    Returns the groups that did not exit.
    """
    steps = ((signal.SIGTERM, os.kill, grace), (signal.SIGTERM, os.killpg, 3), (signal.SIGKILL, os.killpg, 3))
    for signum, send, wait in steps:
        left = [g for g in groups if alive(g)]
        if not left:
            return []
        signal_each(left, signum, send)
        poll(lambda: not any(alive(g) for g in left), wait)
    return [g for g in groups if alive(g)]
