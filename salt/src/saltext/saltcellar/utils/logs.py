"""
Errors that repeat: a master makes hundreds of calls a second, and each may fail for the same
reason.
"""

import logging
import time
from collections.abc import Hashable

log = logging.getLogger(__name__)

#: Equal messages are logged once in this time, in seconds.
INTERVAL_S = 60.0

#: By subject: the time from which it is logged again, and the messages suppressed until then.
_subjects: dict[Hashable, tuple[float, int]] = {}


def error(subject: Hashable, message: str, *args: object, exc_info: bool = False) -> None:
    """Log an error. Further ones of the same subject are counted, and the next logged one states their number."""
    now = time.monotonic()
    until, suppressed = _subjects.get(subject, (0.0, 0))

    if now < until:
        _subjects[subject] = until, suppressed + 1
        log.debug(message, *args, exc_info=exc_info)
        return

    _subjects[subject] = now + INTERVAL_S, 0
    if suppressed:
        message += " (%d more like this since the last message)"
        args += (suppressed,)
    log.error(message, *args, exc_info=exc_info)


def forget() -> None:
    """Log every subject again. For tests."""
    _subjects.clear()
