"""
Keep jobs and events in saltcellar.

.. versionadded:: 0.1.0

saltcellar is a daemon beside the master that stores jobs, their returns and every event, and
answers for them. This module is how Salt reaches it, over a unix socket: as the master's job
cache, as its event returner, or as a returner of minions, which reach it over HTTPS from other machines.

:depends: the saltcellar daemon, running on the same machine; or, on a minion, at ``saltcellar.url``

In the master's configuration:

.. code-block:: yaml

    master_job_cache: saltcellar
    event_return: saltcellar

Nothing else is needed. These are the settings, with their defaults; they may also be written as one
map ``saltcellar:`` without the prefix, and on a minion they may come from pillar or grains.

.. code-block:: yaml

    # Where the daemon listens. If this is not there, a user other than root takes
    # saltcellar/saltcellar.sock in $XDG_RUNTIME_DIR or else in ~/.local/state. The environment
    # variable SALTCELLAR_SOCKET wins over all.
    saltcellar.socket: /run/saltcellar/saltcellar.sock
    # The user that the daemon runs as. Unset: root, the user of this process, or the owner of the socket's directory.
    saltcellar.daemon_user: saltcellar
    # Seconds that a call may take before the daemon counts as away.
    saltcellar.timeout: 2
    # The same for calls that list all jobs.
    saltcellar.listing_timeout: 30
    # Where entries wait while the daemon is away.
    saltcellar.spool_dir: /var/cache/salt/master/saltcellar
    # How many bytes may wait there. What does not fit is counted and logged, and lost.
    saltcellar.spool_bytes_max: 268435456
    # For how many seconds an entry may wait there; counted, logged and lost likewise.
    saltcellar.spool_age_max: 604800
    # get_jid and get_fun give whole returns, as returners for databases do: mysql, pgjsonb, redis.
    saltcellar.full_ret: False

On a minion of another machine:

.. code-block:: yaml

    # The daemon's HTTPS door, instead of the socket.
    saltcellar.url: https://master:4580
    # Who vouches for its certificate. What the system trusts, unless set.
    saltcellar.ca: /etc/salt/pki/saltcellar-ca.pem
    # Where minion.pem is, which signs what is sent. Salt's own setting, unless set.
    saltcellar.pki_dir: /etc/salt/pki/minion

How long jobs are kept is Salt's own setting, ``keep_jobs_seconds`` (24 hours; 0 is for ever): the master's maintenance
passes it on. The daemon's configuration may say otherwise, by function if need be (``store.classes``).

While the daemon is away jobs are sent and run as always: jids are made here, and what there is to
store waits in the spool until the daemon is back.

To use it for single jobs, ask for it:

.. code-block:: bash

    salt '*' test.ping --return saltcellar

Other settings for a single job, under ``alternative.saltcellar.socket`` and so on in the minion's
configuration, are chosen with ``--return_config alternative``. ``--return_kwargs '{timeout: 5}'`` sets those that
the minion's own configuration lets a job set, and without it none: whoever may run ``test.ping`` should not choose what root writes where.

.. code-block:: yaml

    saltcellar.return_kwargs: [timeout]
"""

from saltext.saltcellar.utils import client

__virtualname__ = "saltcellar"


def __virtual__():
    # Always. A returner that is "not found" leaves a master unable to make a jid.
    return __virtualname__


def _opts():
    """
    The options of the loader that this call came through.

    Since 3008 all loaders of a process share one module, and its ``__opts__`` are those of the loader that loaded it last: of
    another configuration, where a process has more than one.
    """
    try:
        return __salt_loader__.loader().pack["__opts__"]
    except (NameError, AttributeError, KeyError):
        # Called from outside any loader.
        return __opts__


def _client(ret=None):
    return client.of(_opts(), globals().get("__salt__"), ret)


def prep_jid(nocache=False, passed_jid=None):
    """
    The jid for a new job: the one passed, or else a new one.
    """
    return _client().prep_jid(_opts(), nocache, passed_jid)


def save_load(jid, clear_load, minions=None):
    """
    Keep the load of a job. Salt calls this for each return as well; the daemon tells them apart.
    """
    _client().save_load(_opts(), jid, clear_load, minions)


def save_minions(jid, minions, syndic_id=None):
    """
    Add minions to those a job is expected back from; ``syndic_id`` says who knows them.
    """
    _client().save_minions(jid, minions, syndic_id)


def returner(load):
    """
    Keep a minion's return.
    """
    _client(load).returner(_opts(), load)


def update_endtime(jid, endtime):
    """
    Keep when a job ended; the last one wins.
    """
    _client().update_endtime(jid, endtime)


def get_endtime(jid):
    """
    When a job ended, or False.
    """
    return _client().read("get_endtime", {"jid": str(jid)}, False)


def get_load(jid):
    """
    The load of a job with its ``Minions``, or an empty map if there is no such job.
    """
    return _client().get_load(jid)


def get_jid(jid):
    """
    What each minion returned for a job.

    Where saltcellar is not the job cache, a return that was seen on the bus only, which anybody who may fire events can have
    put there, has the key ``bus_only`` beside the others.
    """
    return _client().get_jid(_opts(), jid)


def get_jids():
    """
    All jobs there are, by jid.
    """
    return _client().read("get_jids", {}, {}, listing=True)


def get_jids_filter(count, filter_find_job=True):
    """
    The newest ``count`` jobs, oldest first; without ``saltutil.find_job`` unless told otherwise.
    """
    args = {"count": count, "filter_find_job": bool(filter_find_job)}
    return _client().read("get_jids_filter", args, [], listing=True)


def get_fun(fun):
    """
    The last jid of a function, by minion; with ``saltcellar.full_ret`` what was returned for it.
    """
    return _client().get_fun(_opts(), fun)


def get_minions():
    """
    All minions that ever returned something.
    """
    return _client().get_minions(_opts())


def clean_old_jobs():
    """
    Tell the daemon how long to keep jobs. Called by the master's maintenance.
    """
    _client().tidy(_opts())


def event_return(events):
    """
    Keep events off the master's bus.
    """
    _client().event_return(events)


def save_reg(data):
    """
    Keep Thorium's register.
    """
    _client().write("save_reg", {"data": data})


def load_reg():
    """
    Thorium's register as last kept, or None.
    """
    return _client().read("load_reg", {}, None)
