"""
Report entries that wait in the spool of the returner ``saltcellar``, or were lost.

.. versionadded:: 0.1.0

:depends: the returner ``saltcellar`` on this minion

.. code-block:: yaml

    beacons:
      saltcellar_spool:
        - age: 300          # report if the oldest entry waits longer, in seconds; the default
        - bytes: 1048576    # or if more bytes wait; by default not
        - interval: 60      # seconds between two reports; by default 60

The event has ``entries``, ``bytes``, ``oldest_s`` and ``lost`` (entries that were not stored, by
reason). It is also sent when entries were lost since the last one.
"""

import time

from saltext.saltcellar.utils import client
from saltext.saltcellar.utils import loaders
from saltext.saltcellar.utils import settings

__virtualname__ = "saltcellar_spool"

#: Age of the oldest entry that is reported, in seconds.
AGE_S = 300
#: Time between two reports, in seconds, unless ``interval`` is configured. Salt calls beacons every
#: second.
INTERVAL_S = 60

#: Keys of this beacon.
_OWN = ("age", "bytes")
#: Keys that Salt reads, or adds.
_SALTS = (
    "interval",
    "enabled",
    "disable_during_state_run",
    "run_once",
    "beacon_module",
    "_beacon_name",
)

#: What ``validate`` saw, for the ``beacon`` that Salt calls right after it, without the
#: ``interval`` (salt/beacons/__init__.py). ``__opts__`` cannot say it: before 3008 it is a copy
#: from the loader's creation, so a beacon that was added later is not in it.
_validated = {}

#: Losses that were reported, by directory of the spool, where they could not be written.
_reported = {}


def __virtual__():
    why = settings.unsupported(__opts__)
    return (False, why) if why else __virtualname__


def validate(config):
    """
    Check the configuration: a list of maps.

    A map is rejected here, because Salt appends to the configuration of a beacon that passed. That
    ends all beacons of the minion.
    """
    if not isinstance(config, list):
        return (
            False,
            f"the configuration of saltcellar_spool must be a list, not {type(config).__name__}",
        )

    for item in config:
        if not isinstance(item, dict):
            return (
                False,
                f"saltcellar_spool: each item must be a map such as `age: 300`, not {item!r}",
            )
        unknown = [str(key) for key in item if key not in (*_OWN, *_SALTS)]
        if unknown:
            return (
                False,
                f"saltcellar_spool: unknown key {', '.join(sorted(unknown))}; there are {', '.join(_OWN)}",
            )

    values = _values(config)
    for key in (*_OWN, "interval"):
        value = values.get(key)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0
        ):
            return False, f"saltcellar_spool: {key} must be a number from 0, not {value!r}"

    _validated["interval"] = values.get("interval")
    return True, "valid"


def beacon(config):
    """
    Report the spool if it is beyond the limits.
    """
    values = _values(config)
    if not _is_due(values):
        return []

    spool = client.get_client(
        loaders.variable(globals(), "__opts__"), loaders.variable(globals(), "__salt__")
    ).spool
    waiting = spool.waiting()
    is_lost = waiting["lost"] != _reported.get(spool.directory, spool.reported())
    too_old = waiting["entries"] and waiting["oldest_s"] >= values.get("age", AGE_S)
    too_many = values.get("bytes") is not None and waiting["bytes"] > values["bytes"]
    if not (too_old or too_many or is_lost):
        return []

    if is_lost:
        # On disk, so that neither a refresh of the beacons nor a restart of the minion reports or
        # hides them again.
        try:
            spool.set_reported(waiting["lost"])
            _reported.pop(spool.directory, None)
        except OSError:
            _reported[spool.directory] = waiting["lost"]
    return [waiting]


def _values(config):
    values = {}
    for item in config:
        values.update(item)
    return values


def _is_due(values):
    """Whether Salt observes a configured ``interval``, or the default one has passed."""
    if _validated.pop("interval", None):
        return True

    context = loaders.variable(globals(), "__context__")
    now, key = time.monotonic(), f"{__virtualname__}.{values.get('_beacon_name', __virtualname__)}"
    if context is None or now >= context.get(key, 0):
        if context is not None:
            context[key] = now + INTERVAL_S
        return True
    return False
