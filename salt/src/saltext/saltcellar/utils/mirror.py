"""
Calls of a master of a cluster that store what a peer sent.

Since 3008 two processes of such a master do: ``EventMonitor`` (``salt/master.py``) stores what
peers fired on the bus, ``EventPublisher`` (``salt/channel/server.py``) what they delegated. Nobody
authenticated these returns here: a minion of a peer can fire one for another minion, and have it
delegated.
"""

import multiprocessing
import sys
import types
import typing

#: The processes, by name. A restart gives ``EventPublisher`` the third one.
PROCESSES = frozenset({"EventMonitor", "EventPublisher", "MasterPubServerChannel._publish_daemon"})
#: Calls that name the peer.
NAMING_CALLS = frozenset({"returner", "save_minions"})


def marks(call: str) -> dict[str, typing.Any]:
    """Arguments that mark a call of this process, if it mirrors jobs of peers. The spool keeps them."""
    if multiprocessing.current_process().name not in PROCESSES:
        return {}
    master = _peer() if call in NAMING_CALLS else None
    return {"mirrored": True, "master": master} if master else {"mirrored": True}


def _peer() -> str | None:
    """
    The id of the peer whose event is stored; ``None`` if unknown, as for what a peer delegated.

    Salt removes ``__peer_id`` from the data first, and keeps it only in a variable of
    ``EventMonitor.handle_event``.
    """
    frame: types.FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "handle_event":
        frame = frame.f_back
    master = frame.f_locals.get("peer_id") if frame is not None else None
    return master if isinstance(master, str) else None
