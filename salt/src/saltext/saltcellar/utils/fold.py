"""
One message for a return, where Salt makes up to five calls.

``_store_job`` (``salt/utils/job.py``) stores a return in one go, in one thread: ``prep_jid`` with its jid, the event,
``save_load`` with the return in place of a load (twice where it came without a job), ``returner``, and with
``job_cache_store_endtime`` also ``update_endtime``. ``prep_jid`` needs no message. Of the others the earlier one is held back
until the later one says the same and more; then there is one message, and what it says is on disk when the last call is over.

Nothing is held back on a guess: only where ``_store_job`` itself is what calls us, and its options say that the later call comes.
Salt answers the minion once ``_store_job`` is through, so whoever dies before that, by ``kill -9`` say, leaves a return that the minion
sends again. What is held when anything else is asked, because an exception came between, is sent first; also at the end of
the process.
"""

import multiprocessing.util
import os
import sys
import threading

import salt.utils.job

#: How far up to look for ``_store_job``. Salt's loader is some four frames of it.
FRAMES_MAX = 16

_STORE_JOB = getattr(getattr(salt.utils.job, "_store_job", None), "__code__", None)
_thread = threading.local()
_finalizer_of = [0]


class Held:
    """A write that waits for the next call."""

    def __init__(self, client, call, args, load):
        self.client = client
        self.call = call
        self.args = args
        self.load = load


def returner_follows(opts, jid, load):
    """Whether this ``save_load`` is that of a return whose ``returner`` comes next."""
    return (
        isinstance(load, dict)
        and "return" in load
        and load.get("cmd", "_return") == "_return"
        and str(load.get("jid")) == jid
        and bool(opts.get("job_cache"))
        and not opts.get("ext_job_cache")
        and _in_store_job()
    )


def endtime_follows(opts):
    """Whether this ``returner`` is one whose ``update_endtime`` comes next."""
    return bool(opts.get("job_cache_store_endtime")) and _in_store_job()


def hold(client, call, args, load):
    """Let a write wait for the next call of this thread."""
    _thread.held = Held(client, call, args, load)
    if _finalizer_of[0] != os.getpid():
        _finalizer_of[0] = os.getpid()
        # Of this process. A fork has a memory of its own, and whatever waits in the parent is the parent's.
        multiprocessing.util.Finalize(None, settle, exitpriority=100)


def take(call, load=None, jid=None):
    """What waits, if it is this call about this very map, or this jid; :func:`settle` is for anything else."""
    held = getattr(_thread, "held", None)
    if held is None or held.call != call:
        return None
    if held.load is not load if load is not None else str(held.load.get("jid")) != jid:
        return None
    _thread.held = None
    return held


def settle():
    """Send what waits for a call that did not come."""
    held = getattr(_thread, "held", None)
    if held is not None:
        _thread.held = None
        held.client.write(held.call, held.args)


def forget():
    """Let go of what waits. For tests, and for a child: what its parent holds is not the child's to send."""
    _thread.held = None


os.register_at_fork(after_in_child=forget)


def _in_store_job():
    frame = sys._getframe(2)  # pylint: disable=protected-access
    for _ in range(FRAMES_MAX):
        if frame is None:
            return False
        if frame.f_code is _STORE_JOB:
            return True
        frame = frame.f_back
    return False
