"""
Report entries that wait in the spool of the returner ``saltcellar``, or were lost.

.. versionadded:: 0.1.0

:depends: the returner ``saltcellar`` on this minion

.. code-block:: yaml

    beacons:
      saltcellar_spool:
        - age: 300          # report if the oldest entry waits longer, in seconds; the default
        - bytes: 1048576    # or if more bytes wait; by default not
        - interval: 60

The event has ``entries``, ``bytes``, ``oldest_s`` and ``lost`` (entries that were not stored, by reason). It is also sent when
entries were lost since the last one.
"""

import salt.utils.beacons
from saltext.saltcellar.utils import client
from saltext.saltcellar.utils import spool as spool_

__virtualname__ = "saltcellar_spool"

#: Age of the oldest entry that is reported, in seconds.
AGE_S = 300

#: Losses of the last report, by directory of the spool.
_lost = {}


def __virtual__():
    return (False, spool_.UNSUPPORTED) if spool_.UNSUPPORTED else __virtualname__


def validate(config):
    """
    Check the configuration.
    """
    if not isinstance(config, (list, dict)):
        return False, "the configuration of saltcellar_spool must be a list or a map"
    config = _config(config)
    for key in ("age", "bytes"):
        value = config.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0):
            return False, f"saltcellar_spool: {key} must be a number from 0, not {value!r}"
    return True, "valid"


def beacon(config):
    """
    Report the spool if it is beyond the limits.
    """
    config = _config(config)
    spool = client.of(__opts__, __salt__).spool
    waiting = spool.waiting()
    before = _lost.setdefault(spool.directory, waiting["lost"])
    _lost[spool.directory] = waiting["lost"]
    too_old = waiting["entries"] and waiting["oldest_s"] >= config.get("age", AGE_S)
    too_many = config.get("bytes") is not None and waiting["bytes"] > config["bytes"]
    return [waiting] if too_old or too_many or waiting["lost"] != before else []


def _config(config):
    return salt.utils.beacons.list_to_dict(config) if isinstance(config, list) else config
