"""
The connection to a daemon on another machine: HTTPS, with each batch signed by the minion's Salt
key.

The second part of ``docs/WIRE.md`` is the contract. :class:`Connection` has the interface of
:class:`wire.Connection`. Differences:

* all frames of one :meth:`Connection.send` are one HTTP request, and its response has their
  answers;
* the daemon's certificate is always verified, against ``saltcellar.ca`` or the system's
  certificates;
* a daemon that rejects us (key not accepted, clocks differ, certificate not trusted) raises
  :class:`Unusable`: entries wait in the spool, and retries are delayed.

Only Salt's dependencies are used: ``cryptography`` signs, or ``Cryptodome`` on an early
3006.
"""

import hashlib
import http.client
import logging
import os
import socket
import ssl
import struct
import time
import urllib.parse
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from saltext.saltcellar.utils import settings as settings_
from saltext.saltcellar.utils import wire

try:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import padding
except ImportError:
    hashes = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

MAGIC = b"SCSIGN" + struct.pack(">H", 1)
HELLO_PATH = "/v1/hello"
BATCH_PATH = "/v1/batch"
#: The start of the signed text: method and path.
SIGNED_LINE = b"POST /v1/batch\n"
#: The default port.
PORT = 4580
#: The timeout grows by a second per this many bytes of a batch.
BYTES_PER_S = 256 * 1024
#: Codes that apply to any batch of this minion, not to the one sent.
UNUSABLE_CODES = frozenset(
    {"not_accepted", "signature", "clock", "replayed", "unavailable", "internal"}
)

_FIXED = struct.Struct(">q16sQ32sIH")
_LENGTH = struct.Struct(">I")

#: What to do about a port with another service.
_NOT_A_DAEMON = "correct saltcellar.url, which must name the daemon's minion listener"
#: What to do about a daemon that does not respond.
_UNREACHABLE = (
    "check that the daemon runs on that host with a minion listener, and that the network lets its "
    "port through"
)
_SLOW = (
    "no response in time: run `saltcellar doctor` on the daemon's host, "
    "or raise saltcellar.timeout if the network is slow"
)
#: What to do about a certificate, by the code of OpenSSL's check.
_CERTIFICATE_REMEDIES = {
    9: "correct the clock of this host, or of the host that made it",
    10: "renew it on the daemon's host",
    62: "write a name that is in it into saltcellar.url",
    64: "write a name or address that is in it into saltcellar.url",
}

_keys: dict[str, tuple[tuple[int, ...], Callable[[bytes], bytes]]] = {}
_contexts: dict[str | None, tuple[tuple[int, ...] | None, ssl.SSLContext]] = {}


class Unusable(wire.TimedOut):
    """
    The daemon cannot be used at present; an administrator may have to act.

    A ``TimedOut``, so that the client spools the entry without counting a try, and retries less
    often.
    """


class Connection(wire.Connection):
    """One connection, kept alive. Not to be shared between threads, nor used after a fork."""

    def __init__(self, settings: settings_.Settings, deadline: float) -> None:  # pylint: disable=super-init-not-called
        self.usable = True
        self._settings = settings
        self._sent = 0
        self._number = 0
        self._answers = b""
        host, port = _split(settings.url or "")
        self._http = http.client.HTTPSConnection(
            host, port, timeout=_left(deadline), context=_context(settings.ca)
        )
        # A connection that reopens automatically would have no challenge.
        self._http.auto_open = 0
        try:
            self._open(deadline)
        except BaseException:
            self.close()
            raise

    def _open(self, deadline: float) -> None:
        try:
            self._http.connect()
        except ssl.SSLCertVerificationError as exc:
            why = exc.verify_message or exc.reason or str(exc)
            remedy = _CERTIFICATE_REMEDIES.get(exc.verify_code, "set saltcellar.ca to its CA file")
            raise Unusable(f"the daemon's certificate is not trusted: {why}: {remedy}") from exc
        except TimeoutError as exc:
            raise wire.TimedOut(f"no connection in time: {_UNREACHABLE}") from exc
        except ssl.SSLError as exc:
            raise Unusable(
                f"TLS handshake failed: {exc.reason or exc}: {_NOT_A_DAEMON}; its log may show more"
            ) from exc
        except socket.gaierror as exc:
            raise wire.Broken(f"{exc}: correct the host in saltcellar.url") from exc
        except OSError as exc:
            raise wire.Broken(f"{exc}: {_UNREACHABLE}") from exc
        shown = self._http.sock.getpeercert(binary_form=True) or b""
        self._certificate = hashlib.sha256(shown).digest()
        hello = self._request("GET", HELLO_PATH, b"", deadline)
        try:
            hello = wire.unpack(hello)
            self._challenge = bytes(hello["challenge"])
            if len(self._challenge) != 16:
                raise ValueError(f"a challenge of {len(self._challenge)} bytes")
        except (ValueError, TypeError, KeyError) as exc:
            raise wire.Broken(f"malformed greeting ({exc}): {_NOT_A_DAEMON}") from exc

    def close(self) -> None:
        """Close only the descriptor, without a TLS shutdown: a forked parent may still use the connection."""
        self.usable = False
        self._http.close()

    def send(self, bodies: Iterable[wire.Body], deadline: float) -> list[int]:
        """
        Send requests, given as functions from an id to a frame's body, as one signed batch.

        Returns the ids, in order. The responses have been received when this returns.
        """
        ids: list[int] = []
        out: list[bytes] = []
        size = 0
        for body in bodies:
            self._sent += 1
            ids.append(self._sent)
            packed = body(self._sent)
            size += len(packed) + _LENGTH.size
            if size > wire.REQUEST_BYTES_MAX:
                raise wire.Refusal("too_large", wire.too_large(size))
            out += (_LENGTH.pack(len(packed)), packed)
        payload = b"".join(out)
        self._number += 1
        deadline += len(payload) / BYTES_PER_S
        self._answers = self._request("POST", BATCH_PATH, self._signed(payload), deadline)
        return ids

    def receive(self, deadline: float) -> tuple[int, Any]:  # pylint: disable=unused-argument
        """The next response: ``(id, value)``, where the value of a refused request is a :class:`wire.Refusal`."""
        if len(self._answers) < _LENGTH.size:
            raise wire.Broken("a request has no response: please report this message")
        (length,) = _LENGTH.unpack_from(self._answers)
        end = _LENGTH.size + length
        frame, self._answers = self._answers[_LENGTH.size : end], self._answers[end:]
        if len(frame) < length:
            raise wire.Broken("a truncated response: please report this message")
        number, value = _answer(frame)
        if number is None:
            self.usable = False
            raise value if isinstance(value, wire.Refusal) else wire.Broken(_closed("no reason"))
        return number, value

    # ---- HTTP

    def _request(self, method: str, path: str, body: bytes, deadline: float) -> bytes:
        """The body of the response. Raises the refusal of an unsuccessful one."""
        if self._http.sock is None:
            raise wire.Broken(_closed("after the last response"))
        try:
            self._http.sock.settimeout(_left(deadline))
            try:
                self._http.request(method, path, body, {"Content-Type": "application/octet-stream"})
            except (BrokenPipeError, ConnectionResetError):
                # Refused before all of it was sent: the response with the reason may have arrived.
                log.debug("saltcellar: the daemon did not read the whole batch")
            response = self._http.getresponse()
            length = response.length
            if length is None or length > wire.ANSWER_BYTES_MAX:
                raise wire.Broken(f"a response of {length} bytes: {_NOT_A_DAEMON}")
            answer = response.read()
        except TimeoutError as exc:
            raise wire.TimedOut(_SLOW) from exc
        except (OSError, http.client.HTTPException) as exc:
            raise wire.Broken(_closed(str(exc) or type(exc).__name__)) from exc
        if response.status == 200:
            return answer
        self.usable = False
        raise self._refusal(response.status, answer)

    def _refusal(self, status: int, answer: bytes) -> Exception:
        try:
            _, refusal = _answer(answer[_LENGTH.size :])
        except wire.Broken:
            refusal = None
        if not isinstance(refusal, wire.Refusal):
            return Unusable(f"HTTP status {status}, not of a minion listener: {_NOT_A_DAEMON}")
        if refusal.code in UNUSABLE_CODES:
            return Unusable(str(refusal))
        return refusal

    # ---- the signature

    def _signed(self, payload: bytes) -> bytes:
        """The envelope and the payload."""
        minion = self._settings.minion_id.encode()
        at = time.time_ns() // 1000
        digest = hashlib.sha256(payload).digest()
        fixed = MAGIC + _FIXED.pack(
            at, self._challenge, self._number, digest, len(payload), len(minion)
        )
        signature = _sign(self._settings.pki_dir, SIGNED_LINE + self._certificate + fixed + minion)
        return fixed + struct.pack(">H", len(signature)) + minion + signature + payload


def _answer(frame: bytes) -> tuple[int | None, Any]:
    """Number and value of a response; the value of a refused request is a :class:`wire.Refusal`."""
    try:
        number, good, value = wire.unpack(frame)
        return number, value if good else wire.refusal(value)
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise wire.Broken(f"malformed response ({exc}): {_NOT_A_DAEMON}") from exc


def _split(url: str) -> tuple[str, int]:
    """Host and port of ``https://host:port``."""
    try:
        parts = urllib.parse.urlsplit(url)
        if (
            parts.scheme != "https"
            or not parts.hostname
            or parts.path.strip("/")
            or parts.query
            or parts.username
        ):
            raise ValueError("unexpected scheme, path, query or user")
        return parts.hostname, parts.port or PORT
    except ValueError as exc:
        raise Unusable(
            f"saltcellar.url: {url!r} is not of the form https://host:{PORT}: {exc}"
        ) from exc


def _context(ca: str | None) -> ssl.SSLContext:
    """The TLS context for a CA file; recreated when the file has changed."""
    try:
        version = _file_version(ca) if ca else None
        made = _contexts.get(ca)
        if made is None or made[0] != version:
            made = _contexts[ca] = (version, ssl.create_default_context(cafile=ca or None))
    except (OSError, ssl.SSLError) as exc:
        raise Unusable(
            f"saltcellar.ca: cannot load {ca}, which must be a PEM file that this user can read: {exc}"
        ) from exc
    return made[1]


def _sign(pki_dir: str, text: bytes) -> bytes:
    path = os.path.join(pki_dir, "minion.pem")
    try:
        version = _file_version(path)
        if path not in _keys or _keys[path][0] != version:
            with open(path, "rb") as file:
                _keys[path] = (version, _signer(file.read()))
        return _keys[path][1](text)
    except (OSError, ValueError, TypeError) as exc:
        raise Unusable(
            f"cannot sign with {path}, which must be the minion's RSA key "
            f"(saltcellar.pki_dir names its directory): {exc}"
        ) from exc


def _signer(pem: bytes) -> Callable[[bytes], bytes]:
    """A function that signs with this key: RSA, PKCS #1 v1.5, SHA-256."""
    if hashes is not None:
        # An RSA key, as all of Salt's. A key of another type raises TypeError when it signs.
        key: Any = serialization.load_pem_private_key(pem, password=None)
        return lambda text: key.sign(text, padding.PKCS1v15(), hashes.SHA256())
    from Cryptodome.Hash import SHA256
    from Cryptodome.PublicKey import RSA
    from Cryptodome.Signature import pkcs1_15

    signer = pkcs1_15.new(RSA.import_key(pem))
    return lambda text: signer.sign(SHA256.new(text))


def _file_version(path: str) -> tuple[int, ...]:
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise wire.TimedOut(_SLOW)
    return left


def _closed(why: str) -> str:
    return f"the daemon closed the connection ({why}): its log shows the cause"
