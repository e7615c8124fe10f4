"""The wire format.

Oracles: the value itself (round trips), msgpack's own packer and unpacker (the bytes), numpy's `tobytes`
(array payloads), hand-written bytes (every refusal), and `encode(decode(m)) == m` for whatever is accepted.
"""

from __future__ import annotations

import hashlib
import math
import pickle
import random
import struct
import tracemalloc
from collections import OrderedDict, namedtuple
from enum import IntEnum
from typing import Any

import msgpack
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from colonnade import __version__
from colonnade.errors import VersionMismatch, WireError
from colonnade.federation import wire
from colonnade.federation.wire import DEFAULT, PROTOCOL, Limits, Written, decode, digest, encode

MAGIC = b"CLN\x02"
DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-(2**4096) + 1, 2**4096 - 1)
    | st.sampled_from([edge + step for bits in (5, 7, 8, 15, 16, 31, 32, 63, 64) for edge in (-(2**bits), 2**bits)
                       for step in (-1, 0, 1)])
    | st.floats()
    | texts
    | st.binary(max_size=300)
)  # fmt: skip
arrays = st.sampled_from(DTYPES).flatmap(
    lambda name: hnp.arrays(name, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)
plain = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=30)
values = st.recursive(leaves | arrays, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20)


def same(left: Any, right: Any) -> bool:
    """Equal in type and in every bit: NaN equals the same NaN, and 0.0 differs from -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, float):
        return struct.pack("<d", left) == struct.pack("<d", right)
    if isinstance(left, list):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return bool(left == right)


def array_body(code: int, shape: tuple[int, ...], payload: bytes, *, ndim: int | None = None) -> bytes:
    """A hand-written array item, packed by msgpack itself."""
    head = struct.pack("<BB6x", code, len(shape) if ndim is None else ndim) + struct.pack(f"<{len(shape)}Q", *shape)
    packed: bytes = msgpack.packb(msgpack.ExtType(2, head + payload))
    return packed


def refused(body: bytes, reason: str, **limits: int) -> None:
    with pytest.raises(WireError, match=reason):
        decode(MAGIC + body, limits=Limits(**limits))


# --- round trips -----------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(values)
def test_every_value_comes_back_bit_for_bit(value: Any) -> None:
    message = encode(value)
    back = decode(message)
    assert same(back, value)
    assert encode(back) == message


@settings(max_examples=150, deadline=None)
@given(values)
def test_what_is_written_once_has_the_same_bytes_in_every_message(value: Any) -> None:
    once = Written.of(value)
    assert encode({"b": [1, once], "a": once}) == encode({"b": [1, value], "a": value})


@settings(max_examples=150, deadline=None)
@given(plain)
def test_the_body_is_what_msgpack_writes_for_sorted_dicts(value: Any) -> None:
    def by_key(inner: Any) -> Any:
        if isinstance(inner, dict):
            return {key: by_key(inner[key]) for key in sorted(inner)}
        if isinstance(inner, list):
            return [by_key(item) for item in inner]
        if isinstance(inner, int) and not -(2**63) <= inner < 2**64:
            size = (inner.bit_length() + 7) // 8
            return msgpack.ExtType(1, bytes([inner < 0]) + abs(inner).to_bytes(size, "big"))
        return inner

    assert encode(value) == MAGIC + msgpack.packb(by_key(value))


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (2, 3), (0, 5), (4, 0, 2), (1, 2, 1, 2, 1, 2, 1, 2)])
def test_arrays_of_every_dtype_and_shape(name: str, shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape)).reshape(shape).astype(name)
    code = DTYPES.index(name) + 1
    message = encode(array)
    assert message == MAGIC + array_body(code, shape, array.tobytes())
    assert same(decode(message), array)


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(12.0)[::-2],
        np.arange(12, dtype=">i4").reshape(3, 4).T,
        np.broadcast_to(np.float32(2.5), (3, 3)),
        np.frombuffer(bytes(range(17)), dtype="<u4", offset=1, count=4),
    ],
    ids=["fortran", "strided", "big-endian", "broadcast", "unaligned"],
)
def test_layout_does_not_travel(array: np.ndarray) -> None:
    plain_copy = np.array(array.tolist(), dtype=array.dtype.newbyteorder("<"))
    assert encode(array) == encode(plain_copy)
    assert same(decode(encode(array)), plain_copy)


def test_nan_payloads_infinities_and_signed_zero_survive() -> None:
    bits = np.array([0x7FF8000000000001, 0xFFF8DEADBEEF0000, 0x7FF0000000000001, 0x7FF0000000000000, 1 << 63], "u8")
    array = bits.view("f8")
    assert decode(encode(array)).view("u8").tolist() == bits.tolist()
    for number in array.tolist():
        assert struct.pack("<d", decode(encode(number))) == struct.pack("<d", number)


def test_tuples_become_lists_and_numpy_scalars_become_pythons() -> None:
    sent = [
        (1, (2,)),
        np.bool_(True),
        np.int8(-3),
        np.uint64(2**64 - 1),
        np.float32(0.5),
        np.float64(0.1),
        np.str_("é"),
    ]
    expected = [[1, [2]], True, -3, 2**64 - 1, 0.5, 0.1, "é"]
    assert same(decode(encode(sent)), expected)
    assert same(decode(encode(np.bytes_(b"ab"))), b"ab")


def test_a_bool_array_made_by_a_view_is_written_as_zeros_and_ones() -> None:
    odd = np.array([0, 1, 2, 255], dtype=np.uint8).view(bool)
    assert encode(odd) == encode(np.array([False, True, True, True]))


def test_decoded_arrays_are_read_only_aligned_and_do_not_keep_the_message() -> None:
    message = encode(["x", np.arange(1000.0), b"y" * 100_000])
    array = decode(message)[1]
    assert array.flags.aligned
    assert not array.flags.writeable
    assert len(array.base) == 8 + 8 + 8000  # its own bytes: head, shape, numbers
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.setflags(write=True)


# --- one value, one message ------------------------------------------------------------------------------


def test_the_order_of_filling_a_dict_does_not_show() -> None:
    names = ["b", "a", "", "é", "z", "\U0001f600", "￿", "aa"]
    forwards, backwards = dict.fromkeys(names, 1), dict.fromkeys(reversed(names), 1)
    assert encode(forwards) == encode(backwards)
    assert list(decode(encode(forwards))) == sorted(names)


def test_digest_is_sha256() -> None:
    assert digest(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert digest(encode([1])) == hashlib.sha256(b"CLN\x02\x91\x01").hexdigest()


@pytest.mark.parametrize(
    "body",
    [
        b"\xcc\x7f", b"\xcd\x00\xff", b"\xce\x00\x00\xff\xff", b"\xcf\x00\x00\x00\x00\xff\xff\xff\xff",  # unsigned
        b"\xd0\xe0", b"\xd0\x05", b"\xd1\xff\x80", b"\xd2\xff\xff\x80\x00", b"\xd3" + struct.pack(">q", -(2**31)),
        b"\xd9\x01a", b"\xda\x00\x20" + b"a" * 32, b"\xdb\x00\x00\x00\x01a",  # str
        b"\xc5\x00\x01a", b"\xc6\x00\x00\x00\x01a",  # bytes
        b"\xdc\x00\x01\xc0", b"\xdd\x00\x00\x00\x01\xc0", b"\xde\x00\x01\xa0\xc0", b"\xdf\x00\x00\x00\x01\xa0\xc0",
        b"\xc7\x10\x01" + b"\x00" + b"\x01" * 15, b"\xc8\x00\x0a\x01" + b"\x00" + b"\x01" * 9,  # extensions
        b"\xc7\x0a\x01\x00\x00" + b"\x01" * 8, b"\xc7\x09\x01\x00" + b"\xff" * 8,  # long integers that are short
        b"\xc7\x09\x01\x01\x80" + b"\x00" * 7,
    ],
)  # fmt: skip
def test_a_longer_form_than_needed_is_refused(body: bytes) -> None:
    refused(body, "shortest form")


# --- what cannot be sent ---------------------------------------------------------------------------------


class Colour(IntEnum):
    red = 1


@pytest.mark.parametrize(
    ("value", "named", "cure"),
    [
        ({1, 2}, "set", "sorted"),
        (1j, "complex", "a numpy array"),
        (object(), "object", "a numpy array"),
        (len, "builtin_function", "a numpy array"),
        (bytearray(b"a"), "bytearray", r"bytes\(value\)"),
        (Colour.red, "Colour", r"int\(value\)"),
        (OrderedDict(a=1), "OrderedDict", r"dict\(value\)"),
        (namedtuple("Pair", "a b")(1, 2), "Pair", r"tuple\(value\)"),
        (np.ma.masked_array([1, 2], mask=[0, 1]), "MaskedArray", "filled"),
        (np.array([1, "a"], dtype=object), "object", "tolist"),
        (np.array(["a"]), "<U1", "tolist"),
        (np.array(["a"], dtype=np.dtypes.StringDType()), "StringDType", "tolist"),
        (np.array(["2020-01-01"], dtype="M8[D]"), "datetime64", "int64"),
        (np.zeros(2, dtype=np.float16), "float16", "astype"),
        (np.zeros(2, dtype=[("a", "i4")]), "'a'", "astype"),
        (np.zeros((1,) * 9), "9 dimensions", "reshape"),
        (np.zeros((0, 2**40)), "limit", "parts"),
        (np.timedelta64(1, "s"), "timedelta64", "int"),
        (pd.Series([1.0]), "Series", "to_numpy"),
        (pd.DataFrame({"a": [1.0]}), "DataFrame", "to_numpy"),
        (1 << 4096, "4096 bits", "bytes"),
        (-(1 << 4096), "4096 bits", "bytes"),
        ("\ud800", "surrogate", "bytes"),
        ({1: 2}, "key of type int", "str keys"),
        ({b"a": 2}, "key of type bytes", "str keys"),
        ({None: 2}, "key of type NoneType", "str keys"),
    ],
)
def test_what_cannot_be_sent_is_named_with_a_cure(value: Any, named: str, cure: str) -> None:
    with pytest.raises(WireError, match=rf"(?s)^value .*{named}.*{cure}"):
        encode(value)


def test_the_error_says_where_the_value_is() -> None:
    with pytest.raises(WireError, match=r"^value\['costs'\]\[2\]\['noise'\] is of type set"):
        encode({"costs": [1, 2, {"noise": {3}}]})


def test_a_list_that_contains_itself_is_refused() -> None:
    knot: list[Any] = []
    knot.append(knot)
    with pytest.raises(WireError, match="nested deeper"):
        encode(knot)


@pytest.mark.parametrize(
    ("limits", "fits", "too_much"),
    [
        ({"max_bytes": 104}, b"a" * 98, b"a" * 99),
        ({"max_bytes": 104}, np.zeros(81, "u1"), np.zeros(82, "u1")),
        ({"max_depth": 2}, [[1]], [[[]]]),
        ({"max_depth": 2}, {"a": {}}, {"a": {"b": {}}}),
        ({"max_items": 4}, [1, [2]], [1, [2, 3]]),
        ({"max_items": 3}, {"a": 1}, {"a": 1, "b": 2}),
        ({"max_str": 40}, "é" * 20, "é" * 21),
        ({"max_str": 40}, {"a" * 40: 1}, {"a" * 41: 1}),
    ],
)
def test_both_ends_keep_the_same_limits(limits: dict[str, int], fits: Any, too_much: Any) -> None:
    strict = Limits(**limits)
    assert same(decode(encode(fits, limits=strict), limits=strict), fits)
    with pytest.raises(WireError):
        encode(too_much, limits=strict)
    if not isinstance(too_much, str | dict) or "max_str" not in limits:  # texts are measured when they are written
        assert same(decode(encode(Written.of(fits), limits=strict), limits=strict), fits)
        with pytest.raises(WireError):
            encode(Written.of(too_much), limits=strict)
    message = encode(too_much)
    with pytest.raises(WireError):
        decode(message, limits=strict)


@pytest.mark.parametrize("wrong", [{"max_bytes": 0}, {"max_bytes": 2**32}, {"max_depth": 257}, {"max_items": 1e6}])
def test_limits_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="choose an integer"):
        Limits(**wrong)


# --- what is not read ------------------------------------------------------------------------------------


def test_another_version_names_both_and_the_cure() -> None:
    assert encode(None)[3] == PROTOCOL
    with pytest.raises(VersionMismatch, match=rf"protocol 1.*{__version__}.*protocol 2.*install the same"):
        decode(b"CLN\x01\xc0")
    assert decode(b"CLN\x01\xc0", stored=1) is None, "from one's own records, where it says so"


@pytest.mark.parametrize("data", [b"", b"CLN", b"cln\x01\xc0", b"\x80\x04K\x01.", b"PK\x03\x04", b"CL\x01N\xc0"])
def test_other_bytes_are_not_a_message(data: bytes) -> None:
    with pytest.raises(WireError, match="not a Colonnade message"):
        decode(data)


@pytest.mark.parametrize("data", ["CLN", bytearray(b"CLN\x02\xc0"), memoryview(b"CLN\x02\xc0"), None, 3])
def test_only_bytes_are_read(data: Any) -> None:
    with pytest.raises(WireError, match="a message is bytes"):
        decode(data)


class Dangerous:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (pytest.fail, ("a pickle was run",))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_refused_with_and_without_our_magic(protocol: int) -> None:
    bomb = pickle.dumps(Dangerous(), protocol=protocol)
    for data in (bomb, MAGIC + bomb):
        with pytest.raises(WireError):
            decode(data)
    assert decode(encode(bomb)) == bomb  # inert as bytes
    with pytest.raises(WireError, match="Dangerous"):
        encode(Dangerous())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "in the middle"),
        (b"\xcd\x01", "in the middle"),
        (b"\xd4", "in the middle"),
        (b"\xcb" + bytes(7), "claims 8 bytes"),
        (b"\xa5abc", "claims 5 bytes"),
        (b"\xc0\xc0", "1 bytes follow"),
        (b"\xc1", "begins no item"),
        (b"\xca\x00\x00\x00\x00", "begins no item"),  # a 32-bit float
        (b"\xa2\xff\xff", "UTF-8"),
        (b"\xa3\xed\xa0\x80", "UTF-8"),  # half a surrogate pair
        (b"\xa2\xc0\x80", "UTF-8"),  # an overlong NUL
        (b"\x81\xa1\xff\xc0", "UTF-8"),
        (b"\x81\x01\x02", "not a str"),
        (b"\x81\xc4\x01a\x02", "not a str"),
        (b"\x81\x90\x02", "not a str"),
        (b"\x81\xc0\x02", "not a str"),
        (b"\x82\xa1a\x01\xa1a\x02", "repeated or out of order"),
        (b"\x82\xa1b\x01\xa1a\x02", "repeated or out of order"),
        (b"\x82\xa1a\x80\xa1a\x02", "repeated or out of order"),  # after an inner dict closed
        (b"\xd6\xff\x00\x00\x00\x00", "extension type 255"),  # a timestamp
        (b"\xd4\x00\x00", "extension type 0"),
        (b"\xd4\x03\x00", "extension type 3"),
        (b"\xc7\x00\x01", "long integer"),
        (b"\xd4\x01\x00", "long integer"),
        (b"\xc7\x0a\x01\x02" + b"\x01" * 9, "long integer"),  # the sign is 0 or 1
        (b"\xc8\x02\x02\x01\x00" + b"\x01" * 513, "long integer"),  # 4104 bits
    ],
)
def test_broken_bodies_are_refused(body: bytes, reason: str) -> None:
    refused(body, reason)


@pytest.mark.parametrize(
    "body",
    [
        b"\xc7\x00\x02",
        b"\xd8\x02" + struct.pack("<BB6xQ", 0, 1, 0),  # dtype code 0
        array_body(12, (0,), b""),
        array_body(5, (), b""),  # one number is missing
        array_body(5, (2,), bytes(15)),
        array_body(5, (2,), bytes(17)),
        array_body(5, (1,) * 9, bytes(8)),
        array_body(5, (), bytes(8), ndim=255),
        array_body(1, (2,), b"\x01\x02"),  # a bool that is neither 0 nor 1
        msgpack.packb(msgpack.ExtType(2, b"\x05\x00\x01" + bytes(5) + bytes(8))),  # padding that is not zero
        array_body(5, (2**63, 2), b""),  # products that wrap to 0 modulo 2^64
        array_body(5, (2**62, 4, 8), b""),
        array_body(6, (2**32, 2**32), b""),
        array_body(5, (2**61 + 1,), bytes(8)),  # 8 (2^61 + 1) = 8 modulo 2^64
        array_body(5, (0, 2**60), b""),  # empty, but a sum over axis 0 is not
        array_body(5, (2**64 - 1, 0), b""),
    ],
)
def test_arrays_that_lie_are_refused(body: bytes) -> None:
    refused(body, "broken: (an array|the head of an array|a bool)")


# --- bombs and fuzz --------------------------------------------------------------------------------------


def peak(data: bytes) -> int:
    """Bytes allocated at the worst moment of decoding. Only our two errors may escape, and none for lack of memory."""
    out_of_memory, value = False, None
    tracemalloc.start()
    try:
        value = [decode(data)]
    except (WireError, VersionMismatch) as refusal:
        out_of_memory = isinstance(refusal.__cause__, MemoryError)
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert not out_of_memory
    assert value is None or encode(value[0]) == data
    return most


@pytest.mark.parametrize(
    "body",
    [
        b"\x91" * 100_000 + b"\xc0",
        b"\x81\xa1a" * 100_000 + b"\xc0",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x02",
        b"\xdd\xff\xff\xff\xff" * 1000,
        b"\xdd\x00\x01\x86\xa0" * 15 + bytes(99_000),  # each claim is within the bytes that follow, not their sum
        b"\xdd\x00\x0f\x42\x41" + b"\xc0" * 1_000_001,  # one item too many, all of them real
    ],
    ids=["deep-list", "deep-map", "list", "map", "str", "bytes", "ext", "lists", "nested-claims", "items"],
)
def test_bombs_are_refused_without_memory(body: bytes) -> None:
    refused(body, ".")
    assert peak(MAGIC + body) < 20_000


def test_msgpack_alone_would_reserve_the_nested_claims() -> None:
    """The reason for `_scan`, as its docstring states it; if this fails, msgpack has become better."""
    claims = b"\xdd\x00\x00\x27\x10" * 1000 + bytes(5000)
    tracemalloc.start()
    with pytest.raises(ValueError, match="incomplete"):
        msgpack.unpackb(claims)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most > 1000 * len(claims)
    assert peak(MAGIC + claims) < 20_000


def test_real_items_cost_at_most_a_hundred_bytes_per_byte() -> None:
    for unit in (b"\x80", b"\x90", b"\x81\xa0" * 14 + b"\x80", b"\xa2ab"):
        data = MAGIC + b"\xdc" + struct.pack(">H", 1000) + unit * 1000
        assert peak(data) < 100 * len(data) + 5000


def test_one_million_items_are_within_the_limit() -> None:
    numbers = list(range(DEFAULT.max_items - 1))
    assert decode(encode(numbers)) == numbers


def mutated(data: bytes, chance: random.Random) -> bytes:
    """A few random edits of a message, most of them behind its magic."""
    edited = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(min(4, len(edited)) if chance.random() < 0.98 else 0, len(edited) + 1)
        match chance.randrange(5):
            case 0:
                edited[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                edited[at : at + chance.randint(1, 8)] = b""
            case 2:
                edited[at:at] = chance.randbytes(chance.randint(1, 8))
            case 3:
                edited[at : at + 4] = chance.choice(
                    [b"\xff" * 4, b"\x00" * 4, b"\x7f\xff\xff\xff", b"\xdd\xdf\xc9\xdb"]
                )
            case _:
                other = chance.randrange(len(edited) + 1)
                edited[at:at] = edited[other : other + chance.randint(1, 40)]
    return bytes(edited)


def test_mutated_messages_raise_only_our_errors_and_little_memory() -> None:
    chance = random.Random(20)
    seeds = [
        encode({"step": "ranks", "arguments": {"column": "roa", "epsilon": 0.02}, "sequence": 7, "seed": None}),
        encode([1, -1, 2**40, -(2**40), 2**100, 1.5, "text", b"bytes", True, [[], {}, [[]]]]),
        encode([np.zeros((2, 3)), np.arange(5, dtype="i2"), np.array([True, False]), np.float32(1)]),
        encode(["a" * 300, b"b" * 300, list(range(20)), {str(key): key for key in range(20)}]),
    ]
    accepted = 0
    for _ in range(3000):
        data = mutated(chance.choice(seeds), chance)
        assert peak(data) < 100 * len(data) + 20_000
        try:
            decode(data)
            accepted += 1
        except (WireError, VersionMismatch):
            pass
    assert 100 < accepted < 2900  # the mutations reach both outcomes


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_raise_only_our_errors(data: bytes, with_magic: bool) -> None:
    assert peak(MAGIC + data if with_magic else data) < 100 * len(data) + 20_000


def test_the_scan_knows_every_first_byte() -> None:
    """Against msgpack: a byte that begins no item of ours is 0xC1 (unused) or 0xCA (32-bit float)."""
    assert [byte for byte, head in enumerate(wire._HEADS) if head[0] == wire._UNUSED] == [0xC1, 0xCA]
