"""
Random values against Salt's loader: every accepted value is readable by Salt, and every rejected one is counted.

``CODEC_SEED`` repeats a run; the seed is printed.
"""

import datetime
import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections import Counter

import msgpack
import pytest
import salt.payload
from salt.exceptions import SaltDeserializationError

from saltext.saltcellar.utils import client
from saltext.saltcellar.utils import wire
from tests.support.helpers import JID

COUNT = 1000
#: The daemon's reasons for rejecting values that Salt's loader reads; Salt's codec writes none of them.
STRICTER = {
    "ext 78 is not a date as Salt writes it": "strptime also reads fields of one digit, other digits, and a small t",
    "ext 79 is not a constant as Salt writes it": "any two values that Python can unpack, and names that are not text",
    "a map key is an array, a map or a constant": "a constant can be hashed if its parts can",
    "nested deeper than 512 levels": "Salt reads 1,024 levels and writes 512",
}


class Maker:
    """Packs valid and invalid values, with more invalid ones than in production."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def one(self):
        kind = self.rng.random()
        if kind < 0.1:
            return self.nested(
                self.rng.choice(
                    [100, 500, 510, 511, 512, 513, 600, 990, 1023, 1024, 1025, 1100, 3000]
                )
            )
        data = self.value(4)
        if kind < 0.2:
            return data[: self.rng.randrange(len(data))]
        if kind < 0.25:
            return data + self.value(1)
        if kind < 0.35:
            at = self.rng.randrange(len(data))
            return data[:at] + bytes([self.rng.randrange(256)]) + data[at + 1 :]
        return data

    def nested(self, levels):
        step = self.rng.choice([b"\x91", b"\x81\xa1a", b"\xdc\x00\x01", b"\x81\xc0"])
        return step * (levels - 1) + self.rng.choice([b"\xc0", b"\x90", b"\x80", self.ext()])

    def value(self, depth):
        rng = self.rng
        kind = rng.randrange(16 if depth else 10)
        if kind < 3:
            return msgpack.packb(
                rng.choice(
                    [
                        None,
                        True,
                        False,
                        0,
                        -1,
                        -33,
                        2**63,
                        2**64 - 1,
                        -(2**63),
                        1.5,
                        float("nan"),
                        float("inf"),
                    ]
                )
            )
        if kind < 5:
            return msgpack.packb(rng.choice(["", "a", "\u00fc" * 40, "x" * 300, "\u202e\x1b[2J"]))
        if kind == 5:
            raw = rng.choice([b"\xff", b"\xed\xa0\x80", b"\xc3", b"ok\xfe"])
            return (
                rng.choice(
                    [
                        bytes([0xA0 + len(raw)]),
                        b"\xd9" + bytes([len(raw)]),
                        b"\xda\x00" + bytes([len(raw)]),
                    ]
                )
                + raw
            )
        if kind == 6:
            return msgpack.packb(rng.randbytes(rng.choice([0, 3, 300])))
        if kind < 10:
            return self.ext()
        count = rng.randrange(5)
        if kind < 12:
            head = rng.choice(
                [
                    bytes([0x90 + count]),
                    b"\xdc" + struct.pack(">H", count),
                    b"\xdd" + struct.pack(">I", count),
                ]
            )
            return head + b"".join(self.value(depth - 1) for _ in range(count))
        head = rng.choice(
            [
                bytes([0x80 + count]),
                b"\xde" + struct.pack(">H", count),
                b"\xdf" + struct.pack(">I", count),
            ]
        )
        return head + b"".join(self.key(depth - 1) + self.value(depth - 1) for _ in range(count))

    def key(self, depth):
        return (
            self.value(depth)
            if self.rng.random() < 0.15
            else msgpack.packb(self.rng.choice(["a", "b", "key", 7, None]))
        )

    def ext(self):
        rng = self.rng
        code = rng.choice([-1, -1, 78, 78, 79, 79, 0, 5, 127, -2, -128])
        data = {-1: self.timestamp, 78: self.date, 79: self.constant}.get(
            code, lambda: rng.randbytes(rng.randrange(20))
        )()
        fixed = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}
        if len(data) in fixed and rng.random() < 0.8:
            return bytes([fixed[len(data)]]) + struct.pack("b", code) + data
        return (
            rng.choice(
                [b"\xc7" + struct.pack("B", len(data)), b"\xc8" + struct.pack(">H", len(data))]
            )
            + struct.pack("b", code)
            + data
        )

    def timestamp(self):
        ns = self.rng.choice([0, 999_999_999, 1_000_000_000, 2**30 - 1])
        return self.rng.choice(
            [
                self.rng.randbytes(self.rng.randrange(16)),
                self.rng.randbytes(4),
                struct.pack(">Q", ns << 34 | self.rng.randrange(2**34)),
                struct.pack(">Iq", ns, self.rng.choice([-(2**63), -1, 2**63 - 1])),
            ]
        )

    def date(self):
        rng = self.rng
        text = datetime.datetime(
            rng.randrange(1000, 9999),
            rng.randrange(1, 13),
            rng.randrange(1, 29),
            23,
            59,
            59,
            rng.randrange(10**6),
        ).strftime(wire.DATETIME_FORMAT)
        other = [
            text[:-3],
            text[:-7],
            text + "0",
            text.replace("T", "t"),
            "0000" + text[4:],
            text[:4] + "0230" + text[8:],
            text[:9] + "1:2:3.4",
            text[:-1] + "\u0663",
            text[:15] + "60.0",
            "\uff12" + text[1:],
            "soon",
            "",
        ]
        return (text if rng.random() < 0.4 else rng.choice(other)).encode()[:250]

    def constant(self):
        name = msgpack.packb("NOT_SET")
        return self.rng.choice(
            [
                b"\x92" + name + b"\xc0",
                b"\x92" + name + self.value(1),
                b"\x92" + self.value(0) + b"\x01",
                b"\x93\x01\x02\x03",
                b"\x82\x01\x02\x03\x04",
                b"\xa2ab",
                b"\xc4\x02ab",
                b"\xd4\x05x",
                b"\x92\xa1\xff\xc0",
                b"\x92" + name + b"\xc0\xc0",
                b"\xc1",
                b"",
            ]
        )[:250]


def loads(data, **options):
    """The error of Salt's loader for the value, or ``None``."""
    try:
        salt.payload.loads(data, **options)
    except SaltDeserializationError as exc:
        return repr(exc.__cause__)
    return None


@pytest.fixture
def publisher(run_dir):
    """A minimal event publisher of a master."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(run_dir / "master_event_pub.ipc"))
    listener.listen()
    listener.settimeout(30)
    yield listener
    listener.close()


def wait_until(what, seconds=60):
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "timed out"
        time.sleep(0.05)


def test_salts_loader_reads_every_accepted_value(make_cellar, run_dir, publisher):
    seed = int(os.environ.get("CODEC_SEED") or random.SystemRandom().randrange(2**32))
    print(f"CODEC_SEED={seed}")
    maker = Maker(seed)
    values = [maker.one() for _ in range(COUNT)]
    cellar = make_cellar(f"bus: [{run_dir}]\n")
    to, _ = publisher.accept()
    for number, data in enumerate([*values, b"\x80"]):
        frame = msgpack.packb(
            {"head": {}, "body": f"codec/{number}\n\n".encode() + data}, use_bin_type=True
        )
        to.sendall(struct.pack(">I", len(frame)) + frame)
    stored = {}
    last = f"codec/{COUNT}"
    wait_until(lambda: cellar.ask("events_list", tag=last, limit=1)["events"])
    # Read as the extension reads: one unreadable value would hide all others.
    for event in cellar.ask("events_list", tag="codec/*", limit=COUNT + 1)["events"]:
        stored[int(event["tag"].partition("/")[2])] = event
    accepted = sorted(set(stored) - {COUNT})
    rejected = sorted(set(range(COUNT)) - set(stored))
    assert cellar.counter("entries_rejected_unreadable") == len(rejected), (
        "each rejected value is counted"
    )
    assert min(len(accepted), len(rejected)) > COUNT // 10, "the generator makes both kinds"

    for number in accepted:
        for options in ({"encoding": "utf-8"}, {}):
            why = loads(values[number], **options)
            assert why is None, (
                f"CODEC_SEED={seed}, value {number} ({values[number][:200]!r}) was accepted: {why}"
            )

    stricter = Counter()
    for number in rejected:
        data = values[number]
        if loads(data, encoding="utf-8") is None:
            with pytest.raises(wire.Refusal) as refusal:
                ask_raw(cellar, b"\x81\xa4data" + data)
            reason = next((words for words in STRICTER if words in refusal.value.message), None)
            assert reason, (
                f"CODEC_SEED={seed}, value {number} ({data[:200]!r}): {refusal.value.message}"
            )
            stricter[reason] += 1
    print(
        f"{len(accepted)} accepted, {len(rejected)} rejected, of these Salt's loader reads {dict(stricter)}"
    )

    # The unpacker in Python, Salt's fallback without the compiled one.
    code = "import sys, salt.payload\nfor line in sys.stdin: salt.payload.loads(bytes.fromhex(line), encoding='utf-8')"
    lines = "\n".join(values[number].hex() for number in accepted)
    environment = dict(os.environ, MSGPACK_PUREPYTHON="1")
    subprocess.run(
        [sys.executable, "-c", code],
        input=lines,
        text=True,
        env=environment,
        check=True,
        timeout=60,
    )


def ask_raw(cellar, args):
    """The call ``save_reg`` with packed arguments."""

    class Packed(wire.Call):
        def request(self, number):
            return b"\x93" + wire.pack(number) + wire.pack("save_reg") + args

    connection = wire.Connection(cellar.socket, time.monotonic() + 20)
    try:
        return connection.ask(Packed("save_reg", {}), time.monotonic() + 20)
    finally:
        connection.close()


def test_values_written_by_salts_codec_are_accepted(cellar):
    """The check rejects no value that Salt can send."""
    deep = []
    for _ in range(500):
        deep = [deep]
    from salt.defaults import NOT_SET

    values = [
        NOT_SET,
        {
            "when": datetime.datetime(2024, 2, 29, 23, 59, 59, 999999),
            "day": datetime.date(2024, 2, 29),
        },
        deep,
    ]
    values += [
        {1: 2, None: 3, 1.5: 4, b"\xff": 5, datetime.datetime(2024, 2, 29): 6},
        b"\xff",
        "\u202e",
        2**64 - 1,
        {1, 2},
    ]
    for value in values:
        packed = salt.payload.dumps(value, use_bin_type=True)
        assert ask_raw(cellar, b"\x81\xa4data" + packed) is None, value
        assert salt.payload.loads(packed, encoding="utf-8") == cellar.ask("load_reg")


def test_a_return_with_keys_that_salt_cannot_read_is_stored_with_keys_as_text(cellar, opts, spool):
    """A module's value may have tuples as keys, which Salt's codec can write but not read."""
    opts["saltcellar.socket"] = cellar.socket
    ours = client.get_client(opts)
    load = {"jid": JID, "id": "web1", "fun": "x.y", "return": {("a", 1): {"b": 2}, "c": (3, 4)}}
    ours.returner(opts, load)
    assert ours.get_jid(opts, JID)["web1"]["return"] == {"('a', 1)": {"b": 2}, "c": [3, 4]}
    assert spool.counters() == {}, "nothing is lost"
