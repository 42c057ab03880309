"""
Store jobs and events in saltcellar.

.. versionadded:: 0.1.0

saltcellar is a daemon on the master's host that stores jobs, their returns and every event. This
module connects Salt to it over a unix socket: as the master's job cache, as its event returner, or
as a returner of minions, which use HTTPS from other machines.

:depends: the saltcellar daemon, running on the same host; or, on a minion, at ``saltcellar.url``

In the master's configuration:

.. code-block:: yaml

    master_job_cache: saltcellar
    event_return: saltcellar

Nothing else is needed. These are the settings with their defaults. They may also be written as one
map ``saltcellar:`` without the prefix, and on a minion they may come from pillar or grains.

.. code-block:: yaml

    # The daemon's socket. If this one does not exist, a user other than root uses
    # saltcellar/saltcellar.sock in $XDG_RUNTIME_DIR or else in ~/.local/state. The environment
    # variable SALTCELLAR_SOCKET has precedence.
    saltcellar.socket: /run/saltcellar/saltcellar.sock
    # The user that the daemon runs as. Unset: root, the user of this process, or the owner of the
    # socket's directory.
    saltcellar.daemon_user: saltcellar
    # Timeout of a call, in seconds.
    saltcellar.timeout: 2
    # The same for calls that list all jobs.
    saltcellar.listing_timeout: 30
    # The directory of entries that wait while the daemon is unreachable.
    saltcellar.spool_dir: /var/cache/salt/master/saltcellar
    # Limit of waiting bytes. Entries beyond it are lost, counted and logged.
    saltcellar.spool_bytes_max: 268435456
    # Limit of waiting time, in seconds. Older entries are lost, counted and logged.
    saltcellar.spool_age_max: 604800
    # get_jid and get_fun return whole returns, as returners for databases do: mysql, pgjsonb, redis.
    saltcellar.full_ret: False
    # The engine saltcellar_reactor starts Salt's reactor while the daemon does not answer.
    saltcellar.reactor_fallback: False
    # With several masters, the slot of job ids that are made before this master's daemon has told
    # its own (cluster.slot). Unset: no slot.
    saltcellar.slot: 2/3

On a minion of another machine:

.. code-block:: yaml

    # The daemon's minion listener, instead of the socket.
    saltcellar.url: https://master:4580
    # The CA file for its certificate. Default: the system's certificates.
    saltcellar.ca: /etc/salt/pki/saltcellar-ca.pem
    # The directory of minion.pem, which signs batches. Default: Salt's setting.
    saltcellar.pki_dir: /etc/salt/pki/minion

Jobs are kept for 90 days and never less than Salt's ``keep_jobs_seconds`` (0 is forever), which
the master's maintenance passes on. ``store.classes`` in the daemon's configuration sets another
time, also by function.

While the daemon is unreachable, jobs are published and run as usual: job ids are generated locally,
and entries wait in the spool.

To use it for single jobs:

.. code-block:: bash

    salt '*' test.ping --return saltcellar

Other settings for a single job, under ``alternative.saltcellar.socket`` and so on in the minion's
configuration, are selected with ``--return_config alternative``. ``--return_kwargs '{timeout: 5}'``
sets only keys that the minion's own configuration permits: a user who may run ``test.ping`` must
not control the files that root writes.

.. code-block:: yaml

    saltcellar.return_kwargs: [timeout]
"""

from saltext.saltcellar.utils import client
from saltext.saltcellar.utils import loaders
from saltext.saltcellar.utils import settings

__virtualname__ = "saltcellar"


def __virtual__():
    # Nothing more is checked: a master whose returner is "not found" cannot make a jid.
    why = settings.unsupported(__opts__)
    return (False, why) if why else __virtualname__


def _opts():
    return loaders.variable(globals(), "__opts__")


def _client(ret=None):
    return client.get_client(_opts(), loaders.variable(globals(), "__salt__"), ret)


def prep_jid(nocache=False, passed_jid=None):
    """
    The jid for a new job: the passed one, or a new one.
    """
    return _client().prep_jid(_opts(), nocache, passed_jid)


def save_load(jid, clear_load, minions=None):
    """
    Store the load of a job. Salt calls this for each return as well; the daemon distinguishes them.
    """
    _client().save_load(jid, clear_load, minions)


def save_minions(jid, minions, syndic_id=None):
    """
    Add minions to the expected ones of a job; ``syndic_id`` is the syndic that reported them.
    """
    _client().save_minions(jid, minions, syndic_id)


def returner(load):
    """
    Store a minion's return.
    """
    _client(load).returner(_opts(), load)


def update_endtime(jid, endtime):
    """
    Store the end time of a job; the last one wins.
    """
    _client().update_endtime(jid, endtime)


def get_endtime(jid):
    """
    The end time of a job, or False.
    """
    return _client().read("get_endtime", {"jid": str(jid)}, False)


def get_load(jid):
    """
    The load of a job with its ``Minions``, or an empty map if there is no such job.
    """
    return _client().get_load(_opts(), jid)


def get_jid(jid):
    """
    The returns of a job, by minion, each a map with ``return`` and, if known, ``retcode``,
    ``success`` and ``out``; with ``saltcellar.full_ret`` whole returns, which also have ``id``,
    ``jid``, ``fun`` and ``fun_args``. Raises ``CommandExecutionError`` if the daemon does not answer: an
    empty map would mean that no minion has returned.

    If saltcellar is not the job cache, a return that was seen on the bus only, and may have been
    fired by any client, has the additional key ``bus_only``.
    """
    return _client().get_jid(_opts(), jid)


def get_jids():
    """
    All jobs, by jid.
    """
    return _client().read("get_jids", {}, {}, listing=True)


def get_jids_filter(count, filter_find_job=True):
    """
    The newest ``count`` jobs, oldest first, by default without ``saltutil.find_job``.
    """
    args = {"count": count, "filter_find_job": bool(filter_find_job)}
    return _client().read("get_jids_filter", args, [], listing=True)


def get_fun(fun):
    """
    The last jid of a function, by minion; with ``saltcellar.full_ret`` its whole return, as in
    :func:`get_jid`.
    """
    return _client().get_fun(_opts(), fun)


def get_minions():
    """
    All minions with a stored return.
    """
    return _client().get_minions(_opts())


def clean_old_jobs():
    """
    Pass ``keep_jobs_seconds`` to the daemon. Called by the master's maintenance.
    """
    _client().maintain(_opts())


def event_return(events):
    """
    Store events of the master's bus.
    """
    _client().event_return(events)


def save_reg(data):
    """
    Store Thorium's register.
    """
    _client().write("save_reg", {"data": data})


def load_reg():
    """
    The last stored register of Thorium, or None.
    """
    return _client().read("load_reg", {}, None)
