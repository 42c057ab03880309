"""
The client side of ``docs/WIRE.md``: msgpack values, frames, and one connection to the daemon.

Values are encoded as by ``salt.payload.dumps(use_bin_type=True)`` and decoded as by
``salt.payload.loads``, except where these raise:

* text that is not UTF-8 (a lone surrogate, as in file names) keeps its bytes, both ways;
* an unknown object is sent as its ``str``; a cycle or a value nested too deep is cut there;
* a map key that is an array is decoded as a tuple.

Salt's ``dumps`` is not called because it rewrites the caller's map in place when it fails at first.
"""

import codecs
import collections.abc
import datetime
import errno
import gc
import socket
import struct
import time
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import salt.utils.msgpack

try:
    from salt.defaults import _Constant
except ImportError:  # a private name: a Salt without it has no such values
    _Constant = None

#: Sent once, when a connection opens: magic and protocol version.
PREAMBLE = b"SCWIRE" + struct.pack(">H", 1)
#: The largest request, in bytes: an entry of 64 MiB and its envelope.
REQUEST_BYTES_MAX = 64 * 1024 * 1024 + 64 * 1024
#: The largest answer, in bytes. A peer that sends more is not a saltcellar daemon.
ANSWER_BYTES_MAX = 1 << 30
#: Python's cycle collector is off while a longer answer is unpacked: a third less time for 100,000
#: jobs.
COLLECTED_BYTES_MAX = 1 << 20
#: A value nested deeper than this is cut. msgpack's packer fails at 511.
DEPTH_MAX = 200

EXT_DATETIME = 78
EXT_CONSTANT = 79
DATETIME_FORMAT = "%Y%m%dT%H:%M:%S.%f"
#: Characters of a date after its year.
DATETIME_REST = 20

#: Bytes read from the socket at once: minimum and maximum.
READ_BYTES = 4096
READ_BYTES_MAX = 1 << 20

#: Makes the bytes of a request from its number.
Body = Callable[[int], bytes]

#: What to do about a response that no daemon sends.
_NOT_A_DAEMON = "correct saltcellar.socket, or update the older of daemon and extension"
#: What to do about a daemon of this host that hangs.
_HUNG = (
    "run `saltcellar doctor`, and look for disk errors in `dmesg`; "
    "if only lists of jobs take longer, raise saltcellar.listing_timeout"
)

_LENGTH = struct.Struct(">I")
_packb = salt.utils.msgpack.packb


class Broken(Exception):
    """The connection ended before the response. A new one may succeed."""


class TimedOut(Exception):
    """No connection, or no response, within the time allowed."""


class Refusal(Exception):
    """The daemon refused the call. ``code`` is one of those in ``docs/WIRE.md``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


def refusal(value: dict[str, Any]) -> Refusal:
    """The refusal in an unsuccessful response. Raises as a missing key or a wrong type does."""
    code, message = str(value["code"]), str(value.get("message", ""))
    if code == "internal":
        message += "; the daemon's log shows the cause"
    return Refusal(code, message)


# ---- values


def _keep_surrogates(error: UnicodeError) -> tuple[str | bytes, int]:
    """Codec error handler: bytes that are not UTF-8 are encoded and decoded unchanged."""
    if not isinstance(error, UnicodeEncodeError):
        return codecs.lookup_error("surrogateescape")(error)
    out = bytearray()
    for char in error.object[error.start : error.end]:
        if "\udc80" <= char <= "\udcff":
            out.append(ord(char) - 0xDC00)
        else:
            out += char.encode("utf-8", "surrogatepass")
    return bytes(out), error.end


codecs.register_error("saltcellar.surrogates", _keep_surrogates)


def _encode_other(value: Any) -> Any:
    """Encode types unknown to msgpack: as Salt's codec does, and any other object as text. Does not raise."""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, (datetime.datetime, datetime.date)):
        text = value.strftime(DATETIME_FORMAT)
        # glibc writes years before 1000 with fewer digits, which Salt does not read.
        text = f"{value.year:04}" + text[len(text) - DATETIME_REST :]
        return salt.utils.msgpack.ExtType(EXT_DATETIME, text.encode())
    if _Constant is not None and isinstance(value, _Constant):
        packed = salt.utils.msgpack.packb((value.name, value.value), use_bin_type=True)
        return salt.utils.msgpack.ExtType(EXT_CONSTANT, packed)
    if isinstance(value, collections.abc.Mapping):
        return dict(value)
    if isinstance(value, (collections.abc.Set, collections.abc.Sequence)):
        return list(value)
    return _text(value)


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # pylint: disable=broad-except
        return f"<{type(value).__name__} without a string form>"


def _plain(value: Any, above: tuple[int, ...] = ()) -> Any:
    """A copy of ``value`` that can be packed: cycles and depths cut, unknown objects as text."""
    if isinstance(
        value, (collections.abc.Mapping, collections.abc.Set, list, tuple)
    ) and not isinstance(value, salt.utils.msgpack.ExtType):
        if id(value) in above:
            return "<recursion>"
        if len(above) >= DEPTH_MAX:
            return "<nested too deep>"
        above = (*above, id(value))
        if isinstance(value, collections.abc.Mapping):
            return {
                key
                if isinstance(key, (str, bytes, int, float, type(None)))
                else _text(key): _plain(item, above)
                for key, item in value.items()
            }
        return [_plain(item, above) for item in value]
    if value is None or isinstance(
        value, (str, bytes, bytearray, int, float, salt.utils.msgpack.ExtType)
    ):
        return value
    try:
        return _encode_other(value)
    except Exception:  # pylint: disable=broad-except
        return _text(value)


def pack(value: Any) -> bytes:
    """``value`` as msgpack bytes. Does not raise for any value of a master."""
    try:
        # With an error handler msgpack copies every string, which takes half as long again.
        return _packb(value, default=_encode_other, use_bin_type=True)
    except Exception:  # noqa: S110 pylint: disable=broad-except
        pass
    options = {
        "default": _encode_other,
        "use_bin_type": True,
        "unicode_errors": "saltcellar.surrogates",
    }
    try:
        return _packb(value, **options)
    except Exception:  # pylint: disable=broad-except
        # Too deep, a cycle, an unbounded number, an object that raises: copy, and cut what cannot
        # be packed.
        return _packb(_plain(value), **options)


def _decode_ext(code: int, data: bytes) -> Any:
    if code == EXT_DATETIME:
        try:
            return datetime.datetime.strptime(data.decode(), DATETIME_FORMAT)
        except ValueError:
            return data.decode("utf-8", "replace")
    if code == EXT_CONSTANT and _Constant is not None:
        try:
            return _Constant(*salt.utils.msgpack.unpackb(data, raw=False))
        except Exception:  # pylint: disable=broad-except
            # Unknown content: return the bytes, so that the values around it can be read.
            return data
    return data


def _hashable(key: Any) -> Any:
    return tuple(_hashable(item) for item in key) if isinstance(key, list) else key


def _pairs(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    out = {}
    for key, item in pairs:
        try:
            out[_hashable(key)] = item
        except TypeError:
            out[_text(key)] = item
    return out


def unpack(data: bytes) -> Any:
    """The value in ``data``, as Salt's codec reads it. Raises ``ValueError`` if it is not msgpack."""
    # A list of many jobs creates so many maps that the collector runs repeatedly, and finds
    # nothing.
    if len(data) < COLLECTED_BYTES_MAX or not gc.isenabled():
        return _unpack(data)
    gc.disable()
    try:
        return _unpack(data)
    finally:
        gc.enable()


def _unpack(data: bytes) -> Any:
    options = {
        "raw": False,
        "use_list": True,
        "strict_map_key": False,
        "ext_hook": _decode_ext,
        "unicode_errors": "saltcellar.surrogates",
    }
    try:
        try:
            return salt.utils.msgpack.unpackb(data, **options)
        except TypeError:
            # A key is an array or a map: rare, so everything is decoded again, slowly.
            return salt.utils.msgpack.unpackb(data, object_pairs_hook=_pairs, **options)
    except Exception as exc:
        raise ValueError(f"not a msgpack value: {exc}") from exc


class Call:
    """A call, which may be sent on several connections, and become a record in the spool."""

    def __init__(self, name: str, args: dict[str, Any]) -> None:
        self._name, self._args = name, args

    def request(self, number: int) -> bytes:
        """The request's bytes."""
        return pack([number, self._name, self._args])

    def record(self) -> bytes:
        """
        The call's record in the spool: ``[call, args]``, marked as a replay, and with the host's
        uptime, from which the spool knows how long it has waited.
        """
        args = self.repeated()._args
        # A part of a record that has waited keeps its time.
        args.setdefault("uptime", time.monotonic_ns() // 1000)
        return pack([self._name, args])

    def readable(self) -> "Call | None":
        """
        The same call with map keys as text, if Salt's codec cannot read a key in its arguments;
        else ``None``.

        That codec packs a tuple as a key and cannot read it back, so the daemon refuses it.
        """
        try:
            salt.utils.msgpack.unpackb(pack(self._args), strict_map_key=False)
        except TypeError:
            return Call(self._name, _plain(self._args))
        except Exception:  # noqa: S110 pylint: disable=broad-except
            pass
        return None

    def repeated(self) -> "Call":
        """The same call, marked as a replay: it may have been stored already."""
        self._args = {**self._args, "replay": True}
        return self


# ---- the connection


class Connection:
    """
    One open connection. Must not be shared between threads or used after a fork.

    After any exception other than a :class:`Refusal` with ``usable`` true, close it: an unread
    answer may be in flight.
    """

    def __init__(self, path: str, deadline: float) -> None:
        self.usable = True
        self._number = 0
        self._greeting = PREAMBLE
        self._received = b""
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as exc:
            remedy = ": raise LimitNOFILE of its service" if exc.errno == errno.EMFILE else ""
            raise Broken(f"this process cannot make a socket: {exc}{remedy}") from exc
        try:
            self._connect(path, deadline)
        except BaseException:
            self.close()
            raise

    def _connect(self, path: str, deadline: float) -> None:
        while True:
            self._socket.settimeout(_left(deadline))
            try:
                return self._socket.connect(path)
            except TimeoutError as exc:
                raise TimedOut(f"no connection in time: {_HUNG}") from exc
            except OSError as exc:
                # A full queue of connections waiting to be accepted shows as EAGAIN at once.
                if exc.errno != errno.EAGAIN:
                    raise Broken(_why_no_connection(exc)) from exc
            time.sleep(min(0.02, _left(deadline)))

    def close(self) -> None:
        """Close only the descriptor: a forked parent may still use the same socket."""
        self.usable = False
        self._socket.close()

    def send(self, bodies: Iterable[Body], deadline: float) -> list[int]:
        """
        Send requests, given as functions from an id to a frame's body, without waiting for responses.

        Returns the ids, in order.
        """
        ids, out = [], [self._greeting]
        for body in bodies:
            self._number += 1
            ids.append(self._number)
            packed = body(self._number)
            if len(packed) > REQUEST_BYTES_MAX:
                raise Refusal("too_large", too_large(len(packed)))
            out += (_LENGTH.pack(len(packed)), packed)
        self._greeting = b""
        data = memoryview(b"".join(out))
        while data:
            self._socket.settimeout(_left(deadline))
            try:
                data = data[self._socket.send(data) :]
            except TimeoutError as exc:
                raise TimedOut(f"the request was not read in time: {_HUNG}") from exc
            except OSError as exc:
                raise Broken(_closed(exc)) from exc
        return ids

    def receive(self, deadline: float) -> tuple[int, Any]:
        """The next response: ``(id, value)``, where the value of a refused request is a :class:`Refusal`."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size, deadline))
        if length > ANSWER_BYTES_MAX:
            raise Broken(f"a response of {length} bytes: {_NOT_A_DAEMON}")
        body = self._exactly(length, deadline)
        try:
            answer = unpack(body)
            number, good, value = answer
            if not good:
                value = refusal(value)
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            raise Broken(f"malformed response ({exc}): {_NOT_A_DAEMON}") from exc
        if number is None:
            self.usable = False
            if not isinstance(value, Refusal):
                raise Broken(_closed("without a reason"))
            if value.code == "version":
                raise Refusal(
                    value.code, f"{value.message}: update the older of daemon and extension"
                )
            raise value
        return number, value

    def ask(self, call: Call, deadline: float) -> Any:
        """The response to one :class:`Call`. Raises :class:`Refusal`."""
        number = self.send([call.request], deadline)[0]
        while True:
            answered, value = self.receive(deadline)
            if answered == number:
                if isinstance(value, Refusal):
                    raise value
                return value

    def _exactly(self, size: int, deadline: float) -> bytes:
        """
        ``size`` bytes; further received bytes are kept.

        Answers are small, and one read usually returns a whole one.
        """
        have = len(self._received)
        if have < size:
            parts = [self._received]
            while have < size:
                parts.append(self._some(max(size - have, READ_BYTES), deadline))
                have += len(parts[-1])
            self._received = b"".join(parts)
        data, self._received = self._received[:size], self._received[size:]
        return data

    def _some(self, size: int, deadline: float) -> bytes:
        self._socket.settimeout(_left(deadline))
        try:
            data = self._socket.recv(min(size, READ_BYTES_MAX))
        except TimeoutError as exc:
            raise TimedOut(f"no response in time: {_HUNG}") from exc
        except OSError as exc:
            raise Broken(_closed(exc)) from exc
        if not data:
            raise Broken(_closed("no response"))
        return data


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimedOut(f"no response in time: {_HUNG}")
    return left


def too_large(size: int) -> str:
    """Why a request is not sent."""
    return f"a request of {size} bytes exceeds the fixed limit of {REQUEST_BYTES_MAX}, not sent: send less"


def _why_no_connection(exc: OSError) -> str:
    """Why the system did not connect, and what to do about it."""
    if exc.errno in (errno.ENOENT, errno.ECONNREFUSED):
        return (
            f"no daemon listens there ({exc}): start it with `systemctl start saltcellar`, "
            "or correct saltcellar.socket"
        )
    if exc.errno in (errno.EACCES, errno.EPERM):
        return (
            f"this user may not open the socket ({exc}): add it to the socket's group (socket_group "
            "of the daemon's configuration), and restart Salt"
        )
    return f"{exc}: correct saltcellar.socket"


def _closed(why: object) -> str:
    return f"the daemon closed the connection ({why}): see `journalctl -u saltcellar`"
