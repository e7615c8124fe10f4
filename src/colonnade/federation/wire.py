"""The wire format: the only way a value becomes bytes that cross a border.

A message is `b"CLN"`, one version byte, and one MessagePack item. It can hold None, bool, int, float, str, bytes,
lists, dicts with str keys, and numpy arrays of plain numbers. Nothing in it can name code: there is no pickle.

**One value, one message.** Dicts are written in the order of their keys, and every number and length in its
shortest form; `decode` refuses any other form. So `encode(decode(m)) == m` for every message that is accepted, equal
requests have equal hashes, and the order in which a dict was filled (which may depend on data) is not disclosed.

**Refuse before building.** `_scan` walks the bytes of a stranger without building anything; only a message that it
accepts is built. MessagePack's own decoder is not enough. Measured with msgpack 1.2.4: it reserves a list by its
*claimed* length, up to 10,000 slots each, and it nests to depth 1024, so that 10 kB of nested claims reserve 80 MB
before the decoder notices that the items are missing. (Up to 1.2.1 the source has no cap: every claim up to the
length of the input is reserved.) It also keeps the last of two equal keys silently, and has no limit on depth or on
the total of items. After the scan every claimed item is known to exist, so memory grows with the real items only:
the worst measured is 91 bytes per byte of message (dicts nested in dicts) and 170 bytes per item (empty arrays).

docs/wire-format.md specifies the bytes.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import msgpack
import numpy as np

from colonnade import __version__
from colonnade.errors import VersionMismatch, WireError

PROTOCOL = 2
"""The version of the format. It changes whenever the bytes of any value or the fields of any message change."""

MAX_INT_BITS = 4096
MAX_NDIM = 8

MAGIC = b"CLN"
_START = len(MAGIC) + 1
_EXT_INT, _EXT_ARRAY = 1, 2
_FIXED_EXT = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}  # MessagePack's short heads, by size of payload
_ARRAY_HEAD = struct.Struct("<BB6x")  # padded to 8 bytes, so that the numbers behind it are aligned

_DTYPES = {
    code: np.dtype(name)
    for code, name in enumerate(("?", "i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f4", "<f8"), start=1)
}
_DTYPE_CODES = {dtype.str: code for code, dtype in _DTYPES.items()}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one message may claim. An item is a value or a key; a whole array is one item."""

    max_bytes: int = 2**30
    max_depth: int = 16
    max_items: int = 1_000_000
    max_str: int = 2**24

    def __post_init__(self) -> None:
        # 32-bit lengths bound the sizes; 256 keeps the recursion of `encode` and msgpack's own stack safe.
        for field in fields(self):
            most = 256 if field.name == "max_depth" else 2**32 - 1
            value = getattr(self, field.name)
            if type(value) is not int or not 1 <= value <= most:
                raise WireError(f"the limit {field.name} is {value!r}; choose an integer from 1 to {most}.")


DEFAULT = Limits()


def encode(value: Any, *, limits: Limits = DEFAULT) -> bytes:
    """The message of `value`; what a receiver with the same limits would refuse is refused here.

    Tuples become lists and numpy scalars become Python's. Any other type is an error: a subclass (a named tuple, a
    masked array, an enum) would come back as something else, or take hidden values along.
    """
    return b"".join(_written(value, limits).parts)


@dataclass(frozen=True)
class Written:
    """A value in the bytes that it has in every message, for those that share it: it is written once."""

    data: bytes
    items: int
    depth: int
    """Containers in containers."""

    @classmethod
    def of(cls, value: Any) -> Written:
        message = _written(value, DEFAULT)
        return cls(b"".join(message.parts[1:]), message.items - 1, message.depth)


def decode(data: bytes, *, limits: Limits = DEFAULT, stored: int = PROTOCOL) -> Any:
    """The value of a message, or `WireError`, or `VersionMismatch`; nothing else is raised.

    `stored` is the protocol of a message that is read from one's own records, where the bytes of values are the same.
    The numbers of an array are copied once, out of the message. The array is read-only and aligned, and does not
    keep the message alive; call `.copy()` to change it.
    """
    if not isinstance(data, bytes):
        raise WireError(f"a message is bytes, not {type(data).__name__}; pass bytes(data).")
    if len(data) > limits.max_bytes:
        raise WireError(f"a message of {len(data)} bytes is over the limit of {limits.max_bytes}; send it in parts.")
    if data[: len(MAGIC)] != MAGIC or len(data) < _START:
        raise WireError("these bytes are not a Colonnade message; send what colonnade.federation.wire.encode returns.")
    if data[_START - 1] not in (PROTOCOL, stored):
        raise VersionMismatch(
            f"the message speaks wire protocol {data[_START - 1]}, but Colonnade {__version__} here speaks protocol "
            f"{PROTOCOL}; install the same Colonnade version at the coordinator and at every party."
        )
    try:
        _scan(data, limits)
        # A second fence: msgpack's own max_*_len default to the length of the message.
        return msgpack.unpackb(
            memoryview(data)[_START:], raw=False, strict_map_key=True, ext_hook=partial(_extension, limits)
        )
    except (IndexError, struct.error):
        raise _broken("it ends in the middle of an item") from None
    except UnicodeDecodeError:
        raise _broken("a string is not valid UTF-8") from None  # the cause would quote the data
    except MemoryError as lack:
        raise WireError(f"no memory for a message of {len(data)} bytes; lower the limits or free memory.") from lack
    except (ValueError, msgpack.UnpackException) as unexpected:
        raise _broken(f"msgpack refuses it ({type(unexpected).__name__})") from None


def digest(data: bytes) -> str:
    """SHA-256 of a message, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


# --- writing ---------------------------------------------------------------------------------------------


class _Unsendable(Exception):
    """A value that the format does not have; `path` collects keys and indices from the inside out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str | int] = []


_SCALARS = frozenset((type(None), bool, int, float, str))


class _Writer:
    """Collects the pieces of a message. Arrays and bytes stay where they are until one final join copies them."""

    def __init__(self, limits: Limits) -> None:
        packer = msgpack.Packer(use_bin_type=True, buf_size=1024)  # it holds one piece at a time, and grows
        self.pack, self.list_head, self.map_head = packer.pack, packer.pack_array_header, packer.pack_map_header
        self.limits = limits
        self.parts: list[bytes | memoryview] = []
        self.size = self.items = self.depth = 0
        self.add(MAGIC + bytes([PROTOCOL]))
        self.count(1)

    def add(self, part: bytes | memoryview) -> None:
        self.size += len(part)
        if self.size > self.limits.max_bytes:
            raise _Unsendable(f"takes the message over the limit of {self.limits.max_bytes} bytes: send it in parts")
        self.parts.append(part)

    def count(self, items: int) -> None:
        self.items += items
        if self.items > self.limits.max_items:
            raise _Unsendable(
                f"takes the message over the limit of {self.limits.max_items} items: send numbers as a numpy array, "
                "which is one item"
            )

    def write(self, value: Any, *, depth: int) -> None:
        kind = type(value)
        if kind is float or kind is bool or value is None:
            self.add(self.pack(value))
        elif kind is int:
            self.write_int(value)
        elif kind is str:
            self.write_str(value)
        elif kind is bytes:
            self.add(_blob_head(len(value), 0xC4))
            self.add(value)
        elif kind is list or kind is tuple:
            self.write_list(value, depth)
        elif kind is dict:
            self.write_dict(value, depth)
        elif kind is np.ndarray:
            self.write_array(value)
        elif kind is Written:
            if depth + value.depth > self.limits.max_depth:
                raise self.too_deep()
            self.count(value.items)
            self.add(value.data)
        elif isinstance(value, np.generic) and (value.dtype.str in _DTYPE_CODES or kind in (np.str_, np.bytes_)):
            self.write(value.item(), depth=depth)
        else:
            raise _Unsendable(f"is of type {kind.__name__}, which has no place on the wire: send {_cure(value)}")

    def open(self, items: int, depth: int) -> None:
        if depth >= self.limits.max_depth:
            raise self.too_deep()
        self.depth = max(self.depth, depth + 1)
        self.count(items)

    def too_deep(self) -> _Unsendable:
        return _Unsendable(f"is nested deeper than {self.limits.max_depth} containers: send a flatter value")

    def write_int(self, value: int) -> None:
        if -(2**63) <= value < 2**64:
            self.add(self.pack(value))
            return
        if value.bit_length() > MAX_INT_BITS:
            raise _Unsendable(f"is an integer of more than {MAX_INT_BITS} bits: send its bytes")
        magnitude = abs(value).to_bytes((value.bit_length() + 7) // 8, "big")
        self.add(_ext_head(1 + len(magnitude), _EXT_INT) + bytes([value < 0]) + magnitude)

    def write_str(self, value: str) -> None:
        try:
            piece: bytes = self.pack(value)
        except UnicodeEncodeError:
            raise _Unsendable("is text with half a surrogate pair, which UTF-8 lacks: send bytes") from None
        if len(piece) > self.limits.max_str and len(value.encode()) > self.limits.max_str:
            raise _Unsendable(f"is text of more than {self.limits.max_str} bytes: send it as bytes or in parts")
        self.add(piece)

    def at_once(self, container: Any, values: Iterable[Any]) -> bool:
        """Write a container of nothing but short plain values by one call, which writes the same bytes."""
        if not _SCALARS.issuperset(map(type, values)):
            return False
        try:
            piece: bytes = self.pack(container)
        except (UnicodeEncodeError, OverflowError):  # the slow way says where, and has long integers
            return False
        if len(piece) > self.limits.max_str:
            return False
        self.add(piece)
        return True

    def write_list(self, value: list[Any] | tuple[Any, ...], depth: int) -> None:
        self.open(len(value), depth)
        if self.at_once(value, value):
            return
        self.add(self.list_head(len(value)))
        for index, item in enumerate(value):
            try:
                self.write(item, depth=depth + 1)
            except _Unsendable as found:
                found.path.append(index)
                raise

    def write_dict(self, value: dict[Any, Any], depth: int) -> None:
        for key in value:
            if type(key) is not str:
                raise _Unsendable(f"has a key of type {type(key).__name__}: use str keys, or send a list of pairs")
        self.open(2 * len(value), depth)
        if self.at_once({key: value[key] for key in sorted(value)}, value.values()):
            return
        self.add(self.map_head(len(value)))
        for key in sorted(value):  # code point order is also the byte order of UTF-8
            try:
                self.write_str(key)
                self.write(value[key], depth=depth + 1)
            except _Unsendable as found:
                found.path.append(key)
                raise

    def write_array(self, value: np.ndarray[Any, Any]) -> None:
        code = _DTYPE_CODES.get(value.dtype.str.replace(">", "<"))
        if code is None:
            raise _Unsendable(f"is an array of dtype {value.dtype}: send {_array_cure(value.dtype)}")
        if value.ndim > MAX_NDIM:
            raise _Unsendable(f"is an array of {value.ndim} dimensions: reshape it to at most {MAX_NDIM}")
        dtype = _DTYPES[code]
        if _extent(value.shape, dtype) > self.limits.max_bytes:
            raise _Unsendable(f"is an array over the limit of {self.limits.max_bytes} bytes: send it in parts")
        head = _ARRAY_HEAD.pack(code, value.ndim) + struct.pack(f"<{value.ndim}Q", *value.shape)
        raw = np.asarray(value, dtype=dtype, order="C").reshape(-1).view(np.uint8)
        if dtype == np.bool_:
            raw = (raw != 0).view(np.uint8)  # a bool made by a view may hold any byte; True is written as 1
        self.add(_ext_head(len(head) + raw.size, _EXT_ARRAY) + head)
        self.add(raw.data)


def _written(value: Any, limits: Limits) -> _Writer:
    try:
        writer = _Writer(limits)
        writer.write(value, depth=0)
    except _Unsendable as found:
        path = "".join(f"[{step!r:.40}]" for step in reversed(found.path))
        raise WireError(f"value{path} {found.reason}.") from None
    return writer


def _blob_head(size: int, first: int) -> bytes:
    """The head of a byte string (`first` = 0xC4) or an extension (0xC7): three widths of length, the shortest wins."""
    if size < 2**8:
        return struct.pack(">BB", first, size)
    return struct.pack(">BH", first + 1, size) if size < 2**16 else struct.pack(">BI", first + 2, size)


def _ext_head(size: int, code: int) -> bytes:
    return (bytes([_FIXED_EXT[size]]) if size in _FIXED_EXT else _blob_head(size, 0xC7)) + bytes([code])


def _extent(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """The bytes that the shape asks for, with a length of 0 counted as 1.

    An empty array of shape (0, 2^50) has no bytes, but a sum over its first axis would ask for 2^50 numbers.
    """
    return math.prod(max(length, 1) for length in shape) * dtype.itemsize


_CURES = {
    "set": "sorted(value)",
    "bytearray": "bytes(value)",
    "DataFrame": "{name: value[name].to_numpy() for name in value}",
    "Series": "value.to_numpy()",
    "MaskedArray": "value.filled(...), since what lies under the mask would travel too",
}


def _cure(value: object) -> str:
    kind = type(value).__name__
    if kind in _CURES:
        return _CURES[kind]
    if isinstance(value, np.ndarray):
        return "np.asarray(value)"
    for base in (int, float, str, bytes, dict, list, tuple):
        if isinstance(value, base):
            return f"{base.__name__}(value)"
    return "None, bool, int, float, str, bytes, a list, a dict or a numpy array of numbers"


def _array_cure(dtype: np.dtype[Any]) -> str:
    if dtype.kind in "OSUT":
        return "value.tolist(), or integer codes with the list of categories"
    if dtype.kind in "mM":
        return "value.astype('int64') and the unit as text"
    return "bool, int8..int64, uint8..uint64, float32 or float64 (value.astype)"


# --- reading ---------------------------------------------------------------------------------------------

# Kinds of item. The order matters to `_scan`: first those that are complete with their head, last the containers.
_LEAF, _UNSIGNED, _SIGNED, _UNUSED, _FLOAT, _BIN, _STR, _EXT, _LIST, _MAP = range(10)
_Head = tuple[int, struct.Struct | None, int]


def _heads() -> tuple[_Head, ...]:
    """For each first byte: the kind, how its number is read (or None), and the number's bound.

    Without a reader the bound *is* the number. With one, the bound is the value nearest to zero that needs this
    form: anything nearer has a shorter form and is refused.
    """
    heads: list[_Head] = [(_UNUSED, None, 0)] * 256
    for byte in (*range(0x80), *range(0xE0, 0x100), 0xC0, 0xC2, 0xC3):
        heads[byte] = (_LEAF, None, 0)
    heads[0xCB] = (_FLOAT, None, 8)  # 0xCA, the 32-bit float, is never written: every Python float has 64 bits
    for first, kind, count in ((0x80, _MAP, 16), (0x90, _LIST, 16), (0xA0, _STR, 32)):
        heads[first : first + count] = [(kind, None, number) for number in range(count)]
    for size, byte in _FIXED_EXT.items():
        heads[byte] = (_EXT, None, size)
    for first, kind, formats, bounds in (
        (0xC4, _BIN, "BHI", (0, 2**8, 2**16)),
        (0xC7, _EXT, "BHI", (0, 2**8, 2**16)),
        (0xCC, _UNSIGNED, "BHIQ", (2**7, 2**8, 2**16, 2**32)),
        (0xD0, _SIGNED, "bhiq", (-(2**5) - 1, -(2**7) - 1, -(2**15) - 1, -(2**31) - 1)),
        (0xD9, _STR, "BHI", (2**5, 2**8, 2**16)),
        (0xDC, _LIST, "HI", (2**4, 2**16)),
        (0xDE, _MAP, "HI", (2**4, 2**16)),
    ):
        for step, (letter, bound) in enumerate(zip(formats, bounds, strict=True)):
            heads[first + step] = (kind, struct.Struct(">" + letter), bound)
    return tuple(heads)


_HEADS = _heads()


def _broken(what: str) -> WireError:
    return WireError(f"the message is broken: {what}; send it again with colonnade.federation.wire.encode.")


def _scan(data: bytes, limits: Limits) -> None:
    """Walk the one item and all that is in it; refuse every form that `encode` does not write.

    There is one small frame per open container and nothing is built, so neither depth nor claims cost memory.
    What it leaves to the builders: the UTF-8 of strings, and the inside of extensions (`_extension`).
    """
    position, end, items = _START, len(data), 1
    left, in_map, last_key = 1, False, None  # the open container: items to come, and for a map the last key seen
    frames: list[tuple[int, bool, bytes | None]] = []
    while True:
        while not left:
            if not frames:
                if position != end:
                    raise _broken(f"{end - position} bytes follow its end")
                return
            left, in_map, last_key = frames.pop()
        is_key = in_map and left % 2 == 0
        left -= 1
        kind, reader, number = _HEADS[data[position]]
        position += 1
        if is_key and kind != _STR:
            raise _broken(f"the key of a dict is not a str at byte {position - 1}")
        if kind == _LEAF:
            continue
        if reader is not None:
            bound = number
            (number,) = reader.unpack_from(data, position)
            position += reader.size
            if number > bound if kind == _SIGNED else number < bound:
                raise _broken(f"a number or length is not in its shortest form before byte {position}")
        if kind <= _SIGNED:
            continue
        if kind == _UNUSED:
            raise _broken(f"byte {position - 1} begins no item of this format")
        if kind >= _LIST:
            number = number if kind == _LIST else 2 * number
            items += number
            if number > end - position:
                raise _broken(f"a container claims {number} items and only {end - position} bytes follow")
            if items > limits.max_items:
                raise WireError(f"the message has over {limits.max_items} items; send numbers as a numpy array.")
            frames.append((left, in_map, last_key))
            if len(frames) > limits.max_depth:
                raise WireError(f"the message nests deeper than {limits.max_depth} containers; send a flatter value.")
            left, in_map, last_key = number, kind == _MAP, None
            continue
        if kind == _EXT:
            if data[position] not in (_EXT_INT, _EXT_ARRAY):
                raise _broken(f"extension type {data[position]} at byte {position} is unknown")
            if reader is not None and number in _FIXED_EXT:
                raise _broken(f"a length is not in its shortest form before byte {position}")
            position += 1
        if number > end - position:
            raise _broken(f"an item claims {number} bytes and only {end - position} follow")
        if kind == _STR and number > limits.max_str:
            raise WireError(f"the message has text of more than {limits.max_str} bytes; send it as bytes or in parts.")
        if is_key:
            key = data[position : position + number]
            if last_key is not None and key <= last_key:
                raise _broken(f"a dict key is repeated or out of order at byte {position}")
            last_key = key
        position += number


def _extension(limits: Limits, code: int, payload: bytes) -> Any:
    return _read_int(payload) if code == _EXT_INT else _read_array(payload, limits)


def _read_int(payload: bytes) -> int:
    """A sign byte and a magnitude, big-endian; only for what 64 bits cannot hold."""
    if not 2 <= len(payload) <= 1 + MAX_INT_BITS // 8 or payload[0] > 1:
        raise _broken(f"a long integer has no sign, or not 1 to {MAX_INT_BITS} bits")
    value = int.from_bytes(payload[1:], "big") * (-1 if payload[0] else 1)
    if payload[1] == 0 or -(2**63) <= value < 2**64:
        raise _broken("a long integer is not in its shortest form")
    return value


def _read_array(payload: bytes, limits: Limits) -> np.ndarray[Any, Any]:
    """A view of the payload, which msgpack has already copied out of the message."""
    if len(payload) < _ARRAY_HEAD.size or any(payload[2 : _ARRAY_HEAD.size]):
        raise _broken("the head of an array is not as it should be")
    code, ndim = _ARRAY_HEAD.unpack_from(payload)
    start = _ARRAY_HEAD.size + 8 * ndim
    if code not in _DTYPES or ndim > MAX_NDIM or len(payload) < start:
        raise _broken(f"an array has dtype code {code}, {ndim} dimensions and {len(payload)} bytes")
    dtype, shape = _DTYPES[code], struct.unpack_from(f"<{ndim}Q", payload, _ARRAY_HEAD.size)
    # Python's integers do not overflow, so a shape such as (2^62, 4, 8) cannot wrap round to the right product.
    if math.prod(shape) * dtype.itemsize != len(payload) - start or _extent(shape, dtype) > limits.max_bytes:
        raise _broken(f"an array of shape {shape} and dtype {dtype} does not fit its {len(payload) - start} bytes")
    array = np.ndarray(shape, dtype, buffer=payload, offset=start)
    if dtype == np.bool_ and array.view(np.uint8).max(initial=0) > 1:
        raise _broken("a bool in an array is neither 0 nor 1")
    return array
