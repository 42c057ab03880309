"""
What is stored of a call that is too large: everything but the value that makes it so.
"""

import typing

#: The beginning of the note that replaces the value of a return.
TOO_LARGE = "saltcellar: this value was too large to be stored"

Args = dict[str, typing.Any]


def parts(args: Args, refusal: Exception) -> list[Args]:
    """
    The arguments of smaller calls that store what a call that is too large cannot; empty if there
    are none.

    A list of events becomes two. A return keeps everything but its value: the minion has returned.
    """
    events = args.get("events", ())
    half = len(events) // 2
    if half:
        first, second = dict(args, events=events[:half]), dict(args, events=events[half:])
        # The events of a replayed list have times from its `at` on, a microsecond apart.
        if isinstance(args.get("at"), int):
            second["at"] = args["at"] + half
        return [first, second]

    if len(events) == 1:
        event = events[0]
        data = _without_value(event.get("data"), refusal) if isinstance(event, dict) else None
        return [dict(args, events=[dict(event, data=data)])] if data else []

    load = _without_value(args.get("load"), refusal)
    return [dict(args, load=load)] if load else []


def _without_value(load: typing.Any, refusal: Exception) -> Args | None:
    """A return with a note in place of its value; ``None`` if it has no value, or the note already."""
    if not isinstance(load, dict) or "return" not in load:
        return None
    if isinstance(load["return"], str) and load["return"].startswith(TOO_LARGE):
        return None
    return dict(load, **{"return": f"{TOO_LARGE}: {refusal}"})


def about(call: str, args: Args) -> str:
    """A call, and what it is about, for a log message."""
    events = args.get("events")
    first = events[0] if isinstance(events, (list, tuple)) and events else None
    of_event = first.get("data") if isinstance(first, dict) and len(args["events"]) == 1 else None
    found = [one for one in (args, args.get("load"), of_event) if isinstance(one, dict)]
    jid = next((one["jid"] for one in found if one.get("jid")), None)
    minion = next((one["id"] for one in found if one.get("id")), None)
    if jid:
        of = f" of {_shown(minion)}" if minion else ""
        return f"{call}{of} for job {_shown(jid)}"
    if isinstance(first, dict):
        return f"{call} (events: {len(args['events'])}, first tag: {_shown(first.get('tag'))})"
    return call


def _shown(value: typing.Any) -> str:
    """A value of a minion: short, and on one line."""
    return ascii(str(value)[:100])[1:-1]
