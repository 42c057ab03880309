"""
Jids made without the daemon, in Salt's form: 20 digits of time in UTC, and ``_<pid>`` with ``unique_jid``.

They are unique by construction. Each is the time of a microsecond that is odd, where the daemon gives out even ones
only; and a file beside the spool, under a lock, says which was the last, so that no two processes make the same.
"""

import datetime
import os
import time

_EPOCH = datetime.datetime(1970, 1, 1)
_last = [0]


def local_jid(opts, spool):
    """A jid that nobody else has. Should the file not be usable, it is one that this process has not made before."""
    now = time.time_ns() // 1000
    try:
        at = spool.next_jid_time(now)
    except OSError:
        at = max(now | 1, _last[0] + 2)
    _last[0] = at
    return in_form_of(opts, f"{_EPOCH + datetime.timedelta(microseconds=at):%Y%m%d%H%M%S%f}")


def in_form_of(opts, digits):
    """The jid as these options want it."""
    return f"{digits}_{os.getpid()}" if opts.get("unique_jid") else digits
