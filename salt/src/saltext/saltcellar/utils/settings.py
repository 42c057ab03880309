"""
The extension's settings from Salt's configuration, and their defaults.

Keys may be written flat (``saltcellar.socket: PATH``) or as a map (``saltcellar: {socket: PATH}``);
the flat form has precedence. The environment variable ``SALTCELLAR_SOCKET`` overrides both.
"""

import collections.abc
import copy
import difflib
import logging
import os
import socket
from typing import Any

import salt.returners

from saltext.saltcellar.utils import jids
from saltext.saltcellar.utils import logs
from saltext.saltcellar.utils import spool

log = logging.getLogger(__name__)

#: Salt's options: a map, of one type or another.
Opts = collections.abc.Mapping[str, Any]

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
    "slot": (str, None),
}

#: Keys that decide where entries go. With an invalid one nothing is sent: entries wait in the spool
#: instead.
DESTINATION = frozenset({"socket", "url", "ca", "pki_dir", "daemon_user", "spool_dir"})

#: Unknown keys that were logged.
_warned: set[str] = set()

#: The options that :func:`cache_key` reads.
_KEY_OPTIONS = (NAME, "__role", "cachedir", *(f"{NAME}.{key}" for key in KEYS))


class Settings:
    """
    Checked settings, one attribute for each of :data:`KEYS`.

    Besides: ``address``, the ``url`` of a daemon on another host or else the ``socket``;
    ``minion_id``, the signer of batches sent there; and ``error``, why the destination is unknown,
    or ``None``. A client whose settings have an ``error`` connects to nothing.
    """

    socket: str
    timeout: float
    listing_timeout: float
    spool_dir: str
    spool_bytes_max: int
    spool_age_max: int
    url: str | None
    ca: str | None
    pki_dir: str
    full_ret: bool
    return_kwargs: collections.abc.Sequence[str]
    daemon_user: str | None
    reactor_fallback: bool
    slot: str | None

    def __init__(
        self, minion_id: Any = None, error: str | None = None, cachedir: Any = None, **values: Any
    ) -> None:
        self.error = error
        for key, (kind, default) in KEYS.items():
            setattr(self, key, self._checked(key, kind, values.get(key), default))
        if self.url and "timeout" not in values:
            self.timeout = URL_TIMEOUT
        self.url = None if os.environ.get("SALTCELLAR_SOCKET") else self.url
        self.pki_dir = self.pki_dir or DEFAULT_PKI_DIR
        self.slot = self._checked_slot(self.slot)
        self.minion_id = str(minion_id or "")
        self.socket = os.environ.get("SALTCELLAR_SOCKET") or self.socket or default_socket()
        self.address = self.url or self.socket
        self.spool_dir = self.spool_dir or default_spool_dir(cachedir)
        if self.error:
            logs.error(
                ("settings", self.error),
                "saltcellar: invalid setting, entries wait in %s until it is corrected and Salt restarted: %s",
                self.spool_dir,
                self.error,
            )

    @property
    def nothing_is_sent(self) -> str:
        """Why a client with an ``error`` connects to nothing."""
        return f"invalid setting, nothing is sent until it is corrected and Salt restarted: {self.error}"

    def with_short_listings(self) -> "Settings":
        """A copy whose calls for lists contain the timeout of other calls."""
        changed = copy.copy(self)
        changed.listing_timeout = self.timeout
        return changed

    def _checked(self, key: str, kind: type, value: Any, default: Any) -> Any:
        try:
            return checked(key, kind, value, default)
        except ValueError as exc:
            if key in DESTINATION:
                self.error = self.error or str(exc)
            else:
                logs.error(
                    ("settings", key),
                    "saltcellar: invalid setting, the default %r applies until it is corrected: %s",
                    default,
                    exc,
                )
            return default

    @staticmethod
    def _checked_slot(text: str | None) -> str | None:
        try:
            if text is not None:
                jids.Slot.parse(text)
        except ValueError as exc:
            logs.error(
                ("settings", "slot"),
                "saltcellar: invalid saltcellar.slot, job ids made while the daemon is unreachable may equal those of "
                "another master: %s",
                exc,
            )
            return None
        return text


def default_socket() -> str:
    """
    The default socket.

    Root: ``/run/saltcellar/saltcellar.sock``. Other users: the same if it exists (a master with a
    user of its own), otherwise ``saltcellar/saltcellar.sock`` in ``$XDG_RUNTIME_DIR`` if that is
    set, otherwise in ``$XDG_STATE_HOME`` (``~/.local/state``).
    """
    if os.geteuid() == 0 or os.path.exists(SYSTEM_SOCKET):
        return SYSTEM_SOCKET
    return os.path.join(os.environ.get("XDG_RUNTIME_DIR") or _state_home(), NAME, "saltcellar.sock")


def default_spool_dir(cachedir: Any) -> str:
    """The default spool: next to Salt's cache, or in the user's state directory."""
    if cachedir and isinstance(cachedir, str):
        return os.path.join(cachedir, NAME)
    return os.path.join(_state_home(), NAME, "spool")


def from_opts(opts: Opts, functions: Any = None, ret: Any = None) -> Settings:
    """
    The settings in ``opts``; on a minion also those in its pillar and grains. Never raises: see
    :class:`Settings`.

    ``functions`` is the loader's ``__salt__``, ``ret`` the present return, for its ``ret_config``
    and ``ret_kwargs``. The sender of the job chooses the latter, and may be allowed to run
    ``test.ping`` only, so it must not control the files that root writes: only keys in
    ``return_kwargs`` are accepted.
    """
    values, error = _section(opts)
    values.update({key: opts[f"{NAME}.{key}"] for key in KEYS if f"{NAME}.{key}" in opts})
    _warn_of_unknown(opts)

    if opts.get("__role") == "minion" and functions is not None:
        try:
            values.update(_minion_values(opts, functions, ret))
        except Exception as exc:  # pylint: disable=broad-except
            # Any function of the minion may be behind this. What it would have said about the
            # destination is unknown.
            error = error or f"cannot read the settings of this minion: {exc}"
        values.update(_kwargs(values.get("return_kwargs"), ret))

    if not values.get("pki_dir"):
        values["pki_dir"] = opts.get("pki_dir")
    return Settings(
        opts.get("id"),
        error,
        opts.get("cachedir"),
        **{key: values[key] for key in KEYS if key in values},
    )


def _section(opts: Opts) -> tuple[dict[str, Any], str | None]:
    """The map ``saltcellar`` of the options, and why it is not one."""
    section = opts.get(NAME)
    if section is None:
        return {}, None
    if not isinstance(section, collections.abc.Mapping):
        return {}, f"{NAME} must be a map of settings, not {section!r}"
    return dict(section), None


def _warn_of_unknown(opts: Opts) -> None:
    """Warn once of keys that do not exist: a mistyped one leaves its default in force."""
    section = opts.get(NAME)
    named = (
        [f"{NAME}.{key}" for key in section] if isinstance(section, collections.abc.Mapping) else []
    )
    named += [key for key in opts if isinstance(key, str) and key.startswith(f"{NAME}.")]

    for name in named:
        key = name.removeprefix(f"{NAME}.")
        if key not in KEYS and name not in _warned:
            _warned.add(name)
            near = difflib.get_close_matches(key, KEYS, 1)
            log.warning(
                "saltcellar: unknown setting %s is ignored: %s",
                name,
                f"did you mean {NAME}.{near[0]}?" if near else "remove it",
            )


def unsupported(opts: Opts) -> str | None:
    """
    Why this system cannot use the extension, for ``__virtual__``; ``None`` if it can.

    Only Linux shows which user serves a unix socket (``SO_PEERCRED``). Elsewhere a minion reaches a
    daemon by ``url``.
    """
    if spool.UNSUPPORTED:
        return spool.UNSUPPORTED
    if hasattr(socket, "SO_PEERCRED") or _names_url(opts):
        return None
    return (
        "saltcellar needs Linux for the daemon's socket: this system does not show which user serves it. "
        f"Set {NAME}.url on a minion to use a daemon on another host"
    )


def _names_url(opts: Opts) -> bool:
    for source in (opts, opts.get("pillar"), opts.get("grains")):
        if isinstance(source, collections.abc.Mapping):
            section = source.get(NAME)
            if source.get(f"{NAME}.url") or (
                isinstance(section, collections.abc.Mapping) and section.get("url")
            ):
                return True
    return False


def cache_key(opts: Opts) -> tuple[Any, ...] | None:
    """
    A hashable key of all values that :func:`from_opts` reads; ``None`` if the result depends on
    more than ``opts``.

    On a minion it reads pillar and grains, and the default socket depends on existing files.
    """
    from_environment = os.environ.get("SALTCELLAR_SOCKET")
    # Runs for each call on 3006 and 3007, so one pass over the options.
    values = tuple(map(opts.get, _KEY_OPTIONS))
    section, role, cachedir, *flat = values
    if not (from_environment or flat[0] or os.geteuid() == 0) or role == "minion":
        return None
    found = (from_environment, cachedir, *flat)
    if isinstance(section, collections.abc.Mapping):
        found += tuple(section.items())
    found = tuple(tuple(value) if isinstance(value, list) else value for value in found)
    try:
        hash(found)
    except TypeError:
        return None
    return found


def _minion_values(opts: Opts, functions: Any, ret: Any) -> dict[str, Any]:
    profile = ret.get("ret_config") if isinstance(ret, collections.abc.Mapping) else None
    return salt.returners.get_returner_options(
        NAME,
        {"ret_config": profile} if profile else None,
        {key: key for key in KEYS},
        __salt__=functions,
        __opts__=opts,
    )


def _kwargs(allowed: Any, ret: Any) -> dict[str, Any]:
    """The permitted part of a job's ``ret_kwargs``."""
    kwargs = ret.get("ret_kwargs") if isinstance(ret, collections.abc.Mapping) else None
    if not kwargs or not isinstance(kwargs, collections.abc.Mapping):
        return {}
    try:
        allowed = checked("return_kwargs", list, allowed, ())
    except ValueError:
        # Logged by Settings. No key is permitted.
        allowed = ()
    known = {key: value for key, value in kwargs.items() if key in KEYS and key != "return_kwargs"}
    left = sorted(key for key in known if key not in allowed)
    if left:
        log.warning(
            "saltcellar: job %s must not set %s, ignored: to permit it, list it in saltcellar.return_kwargs of this "
            "minion",
            ret.get("jid"),
            ", ".join(left),
        )
    return {key: value for key, value in known.items() if key in allowed}


def checked(key: str, kind: type, value: Any, default: Any) -> Any:
    """The value of a setting with its type. Raises ``ValueError`` with the setting's name."""
    if value is None or value == "":
        return default

    if kind in (bool, list, str):
        if not isinstance(value, kind):
            raise ValueError(f"{NAME}.{key}: {value!r} is not a {kind.__name__}")
        return value

    try:
        number = kind(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"{NAME}.{key}: {value!r} is not a {'whole ' if kind is int else ''}number"
        ) from None
    if isinstance(value, bool) or not 0 < number < 1e15:
        raise ValueError(f"{NAME}.{key}: {value!r} is not a number above 0 and below 10**15")
    return number


def _state_home() -> str:
    return os.environ.get("XDG_STATE_HOME") or os.path.join(
        os.path.expanduser("~"), ".local", "state"
    )
