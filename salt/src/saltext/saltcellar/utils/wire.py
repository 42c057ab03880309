"""
The wire: msgpack values, frames, and one connection to the daemon.

``docs/WIRE.md`` is the contract; this file is its client half. A value goes out in the form that
``salt.payload.dumps(use_bin_type=True)`` gives it, and comes back as ``salt.payload.loads`` would
read it. Three things differ, all in cases where Salt's own functions raise:

* text that is not UTF-8 (a lone surrogate, as file names have them) keeps its bytes, both ways;
* an object no codec knows travels as its ``str``; a cycle or a value nested too deep is cut there;
* a map key that is an array comes back as a tuple.

Salt's functions are not called for this because of what ``dumps`` does when it fails at first: it
rewrites the caller's own map in place.
"""

import codecs
import collections.abc
import datetime
import errno
import gc
import socket
import struct
import time

import salt.utils.msgpack

try:
    from salt.defaults import _Constant
except ImportError:  # a private name: a Salt without it has no such values either
    _Constant = None

#: Sent once, when a connection opens: magic and protocol version.
PREAMBLE = b"SCWIRE" + struct.pack(">H", 1)
#: The largest request sent, in bytes. The daemon takes entries of up to 64 MiB; a little on top for the envelope.
REQUEST_BYTES_MAX = 64 * 1024 * 1024 + 64 * 1024
#: The largest answer read, in bytes. Past this the peer is not our daemon.
ANSWER_BYTES_MAX = 1 << 30
#: While a longer one is unpacked, Python's collector of cycles rests: a third less time for 100,000 jobs.
COLLECTED_BYTES_MAX = 1 << 20
#: A value nested deeper than this is cut. msgpack's packer gives up at 511.
DEPTH_MAX = 200

EXT_DATETIME = 78
EXT_CONSTANT = 79
DATETIME_FORMAT = "%Y%m%dT%H:%M:%S.%f"

#: Bytes asked of the socket at once: at least, and at most.
READ_BYTES = 4096
READ_BYTES_MAX = 1 << 20

_LENGTH = struct.Struct(">I")
#: An array of three, and its first element in the form that has room for all of them.
_REQUEST = struct.Struct(">BBI")
#: What an answer of nil ends in.
_GOOD_NIL = b"\xc3\xc0"
#: How long such an answer is, by the number's first byte.
_NIL_LENGTHS = {4: None, 5: 0xCC, 6: 0xCD, 8: 0xCE, 12: 0xCF}
_TIMEVAL = struct.Struct("@ll")
_packb = salt.utils.msgpack.packb


class Broken(Exception):
    """The connection ended before the answer came. A new one may do better."""


class TimedOut(Exception):
    """No connection, or no answer, within the time allowed."""


class Refusal(Exception):
    """The daemon answered, and said no. ``code`` is one of those listed in the wire's contract."""

    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


# ---- values


def _keep_surrogates(error):
    """Codec error handler: what is not UTF-8 goes out as the bytes it stood for, and comes back the same."""
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


def _encode_other(value):
    """What msgpack has no form for. The first half says the same as Salt's codec; the last line does not raise."""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, (datetime.datetime, datetime.date)):
        return salt.utils.msgpack.ExtType(EXT_DATETIME, value.strftime(DATETIME_FORMAT).encode())
    if _Constant is not None and isinstance(value, _Constant):
        packed = salt.utils.msgpack.packb((value.name, value.value), use_bin_type=True)
        return salt.utils.msgpack.ExtType(EXT_CONSTANT, packed)
    if isinstance(value, collections.abc.Mapping):
        return dict(value)
    if isinstance(value, (collections.abc.Set, collections.abc.Sequence)):
        return list(value)
    return _text(value)


def _text(value):
    try:
        return str(value)
    except Exception:  # pylint: disable=broad-except
        return f"<{type(value).__name__} without a text form>"


def _plain(value, above=()):
    """A copy of ``value`` that surely packs: cycles and depths cut, foreign objects made text."""
    if isinstance(value, (collections.abc.Mapping, collections.abc.Set, list, tuple)) and not isinstance(
        value, salt.utils.msgpack.ExtType
    ):
        if id(value) in above:
            return "<recursion>"
        if len(above) >= DEPTH_MAX:
            return "<nested too deep>"
        above = (*above, id(value))
        if isinstance(value, collections.abc.Mapping):
            return {
                key if isinstance(key, (str, bytes, int, float, type(None))) else _text(key): _plain(item, above)
                for key, item in value.items()
            }
        return [_plain(item, above) for item in value]
    if value is None or isinstance(value, (str, bytes, bytearray, int, float, salt.utils.msgpack.ExtType)):
        return value
    try:
        return _encode_other(value)
    except Exception:  # pylint: disable=broad-except
        return _text(value)


def pack(value):
    """``value`` as msgpack bytes. Does not raise for anything a master may hold in its hands."""
    try:
        # With an error handler for text msgpack copies every string first, which takes half as long again.
        return _packb(value, default=_encode_other, use_bin_type=True)
    except Exception:  # pylint: disable=broad-except
        pass
    options = {"default": _encode_other, "use_bin_type": True, "unicode_errors": "saltcellar.surrogates"}
    try:
        return _packb(value, **options)
    except Exception:  # pylint: disable=broad-except
        # Too deep, a cycle, a number that is none, an object that fails when asked: copy, and cut what cannot go.
        return _packb(_plain(value), **options)


def _decode_ext(code, data):
    if code == EXT_DATETIME:
        try:
            return datetime.datetime.strptime(data.decode(), DATETIME_FORMAT)
        except ValueError:
            return data.decode("utf-8", "replace")
    if code == EXT_CONSTANT and _Constant is not None:
        try:
            return _Constant(*salt.utils.msgpack.unpackb(data, raw=False))
        except Exception:  # pylint: disable=broad-except
            # Anything may stand in there. The bytes, so that the values around it can be read.
            return data
    return data


def _hashable(key):
    return tuple(_hashable(item) for item in key) if isinstance(key, list) else key


def _pairs(pairs):
    out = {}
    for key, item in pairs:
        try:
            out[_hashable(key)] = item
        except TypeError:
            out[_text(key)] = item
    return out


def unpack(data):
    """The value that ``data`` holds, as Salt's codec reads it. Raises ``ValueError`` if it is no msgpack."""
    # A list of many jobs is so many new maps that the collector goes over them again and again, and finds nothing.
    if len(data) < COLLECTED_BYTES_MAX or not gc.isenabled():
        return _unpack(data)
    gc.disable()
    try:
        return _unpack(data)
    finally:
        gc.enable()


def _unpack(data):
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
            # A key that is an array or a map: rare enough to read everything again the slow way.
            return salt.utils.msgpack.unpackb(data, object_pairs_hook=_pairs, **options)
    except Exception as exc:
        raise ValueError(f"not a msgpack value: {exc}") from exc


class Call:
    """
    A call, packed once: its request, the same request on another connection, and its record in the spool are
    made of the same bytes.
    """

    #: What a repeated call says besides: it may have been stored already.
    _REPLAY = pack("replay") + pack(True)

    #: Names of calls, packed. There are few.
    _NAMES = {}

    def __init__(self, name, args):
        self._name = self._NAMES.get(name) or self._NAMES.setdefault(name, pack(name))
        self._args = pack(args)
        if not 0x80 <= self._args[0] < 0x8F:
            raise ValueError(f"the arguments of {name} are no small map")
        self._replay = bool(args.get("replay"))

    def request(self, number):
        """The request's bytes."""
        return b"".join((_REQUEST.pack(0x93, 0xCE, number), self._name, self._args))

    def record(self):
        """The call as the spool keeps it: ``[call, args]``, marked as a replay."""
        return b"".join((b"\x92", self._name, self.repeated()._args))

    def readable(self, name, args):
        """
        The same call with map keys as text, if Salt's codec cannot read a key in ``args``; else ``None``.

        That codec packs a tuple as a key and cannot read it back, so the daemon refuses it.
        """
        try:
            salt.utils.msgpack.unpackb(self._args, strict_map_key=False)
        except TypeError:
            return Call(name, _plain(args))
        except Exception:  # pylint: disable=broad-except
            pass
        return None

    def repeated(self):
        """The same call, marked as a replay."""
        if not self._replay:
            # One more pair: the count of a small map is in its first byte.
            self._args = b"".join((bytes([self._args[0] + 1]), self._args[1:], self._REPLAY))
            self._replay = True
        return self


# ---- the connection


class Connection:
    """
    One open connection. Not to be shared between threads, nor used after a fork.

    After any exception other than a :class:`Refusal` with ``usable`` still true, close it: an
    answer may be under way that nobody waits for any more.
    """

    def __init__(self, path, deadline):
        self.usable = True
        self._number = 0
        self._greeting = PREAMBLE
        self._received = b""
        self._timeouts = {}
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as exc:
            # No descriptor is left to this process, say.
            raise Broken(str(exc)) from exc
        try:
            self._connect(path, deadline)
        except BaseException:
            self.close()
            raise

    def _connect(self, path, deadline):
        while True:
            self._socket.settimeout(_left(deadline))
            try:
                self._socket.connect(path)
                # From here on the kernel keeps the time, which saves a poll() before every call of it.
                return self._socket.setblocking(True)
            except socket.timeout as exc:
                raise TimedOut("no connection in time") from exc
            except OSError as exc:
                # A full queue of connections waiting to be accepted shows as EAGAIN at once.
                if exc.errno != errno.EAGAIN:
                    raise Broken(str(exc)) from exc
            time.sleep(min(0.02, _left(deadline)))

    def close(self):
        """Let go of the descriptor, and only that: a forked parent may still use the same socket."""
        self.usable = False
        self._socket.close()

    def send(self, bodies, deadline):
        """
        Send requests, given as functions from an id to a frame's body, without waiting for answers.

        Returns the ids, in order.
        """
        ids, out = [], [self._greeting]
        for body in bodies:
            self._number += 1
            ids.append(self._number)
            packed = body(self._number)
            if len(packed) > REQUEST_BYTES_MAX:
                raise Refusal("too_large", f"a request of {len(packed)} bytes, not sent")
            out += (_LENGTH.pack(len(packed)), packed)
        self._greeting = b""
        data = memoryview(b"".join(out))
        while data:
            self._allow(socket.SO_SNDTIMEO, deadline)
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError as exc:
                raise TimedOut("the request was not taken in time") from exc
            except OSError as exc:
                raise Broken(str(exc)) from exc
        return ids

    def receive(self, deadline):
        """The next answer: ``(id, value)``, where the value of a refused request is a :class:`Refusal`."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size, deadline))
        if length > ANSWER_BYTES_MAX:
            raise Broken(f"an answer of {length} bytes: not a saltcellar daemon")
        body = self._exactly(length, deadline)
        # What most writes are answered needs no unpacking: [number, true, nil].
        if length in _NIL_LENGTHS and body[0] == 0x93 and body.endswith(_GOOD_NIL):
            if length == 4 and body[1] < 0x80:
                return body[1], None
            if _NIL_LENGTHS[length] == body[1]:
                return int.from_bytes(body[2:-2], "big"), None
        try:
            answer = unpack(body)
            number, good, value = answer
            if not good:
                value = Refusal(str(value["code"]), str(value.get("message", "")))
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            raise Broken(f"an answer that is none: {exc}") from exc
        if number is None:
            self.usable = False
            raise value if isinstance(value, Refusal) else Broken("the daemon hung up without a reason")
        return number, value

    def ask(self, call, deadline):
        """The answer to one :class:`Call`. Raises :class:`Refusal` if the daemon said no."""
        (number,) = self.send([call.request], deadline)
        while True:
            answered, value = self.receive(deadline)
            if answered == number:
                if isinstance(value, Refusal):
                    raise value
                return value

    def _exactly(self, size, deadline):
        """So many bytes; what came with them waits for the next call. Answers are small, so one read brings a whole one."""
        have = len(self._received)
        if have < size:
            parts = [self._received]
            while have < size:
                parts.append(self._some(max(size - have, READ_BYTES), deadline))
                have += len(parts[-1])
            self._received = b"".join(parts)
        data, self._received = self._received[:size], self._received[size:]
        return data

    def _some(self, size, deadline):
        self._allow(socket.SO_RCVTIMEO, deadline)
        try:
            data = self._socket.recv(min(size, READ_BYTES_MAX))
        except BlockingIOError as exc:
            raise TimedOut("no answer in time") from exc
        except OSError as exc:
            raise Broken(str(exc)) from exc
        if not data:
            raise Broken("the daemon closed the connection")
        return data

    def _allow(self, option, deadline):
        """Tell the kernel how long to wait; not anew where what it was told last is a little too long."""
        left = _left(deadline)
        if not left <= self._timeouts.get(option, 0) <= left * 1.1:
            left *= 1.05
            # Not 0 and 0, which is for ever.
            self._socket.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(int(left), max(1, int(left % 1 * 1e6))))
            self._timeouts[option] = left


def _left(deadline):
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimedOut("out of time")
    return left
