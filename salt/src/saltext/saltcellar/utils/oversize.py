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


def jid_of(args: Args) -> typing.Any:
    """The job of a call, for a log message."""
    events = args.get("events")
    of_event = (
        events[0].get("data")
        if isinstance(events, list) and len(events) == 1 and isinstance(events[0], dict)
        else None
    )
    found = (args, args.get("load"), of_event)
    return next((one["jid"] for one in found if isinstance(one, dict) and one.get("jid")), None)
