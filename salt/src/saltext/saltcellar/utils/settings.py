"""
The extension's settings from Salt's configuration, and their defaults.

Keys may be written flat (``saltcellar.socket: PATH``) or as a map (``saltcellar: {socket: PATH}``); the
flat form has precedence. The environment variable ``SALTCELLAR_SOCKET`` overrides both.
"""

import collections.abc
import logging
import os

import salt.returners

log = logging.getLogger(__name__)

NAME = "saltcellar"
SYSTEM_SOCKET = "/run/saltcellar/saltcellar.sock"

DEFAULT_PKI_DIR = "/etc/salt/pki/minion"
#: Default timeout of a call over a network, in seconds.
URL_TIMEOUT = 10.0

#: Key, the type it must have, the value when unset.
KEYS = {
    "socket": (str, None),
    "timeout": (float, 2.0),
    "listing_timeout": (float, 30.0),
    "spool_dir": (str, None),
    "spool_bytes_max": (int, 256 * 1024 * 1024),
    "spool_age_max": (int, 7 * 86400),
    "url": (str, None),
    "ca": (str, None),
    "pki_dir": (str, None),
    "full_ret": (bool, False),
    "return_kwargs": (list, ()),
    "daemon_user": (str, None),
    "reactor_fallback": (bool, False),
}

#: The options that :func:`cache_key` reads.
_KEY_OPTIONS = (NAME, "__role", "cachedir", *(f"{NAME}.{key}" for key in KEYS))


class Settings:
    """
    Checked settings, one attribute for each of :data:`KEYS`.

    Besides: ``address``, the ``url`` of a daemon on another machine or else the ``socket``, and ``minion_id``, the
    signer of batches sent there.
    """

    def __init__(self, minion_id=None, **values):
        for key, (kind, default) in KEYS.items():
            setattr(self, key, _checked(key, kind, values.get(key), default))
        if self.url and "timeout" not in values:
            self.timeout = URL_TIMEOUT
        self.url = None if os.environ.get("SALTCELLAR_SOCKET") else self.url
        self.pki_dir = self.pki_dir or DEFAULT_PKI_DIR
        self.minion_id = str(minion_id or "")
        self.socket = os.environ.get("SALTCELLAR_SOCKET") or self.socket or default_socket()
        self.address = self.url or self.socket
        self.spool_dir = self.spool_dir or default_spool_dir(None)


def default_socket():
    """
    The default socket.

    Root: ``/run/saltcellar/saltcellar.sock``. Other users: the same if it exists (a master with a user of its
    own), otherwise ``saltcellar/saltcellar.sock`` in ``$XDG_RUNTIME_DIR`` if that is set, otherwise in
    ``$XDG_STATE_HOME`` (``~/.local/state``).
    """
    if os.geteuid() == 0 or os.path.exists(SYSTEM_SOCKET):
        return SYSTEM_SOCKET
    return os.path.join(os.environ.get("XDG_RUNTIME_DIR") or _state_home(), NAME, "saltcellar.sock")


def default_spool_dir(cachedir):
    """The default spool: beside Salt's own cache, or in the user's state directory."""
    if cachedir and isinstance(cachedir, str):
        return os.path.join(cachedir, NAME)
    return os.path.join(_state_home(), NAME, "spool")


def from_opts(opts, functions=None, ret=None):
    """
    The settings in ``opts``; on a minion also those in its pillar and grains.

    ``functions`` is the loader's ``__salt__``, ``ret`` the present return, for its ``ret_config`` and
    ``ret_kwargs``. The sender of the job chooses the latter, and may be allowed to run ``test.ping`` only, so it must
    not control the files that root writes: only keys in ``return_kwargs`` are accepted.
    """
    section = opts.get(NAME)
    values = dict(section) if isinstance(section, collections.abc.Mapping) else {}
    values.update({key: opts[f"{NAME}.{key}"] for key in KEYS if f"{NAME}.{key}" in opts})
    if opts.get("__role") == "minion" and functions is not None:
        values.update(_minion_values(opts, functions, ret))
        values.update(_kwargs(values.get("return_kwargs"), ret))
    if not values.get("spool_dir"):
        values["spool_dir"] = default_spool_dir(opts.get("cachedir"))
    if not values.get("pki_dir"):
        values["pki_dir"] = opts.get("pki_dir")
    return Settings(opts.get("id"), **{key: values[key] for key in KEYS if key in values})


def cache_key(opts):
    """
    A hashable key of all values that :func:`from_opts` reads; ``None`` if the result depends on more than ``opts``.

    On a minion it reads pillar and grains, and the default socket depends on existing files.
    """
    socket = os.environ.get("SALTCELLAR_SOCKET")
    # Runs for each call on 3006 and 3007, so one pass over the options.
    values = tuple(map(opts.get, _KEY_OPTIONS))
    section, role, cachedir, *flat = values
    if not (socket or flat[0] or os.geteuid() == 0) or role == "minion":
        return None
    found = (socket, cachedir, *flat)
    if isinstance(section, collections.abc.Mapping):
        found += tuple(section.items())
    found = tuple(tuple(value) if isinstance(value, list) else value for value in found)
    try:
        hash(found)
    except TypeError:
        return None
    return found


def _minion_values(opts, functions, ret):
    profile = ret.get("ret_config") if isinstance(ret, collections.abc.Mapping) else None
    try:
        return salt.returners.get_returner_options(
            NAME,
            {"ret_config": profile} if profile else None,
            {key: key for key in KEYS},
            __salt__=functions,
            __opts__=opts,
        )
    except Exception as exc:  # pylint: disable=broad-except
        log.debug("saltcellar: no settings from pillar or grains: %s", exc)
        return {}


def _kwargs(allowed, ret):
    """The permitted part of a job's ``ret_kwargs``."""
    kwargs = ret.get("ret_kwargs") if isinstance(ret, collections.abc.Mapping) else None
    if not kwargs or not isinstance(kwargs, collections.abc.Mapping):
        return {}
    allowed = _checked("return_kwargs", list, allowed, ())
    known = {key: value for key, value in kwargs.items() if key in KEYS and key != "return_kwargs"}
    left = sorted(key for key in known if key not in allowed)
    if left:
        log.warning("saltcellar: a job must not set %s, see saltcellar.return_kwargs", ", ".join(left))
    return {key: value for key, value in known.items() if key in allowed}


def _checked(key, kind, value, default):
    if value is None or value == "":
        return default
    if kind in (bool, list):
        if isinstance(value, kind):
            return value
        log.error("saltcellar.%s: %r is not a %s, using the default %r", key, value, kind.__name__, default)
        return default
    try:
        value = kind(value)
    except (TypeError, ValueError):
        log.error("saltcellar.%s: invalid value %r, using the default %r", key, value, default)
        return default
    if kind is not str and not 0 < value < 1e15:
        log.error("saltcellar.%s: %r is not above zero, using the default %r", key, value, default)
        return default
    return value


def _state_home():
    return os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
