"""
Job ids generated without the daemon, in Salt's form: 20 digits of time in UTC, and ``_<pid>`` with ``unique_jid``.

They are unique: each is the time of an odd microsecond, while the daemon uses even ones, and a file beside the
spool, under a lock, has the last one, so that processes cannot collide.
"""

import datetime
import os
import time

_EPOCH = datetime.datetime(1970, 1, 1)
_last = [0]


def local_jid(opts, spool):
    """A unique job id. If the file cannot be used, it is unique within this process."""
    now = time.time_ns() // 1000
    try:
        at = spool.next_jid_time(now)
    except OSError:
        at = max(now | 1, _last[0] + 2)
    _last[0] = at
    return in_form_of(opts, f"{_EPOCH + datetime.timedelta(microseconds=at):%Y%m%d%H%M%S%f}")


def in_form_of(opts, digits):
    """The jid with ``_<pid>`` if ``unique_jid`` is set."""
    return f"{digits}_{os.getpid()}" if opts.get("unique_jid") else digits
