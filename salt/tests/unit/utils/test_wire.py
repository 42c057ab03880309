"""Round trip of values."""

import collections
import contextlib
import datetime
import decimal
import gc
import math
import socket
import struct

import msgpack
import pytest
import salt.payload
import salt.utils.immutabletypes as immutabletypes
from salt.utils.data import CaseInsensitiveDict

from saltext.saltcellar.utils import wire

SALTS_OWN = [
    {"return": {"nested": [1, 2.5, None, True, "text", b"\xff\x00"]}},
    {1: "int key", None: "nil key", 2.5: "float key", b"bin": "bytes key"},
    {1: "one", "1": "the text one"},
    datetime.datetime(2026, 2, 3, 4, 5, 6, 789),
    datetime.date(2026, 2, 3),
    2**64 - 1,
    -(2**63),
    2**80,
    math.inf,
    {1, 2},
    (1, (2, 3)),
    collections.OrderedDict([("b", 1), ("a", 2)]),
    CaseInsensitiveDict(Host="web1"),
    immutabletypes.freeze({"a": [1, {2}]}),
    "ünïcode \U0001f9c2",
    "",
    b"",
    [],
    {},
]


@pytest.mark.parametrize("value", SALTS_OWN, ids=repr)
def test_a_value_that_salt_can_pack_is_packed_byte_for_byte_as_salt_does(value):
    assert wire.pack(value) == salt.payload.dumps(value, use_bin_type=True)


@pytest.mark.parametrize("value", SALTS_OWN, ids=repr)
def test_a_packed_value_is_read_as_salt_reads_it(value):
    packed = salt.payload.dumps(value, use_bin_type=True)
    assert wire.unpack(packed) == salt.payload.loads(packed, encoding="utf-8")


@pytest.mark.parametrize(
    "value",
    [
        b"\xff\xfe not text",
        datetime.datetime(2026, 2, 3, 4, 5, 6, 789),
        datetime.datetime.min,
        {1: "a", "1": "b", None: "c"},
        {(1, 2): "a tuple as key"},
        2**64 - 1,
        -math.inf,
        "a file named \udcff\udc80 of an unknown owner",
        {"\udcff": ["\udcfe"]},
        [[[[{}]]]],
    ],
    ids=ascii,
)
def test_an_unusual_value_survives_the_round_trip(value):
    assert wire.unpack(wire.pack(value)) == value


def test_a_year_before_1000_is_packed_with_four_digits():
    # glibc writes fewer, which Salt's strptime does not read.
    packed = wire.pack(datetime.datetime.min)
    assert b"00010101T" in packed
    assert salt.payload.loads(packed) == datetime.datetime.min


def test_nan_survives_the_round_trip():
    assert math.isnan(wire.unpack(wire.pack(math.nan)))


def test_a_surrogate_without_a_byte_does_not_raise():
    packed = wire.pack("\ud800")
    assert wire.pack(wire.unpack(packed)) == packed


def test_text_that_is_not_utf8_is_read():
    assert wire.unpack(b"\xa2\xff\x41") == "\udcffA"


def test_a_date_no_calendar_has_is_read_as_text():
    assert wire.unpack(msgpack.packb(msgpack.ExtType(78, b"00000000T"))) == "00000000T"


class Awkward:
    def __str__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value, expected",
    [
        (decimal.Decimal("1.50"), "1.50"),
        (complex(1, 2), "(1+2j)"),
        (ValueError("an exception"), "an exception"),
        (range(3), [0, 1, 2]),
        (frozenset([7]), [7]),
        (Awkward(), "<Awkward without a string form>"),
        ({"a": Awkward()}, {"a": "<Awkward without a string form>"}),
        ({decimal.Decimal(1): 2}, {"1": 2}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_object_no_codec_knows_travels_as_text(value, expected):
    assert wire.unpack(wire.pack(value)) == expected


def test_a_recursive_value_is_cut_and_not_altered():
    value = {"a": 1}
    value["self"] = value
    assert wire.unpack(wire.pack(value)) == {"a": 1, "self": "<recursion>"}
    assert value["self"] is value


def test_a_part_that_occurs_twice_is_not_a_recursion():
    part = {"shared": True}
    deep = part
    for _ in range(600):
        deep = [deep]
    assert wire.unpack(wire.pack([deep, part, part]))[1:] == [part, part]


def test_a_value_nested_too_deep_is_cut():
    deep = []
    for _ in range(5000):
        deep = [deep]
    assert "<nested too deep>" in str(wire.unpack(wire.pack(deep)))


def test_packing_does_not_modify_the_callers_map():
    value = {"tuple": (1, 2), "name": "\udcff", "big": 2**80}
    wire.pack(value)
    assert value == {"tuple": (1, 2), "name": "\udcff", "big": 2**80}


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\x01", b"\x01\x02"])
def test_invalid_msgpack_raises_value_error(data):
    with pytest.raises(ValueError):
        wire.unpack(data)


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff\xff\xff\xff",
        struct.pack(">I", 1) + b"\xc1",
        struct.pack(">I", 1) + b"\x01",
        struct.pack(">I", 2) + b"\x91\x01",
    ],
)
def test_an_invalid_answer_closes_the_connection(run_dir, answer):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(run_dir / "x"))
    listener.listen(1)
    deadline = wire.time.monotonic() + 2
    connection = wire.Connection(str(run_dir / "x"), deadline)
    peer, _ = listener.accept()
    peer.sendall(answer)
    with pytest.raises(wire.Broken):
        connection.ask(wire.Call("get_jids", {}), deadline)
    connection.close()
    peer.close()
    listener.close()


@pytest.mark.parametrize(
    "data, on",
    [(b"\xc0", True), (wire.pack(b"x" * (1 << 20)), False), (b"\xc1" * (1 << 21), False)],
)
@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_paused_while_a_large_answer_is_unpacked(
    monkeypatch, data, on, enabled
):
    seen = []
    unpack = wire._unpack
    monkeypatch.setattr(
        wire, "_unpack", lambda data: [seen.append(gc.isenabled()), unpack(data)][1]
    )
    if not enabled:
        gc.disable()
    try:
        with contextlib.suppress(ValueError):
            wire.unpack(data)
        assert (seen, gc.isenabled()) == ([enabled and on], enabled)
    finally:
        gc.enable()


@pytest.mark.parametrize("number", [0, 1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32])
def test_an_answer_of_nil_is_read(number):
    body = b"\x93" + wire.pack(number) + b"\xc3\xc0"
    connection = wire.Connection.__new__(wire.Connection)
    connection._received = len(body).to_bytes(4, "big") + body
    assert connection.receive(0) == (number, None)


@pytest.mark.parametrize(
    "value",
    [[7, True, 0xC3C0], [7, True, b"\xc3\xc0"], [7, True, [True, None]], [7, True, {1: None}]],
)
def test_an_answer_that_looks_like_nil_at_its_end_is_not(value):
    body = wire.pack(value)
    connection = wire.Connection.__new__(wire.Connection)
    connection._received = len(body).to_bytes(4, "big") + body
    assert connection.receive(0) == (7, value[2])
