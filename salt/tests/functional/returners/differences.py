"""
Every intended difference between ``local_cache`` and ``saltcellar``, with its reason. ``test_local_cache_answers.py`` fails on any
other difference, and on a listed one that no longer occurs.

A difference is a function of the query, both answers and the state of the world. It returns both answers without the difference.
The first line of its docstring describes the difference, the rest gives the reason.
"""

ALL = {}


def difference(function):
    """Registers a difference under its function's name."""
    ALL[function.__name__] = function
    return function


class Missing:
    """Placeholder for a value that a difference removes from the comparison."""

    def __repr__(self):
        return "<differs as intended>"

    def __eq__(self, other):
        return isinstance(other, Missing)

    __hash__ = object.__hash__


MISSING = Missing()

#: Keys of a load in a listing.
LISTED = ("Function", "Arguments", "Target", "Target-type", "User", "Metadata")


def _rows(ask, theirs, ours):
    """Pairs of both rows of each job by jid, to be changed in place."""
    if ask.function == "get_jids":
        return {jid: (theirs[jid], ours[jid]) for jid in theirs if jid in ours}
    if ask.function == "get_jids_filter":
        found = {row["JID"]: row for row in ours}
        return {row["JID"]: (row, found[row["JID"]]) for row in theirs if row["JID"] in found}
    return {}


def _without_minions(theirs, ours):
    """Both loads without the minions; ours must contain all of theirs."""
    one, other = theirs.get("Minions", ()), ours.get("Minions", ())
    assert MISSING in (one, other) or set(one) <= set(other), "ours contains all of theirs"
    return dict(theirs, Minions=MISSING), dict(ours, Minions=MISSING)


@difference
def there_is_an_answer(ask, theirs, ours, world):
    """
    Queries always return a response.

    ``local_cache`` raises if a job has no list of minions (a return or load without ``tgt``), if a jid looks like an invalid time, and
    if the job does not exist.
    """
    if type(theirs).__name__ == "Raised" and type(ours).__name__ != "Raised":
        return MISSING, MISSING
    return theirs, ours


@difference
def the_first_publish_stays(ask, theirs, ours, world):
    """
    The first of several loads published under one jid is shown.

    ``local_cache`` keeps the last one, so a jid used twice, or a syndic's copy of the load, replaces the original publish.
    The minions of all loads count.
    """
    if ask.function == "get_load" and ask.jid in world.republished:
        keep = lambda load: {"Minions": load.get("Minions", MISSING)}
        return keep(theirs), keep(ours)
    for jid, pair in _rows(ask, theirs, ours).items():
        if jid in world.republished:
            for row in pair:
                row.update(dict.fromkeys(LISTED, MISSING))
    if ask.function == "get_jids_filter" and world.republished and ask.args[1:] != (False,):
        # The load that counts decides whether the job is `saltutil.find_job`.
        drop = lambda rows: [row for row in rows if row["JID"] not in world.republished]
        if len(theirs) < ask.args[0] and len(ours) < ask.args[0]:
            return drop(theirs), drop(ours)
        return MISSING, MISSING
    return theirs, ours


@difference
def a_job_of_a_minion_alone_has_it_as_target(ask, theirs, ours, world):
    """
    The target of a job that a minion ran on its own is the minion, with the arguments that it reports.

    ``local_cache`` lists ``unknown-target`` and no arguments, because the return that is the job's load has neither ``tgt`` nor ``arg``.
    """
    for their, our in _rows(ask, theirs, ours).values():
        if their.get("Target") == "unknown-target" and our.get("Target") not in (
            None,
            "unknown-target",
        ):
            for row in (their, our):
                row.update(Target=MISSING, Arguments=MISSING)
    return theirs, ours


@difference
def targets_are_not_matched_again(ask, theirs, ours, world):
    """
    The minions of a load that was saved without minions are unknown.

    ``local_cache`` matches the target against the accepted keys at that moment, in the saving process. The master's own publish
    always contains its minions; loads of ``salt-ssh`` and syndics do not, and there the keys are those of other machines.
    """
    if ask.function != "get_load" or ask.jid not in world.without_minions:
        return theirs, ours
    return dict(theirs, Minions=MISSING), dict(ours, Minions=MISSING)


@difference
def minions_count_without_a_target(ask, theirs, ours, world):
    """
    The minions of a publish are stored, with or without a ``tgt``.

    ``local_cache`` checks ``tgt`` first, and stores no list if it is missing or empty.
    """
    if ask.function != "get_load" or ask.jid not in world.without_target:
        return theirs, ours
    return _without_minions(theirs, ours)


@difference
def minions_add_up(ask, theirs, ours, world):
    """
    Minions reported for a job a second time are added.

    3006 and 3007 replace the list with that of the last syndic or batch; 3008 adds, as we do.
    """
    if world.release >= (3008,) or ask.function != "get_load" or ask.jid not in world.minions_twice:
        return theirs, ours
    return _without_minions(theirs, ours)


@difference
def a_return_is_enough_to_know_a_job(ask, theirs, ours, world):
    """
    A return without ``prep_jid`` is stored, and is the job's load until a publish arrives.

    ``local_cache`` drops it and logs an inconsistency. Returns sent directly by a minion (``--return``) have no ``prep_jid``.
    """
    only = world.only_returned()
    if ask.function == "get_load" and ask.jid in only:
        return MISSING, MISSING
    if ask.function == "get_jid":
        keep = lambda answer: {
            m: ret for m, ret in answer.items() if (ask.jid, m) not in world.dropped
        }
        return keep(theirs), keep(ours)
    if ask.function == "get_jids":
        keep = lambda rows: {jid: row for jid, row in rows.items() if jid not in only}
        return keep(theirs), keep(ours)
    if ask.function == "get_jids_filter" and only:
        return MISSING, MISSING
    return theirs, ours


@difference
def every_return_is_stored(ask, theirs, ours, world):
    """
    A second return of a job that was published without a target is stored, with its end time.

    ``_store_job`` requests the load from ``local_cache``, which raises without a list of minions: all but the first return of
    such a job are lost.
    """
    if ask.function == "get_jid":
        # `local_cache` has no return of such a minion, or a later one.
        keep = lambda answer: {
            m: ret for m, ret in answer.items() if (ask.jid, m) not in world.lost
        }
        return keep(theirs), keep(ours)
    lost = {jid for jid, _ in world.lost}
    if ask.function == "get_endtime" and ask.jid in lost:
        return MISSING, MISSING
    for jid, pair in _rows(ask, theirs, ours).items():
        if jid in lost:
            for row in pair:
                row.pop("EndTime", None)
    return theirs, ours


@difference
def jids_that_are_no_time_come_first(ask, theirs, ours, world):
    """
    A jid without a time is older than all jids with a time; the order of such jids is undefined.

    ``local_cache`` sorts by text. A listing of the newest jobs needs their time, and such a jid has none.
    """
    if ask.function != "get_jids_filter" or not world.made_up:
        return theirs, ours
    if len(theirs) < ask.args[0] and len(ours) < ask.args[0]:
        by_jid = lambda rows: sorted(rows, key=lambda row: row["JID"])
        return by_jid(theirs), by_jid(ours)
    return MISSING, MISSING


@difference
def the_end_is_shown_where_it_is_known(ask, theirs, ours, world):
    """
    A listing has ``EndTime`` for each job with a known end.

    ``local_cache`` checks ``job_cache_store_endtime`` at the query, and hides stored end times once the option is off.
    """
    if ask.function == "get_jids":
        for jid, (one, other) in _rows(ask, theirs, ours).items():
            if not world.opts.get("job_cache_store_endtime"):
                other.pop("EndTime", None)
    return theirs, ours


@difference
def the_newest_jobs_have_their_end_too(ask, theirs, ours, world):
    """
    ``get_jids_filter`` has ``EndTime``, as ``get_jids`` does.

    ``local_cache`` omits it there, for no apparent reason; ``jobs.list_jobs_filter`` shows it if present.
    """
    if ask.function == "get_jids_filter":
        for row in ours:
            row.pop("EndTime", None)
    return theirs, ours


@difference
def nothing_hangs_on_what_returner_gives(ask, theirs, ours, world):
    """
    ``returner`` returns ``None``, also for a second return of one minion.

    ``local_cache`` returns False then, which Salt ignores; ours is stored as history.
    """
    return (None, None) if ask.function == "returner" else (theirs, ours)


@difference
def nocache_counts_from_the_first_word(ask, theirs, ours, world):
    """
    A job prepared with ``nocache`` shows no returns, regardless of the order of calls.

    ``local_cache`` shows returns from before the mark. Salt sets it when it creates the jid, before any return.
    """
    if ask.function == "get_jid" and ask.jid in world.nocache_late:
        return MISSING, MISSING
    return theirs, ours
