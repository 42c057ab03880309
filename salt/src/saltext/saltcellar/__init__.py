"""The Salt side of saltcellar: a returner that sends jobs and events to the daemon, and consumers of its events."""

from saltext.saltcellar.version import __version__

__all__ = ["__version__", "consumer"]


def consumer(name, match=None, where=None, start="newest", opts=None):
    """
    An iterator over stored events, each at least once and in order, that continues where its last
    process stopped.

    .. code-block:: python

        for event in saltext.saltcellar.consumer("audit", match="salt/auth", opts=__opts__):
            print(event["id"], event["tag"], event["data"])

    See :class:`saltext.saltcellar.utils.consumer.Consumer`.
    """
    # Not at the top: the loader imports this package in processes that need no consumer.
    from saltext.saltcellar.utils import consumer as consumer_

    return consumer_.from_opts(name, match=match, where=where, start=start, opts=opts)
