"""
Show and empty the spool of the returner ``saltcellar``, and store values without a job.

.. versionadded:: 0.1.0

:depends: the saltcellar daemon, on this host or at ``saltcellar.url``

The settings are those of the returner ``saltcellar``.
"""

import time

import salt.utils.jid
from salt.exceptions import CommandExecutionError
from salt.exceptions import SaltInvocationError

from saltext.saltcellar.utils import calls
from saltext.saltcellar.utils import client
from saltext.saltcellar.utils import loaders
from saltext.saltcellar.utils import settings
from saltext.saltcellar.utils import wire

__virtualname__ = "saltcellar"

#: Pause between two attempts to empty the spool, in seconds.
PAUSE_S = 0.2


def __virtual__():
    why = settings.unsupported(__opts__)
    return (False, why) if why else __virtualname__


def _opts():
    return loaders.variable(globals(), "__opts__")


def _functions():
    return loaders.variable(globals(), "__salt__")


def _client():
    return client.get_client(_opts(), _functions())


def status():
    """
    Show whether the daemon answers, and the entries that wait in the spool.

    ``error`` is the reason if it does not answer, ``oldest_s`` the age of the oldest entry in
    seconds, ``lost`` the entries that were not stored, by reason. The exit code is 1 if the daemon
    does not answer.

    CLI Example:

    .. code-block:: bash

        salt '*' saltcellar.status
    """
    own = settings.from_opts(_opts(), _functions()).with_short_listings()
    shown = {"address": own.address, "reachable": True, "spool": _client().spool.waiting()}
    try:
        with calls.Link(own) as link:
            (response,) = link.ask_all([("status", {})])
    except CommandExecutionError as exc:
        shown.update(reachable=False, error=str(exc))
        loaders.variable(globals(), "__context__")["retcode"] = 1
        return shown
    # Over HTTPS a minion may not ask for the status. A refusal is a response all the same.
    if not isinstance(response, wire.Refusal):
        shown["version"] = response["version"]
    return shown


def flush(timeout=10):
    """
    Hand the entries in the spool over now, for ``timeout`` seconds at most. Returns what still
    waits.

    The exit code is 1 if entries still wait.

    CLI Example:

    .. code-block:: bash

        salt '*' saltcellar.flush
    """
    own = _client()
    until = time.monotonic() + float(timeout)
    while own.spool.pending() and time.monotonic() < until:
        own.hand_over(until - time.monotonic())
        if own.spool.pending():
            time.sleep(PAUSE_S)
    waiting = own.spool.waiting()
    if waiting["entries"]:
        loaders.variable(globals(), "__context__")["retcode"] = 1
    return waiting


def send(fun, value=None, success=True, retcode=None):
    """
    Store a value as this minion's return of a function, without a job of the master. Returns the
    jid.

    If the daemon does not answer, the value waits in the spool.

    fun
        the name under which the value is found, such as ``backup.nightly``

    CLI Example:

    .. code-block:: bash

        salt-call saltcellar.send backup.nightly '{bytes: 1234}'
        salt-call saltcellar.send backup.nightly 'no space' success=False
    """
    if not isinstance(fun, str) or not fun:
        raise SaltInvocationError(
            f"the name of a function must be a string such as backup.nightly, not {fun!r}"
        )
    opts = _opts()
    jid = salt.utils.jid.gen_jid(opts)
    code = retcode if retcode is not None else (0 if success else 1)
    load = {"id": opts["id"], "jid": jid, "fun": fun, "fun_args": [], "return": value}
    _client().returner(opts, {**load, "success": bool(success), "retcode": int(code)})
    return jid
