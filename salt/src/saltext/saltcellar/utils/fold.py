"""
One message per return, for up to five calls of Salt.

``_store_job`` (``salt/utils/job.py``) stores a return in one thread: ``prep_jid`` with its jid, the event, ``save_load`` with
the return as load (twice if it came without a job), ``returner``, and with ``job_cache_store_endtime`` also
``update_endtime``. ``prep_jid`` needs no message. Each of the others is held back until the next call, which carries the
same data and more. The one message is on disk when the last call returns.

A call is held back only if ``_store_job`` is on the stack and its options imply the next call. Salt answers the minion after
``_store_job``, so if the process dies before, the minion sends the return again. If the next call does not come (an exception),
any other call of the thread, or the end of the process, sends the held one first.
"""

import os
import sys
import threading

import salt.utils.job
from saltext.saltcellar.utils import spool

#: Frames of the stack that are searched for ``_store_job``. Salt's loader has some four.
FRAMES_MAX = 16

_STORE_JOB = getattr(getattr(salt.utils.job, "_store_job", None), "__code__", None)
_thread = threading.local()
_finalizer_of = [0]


class Held:
    """A write that is held back until the next call."""

    def __init__(self, client, call, args, load):
        self.client = client
        self.call = call
        self.args = args
        self.load = load


def returner_follows(opts, jid, load):
    """Whether this ``save_load`` carries a return whose ``returner`` call comes next."""
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
    """Whether the ``update_endtime`` of this ``returner`` call comes next."""
    return bool(opts.get("job_cache_store_endtime")) and _in_store_job()


def hold(client, call, args, load):
    """Hold a write back until the next call of this thread."""
    _thread.held = Held(client, call, args, load)
    if _finalizer_of[0] != os.getpid():
        _finalizer_of[0] = os.getpid()
        # Once per process: a fork has a copy of the parent's state.
        spool.at_exit(settle)


def take(call, load=None, jid=None):
    """The held write, if it is this call with this map (by identity) or this jid; otherwise ``None``."""
    held = getattr(_thread, "held", None)
    if held is None or held.call != call:
        return None
    if held.load is not load if load is not None else str(held.load.get("jid")) != jid:
        return None
    _thread.held = None
    return held


def settle():
    """Send a held write whose next call did not come."""
    held = getattr(_thread, "held", None)
    if held is not None:
        _thread.held = None
        held.client.write(held.call, held.args)


def forget():
    """Discard a held write. For tests, and after a fork: the parent sends it."""
    _thread.held = None


if hasattr(os, "register_at_fork"):
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
