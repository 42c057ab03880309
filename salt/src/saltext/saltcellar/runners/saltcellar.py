"""
Look up jobs, events and reactions in saltcellar, and copy jobs from and to other returners.

.. versionadded:: 0.1.0

:depends: the saltcellar daemon, running on the same host

What the command ``saltcellar`` shows, as functions of Salt: also through salt-api, with the
permissions of ``external_auth`` (``@runner``). The settings are those of the returner
``saltcellar``. Times are given in UTC, as for the command with ``--utc``: ``2h`` (ago),
``yesterday 14:00``, ``2026-11-21T10:00:00``, or as seconds since 1970.

Holding, replaying and importing need the right ``admin`` of the daemon, which the master's user
has.
"""

import json
import os
import subprocess

from salt.exceptions import CommandExecutionError
from salt.exceptions import SaltInvocationError

from saltext.saltcellar.utils import calls
from saltext.saltcellar.utils import loaders
from saltext.saltcellar.utils import settings
from saltext.saltcellar.utils import transfer
from saltext.saltcellar.utils import trusted

__virtualname__ = "saltcellar"

#: Seconds that ``saltcellar doctor`` may take.
DOCTOR_TIMEOUT_S = 120


def __virtual__():
    reason = settings.unsupported(__opts__)
    return (False, reason) if reason else __virtualname__


def _opts():
    return loaders.variable(globals(), "__opts__")


def _failed():
    """Let ``salt-run`` end with 1."""
    loaders.variable(globals(), "__context__")["retcode"] = 1


def _ask(call, **args):
    return calls.readable(calls.ask(settings.from_opts(_opts()), call, **args))


def _known(jid, found):
    """What the daemon knows of a job. ``null`` means that there is no such job."""
    if found is None:
        raise CommandExecutionError(
            f"there is no job {jid}; `salt-run saltcellar.jobs` lists the stored ones"
        )
    return found


def _jid(jid):
    return None if jid is None else str(jid)


def status():
    """
    Show the status of the daemon, its sources and its store.

    CLI Example:

    .. code-block:: bash

        salt-run saltcellar.status
    """
    return _ask("status")


def doctor():
    """
    Diagnose the daemon, the master and the extension, as ``saltcellar doctor`` does.

    The exit code is 1 if a check found a problem.

    CLI Example:

    .. code-block:: bash

        salt-run saltcellar.doctor
    """
    try:
        program = trusted.program("saltcellar")
    except trusted.Untrusted as exc:
        raise CommandExecutionError(
            f"`saltcellar` is not run, because another user could replace it: {exc}"
        ) from exc
    if not program:
        raise CommandExecutionError(
            "there is no program `saltcellar` in PATH of this process: "
            "install it on this host, or add its directory to PATH"
        )
    command = [
        program,
        "--socket",
        settings.from_opts(_opts()).socket,
        "--output",
        "json",
        "doctor",
    ]
    command += ["--salt-config", os.path.dirname(_opts()["conf_file"])]
    try:
        # Root or the user of this process owns the program, see `trusted`.
        done = subprocess.run(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DOCTOR_TIMEOUT_S,
            check=False,
        )
        answer = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError) as exc:
        raise CommandExecutionError(f"cannot run {program}: {exc}; run it in a shell") from exc
    except ValueError as exc:
        shown = done.stderr.decode("utf-8", "replace")[-1000:]
        raise CommandExecutionError(
            f"{program} doctor ended with exit code {done.returncode}: {shown or 'no output; run it in a shell'}"
        ) from exc
    if done.returncode:
        _failed()
    return answer


def jobs(
    limit=20,
    user=None,
    fun=None,
    tgt=None,
    minion=None,
    result=None,
    metadata=None,
    since=None,
    until=None,
    before=None,
    cursor=None,
    include_polling=False,
):
    """
    List jobs, newest first.

    limit
        the most jobs of a page
    user
        only jobs of this user, such as ``sudo_alice``
    fun, tgt
        only jobs whose function, or target, matches this glob
    minion
        only jobs that this minion returned, or was expected to
    result
        ``failed``, ``succeeded``, ``missing``, ``unknown`` or ``changed``; with ``minion`` its
        result
    metadata
        only jobs with this metadata: a map of keys to globs
    since, until
        only jobs that started in this time
    before
        only jobs before this one
    cursor
        the ``next`` of the page before
    include_polling
        also jobs of ``saltutil.find_job``

    CLI Example:

    .. code-block:: bash

        salt-run saltcellar.jobs since=2h result=failed
        salt-run saltcellar.jobs fun='state.*' minion=web1 limit=5
    """
    return _ask(
        "jobs_list",
        limit=limit,
        user=user,
        fun=fun,
        tgt=tgt,
        minion=minion,
        result=result,
        metadata=metadata,
        since=calls.micros(since),
        until=calls.micros(until),
        before=_jid(before),
        cursor=cursor,
        include_polling=include_polling,
    )


def job(jid, limit=None, after=None, minion=None, result=None):
    """
    Show a job: its target, returns and missing minions. An unknown job is an error.

    limit
        the most rows of a page
    after
        only minions after this one: the last one of the page before
    minion
        only minions that match this glob
    result
        only returns that are ``failed``, ``succeeded`` or ``changed``

    CLI Example:

    .. code-block:: bash

        salt-run saltcellar.job 20261121031037359479 result=failed
    """
    about = {"limit": limit, "after": after, "minion": minion, "result": result}
    return _known(jid, _ask("job_show", jid=_jid(jid), **about))


def missing(jid=None, since=None, limit=20):
    """
    List the minions that have not returned a job; without a jid, recent jobs with such minions.

    since
        without a jid: only jobs since this time
    limit
        without a jid: the most jobs

    CLI Example:

    .. code-block:: bash

        salt-run saltcellar.missing 20261121031037359479
        salt-run saltcellar.missing since=1d
    """
    if jid is None:
        return jobs(result="missing", since=since, limit=limit)
    return job(jid, limit=1)["missing"]


def diff(jid, other=None, limit=None, after=None, minion=None):
    """
    Compare a job with an earlier run. An unknown job is an error.

    other
        the jid of the earlier run; by default the run before it with the same function and target
    limit
        the most rows of a page
    after
        only minions after this one: the last one of the page before
    minion
        only minions that match this glob

    CLI Example:

    .. code-block:: bash

        salt-run saltcellar.diff 20261121031037359479
    """
    return _ask(
        "job_diff", jid=_jid(jid), limit=limit, after=after, minion=minion, **{"with": _jid(other)}
    )


def states(jid, limit=None, after=None, minion=None, id_=None, fun=None, sls=None, result=None):
    """
    List the states of a job. An unknown job is an error.

    limit
        the most rows of a page
    after
        only minions after this one: the last one of the page before
    minion
        only minions that match this glob
    ``id_``, fun, sls
        only states whose ID, function, or SLS file matches this glob
    result
        ``succeeded``, ``failed``, ``none`` or ``changed``

    CLI Example:

    .. code-block:: bash

        salt-run saltcellar.states 20261121031037359479 result=failed
    """
    about = {"minion": minion, "id": id_, "fun": fun, "sls": sls, "result": result}
    return _known(jid, _ask("job_states", jid=_jid(jid), limit=limit, after=after, **about))


def events(
    limit=20,
    tag=None,
    jid=None,
    minion=None,
    since=None,
    until=None,
    before=None,
    cursor=None,
    match=None,
    search=None,
    where=None,
    newest_first=True,
):
    """
    List events, newest first.

    limit
        the most events of a page
    jid, minion
        only events of this job, or of minions that match this glob
    since, until
        only events of this time
    tag
        only tags that match this glob
    before
        only events before this sequence number
    cursor
        the ``next`` of the page before
    match
        alternatives as in ``match`` of a sink: ``[{"tag": GLOB, "fun": GLOB}]``
    search
        only events with this text in their data
    where
        only events for which this expression over ``tag`` and ``data`` is true
    newest_first
        with ``False``, the oldest event first

    CLI Example:

    .. code-block:: bash

        salt-run saltcellar.events tag='salt/minion/*/start' since=1d
        salt-run saltcellar.events search='Permission denied' limit=5
    """
    return _ask(
        "events_list",
        limit=limit,
        tag=tag,
        jid=_jid(jid),
        minion=minion,
        since=calls.micros(since),
        until=calls.micros(until),
        before=before,
        cursor=cursor,
        match=match,
        search=search,
        where=where,
        newest_first=newest_first,
    )


def why(tag):
    """
    Show the reactor's rules that match a tag, and the latest reactions to it.

    CLI Example:

    .. code-block:: bash

        salt-run saltcellar.why salt/minion/web1/start
    """
    return _ask("reactor_why", tag=tag)


def replay(seq, include_done=False, render=False):
    """
    Repeat the dead-lettered calls of a reaction.

    seq
        the number of the reaction, or of the event
    include_done
        also repeat calls that were made
    render
        render the rules of the event again

    CLI Example:

    .. code-block:: bash

        salt-run saltcellar.replay 18234
    """
    return _ask("reactor_replay", seq=seq, include_done=include_done, render=render)


def hold(jid=None, reason="", release=False):
    """
    Keep a job beyond retention, or release it; without a jid, list the held jobs.

    reason
        why it is kept, for those who read the list
    release
        end the hold

    CLI Example:

    .. code-block:: bash

        salt-run saltcellar.hold 20261121031037359479 reason='incident 17'
        salt-run saltcellar.hold 20261121031037359479 release=True
        salt-run saltcellar.hold
    """
    if jid is None:
        return _ask("store_holds")
    if release:
        return _ask("store_hold", jid=_jid(jid), release=True)
    if not reason:
        raise SaltInvocationError("hold needs a reason, such as reason='incident 17'")
    return _ask("store_hold", jid=_jid(jid), reason=str(reason))


def import_from(returner, start=None):
    """
    Copy the jobs of another returner into saltcellar: loads, returns, end times.

    Entries that saltcellar has are not stored again. An interrupted import continues where it
    stopped; ``start``, a jid, overrides that. Jobs get the time of their jid, so retention may delete
    old ones immediately.

    CLI Example:

    .. code-block:: bash

        salt-run saltcellar.import_from pgjsonb
    """
    source = transfer.Returner(returner, _opts(), ("get_jids", "get_load", "get_jid"))
    with source, calls.Link(settings.from_opts(_opts())) as link:
        target = transfer.Daemon(link, _opts())
        return _ended(
            transfer.copy(source, target, f"import-{returner}", _opts(), _progress, start)
        )


def export_to(returner, start=None, events=False):  # pylint: disable=redefined-outer-name
    """
    Copy the jobs of saltcellar into another returner.

    Jobs and returns that the returner has are not stored again. An interrupted export continues
    where it stopped; ``start``, a jid, overrides that.

    events
        also copy all events, by the returner's ``event_return``. Repeating a complete copy stores
        them again

    CLI Example:

    .. code-block:: bash

        salt-run saltcellar.export_to local_cache
        salt-run saltcellar.export_to pgjsonb events=True
    """
    needed = ("save_load", "returner", "get_load", "get_jid") + (
        ("event_return",) if events else ()
    )
    target = transfer.Returner(returner, _opts(), needed)
    with target, calls.Link(settings.from_opts(_opts())) as link:
        source = transfer.Daemon(link, _opts())
        result = transfer.copy(source, target, f"export-{returner}", _opts(), _progress, start)
        if events:
            name = f"export-events-{returner}"
            result["events"] = transfer.copy_events(source, target, name, _opts(), _progress)
    return _ended(result)


def _ended(result):
    if result["skipped"]:
        _failed()
    return result


def _progress(text):
    """Show a string on the terminal of ``salt-run``."""
    event = globals().get("__jid_event__")
    if event is not None:
        event.fire_event({"message": f"saltcellar: {text}"}, "progress")
