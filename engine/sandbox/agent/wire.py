"""Frames of the agent protocol, shared by both ends.

Tagged bencoding instead of JSON: it carries raw bytes and any file name, needs no imports, and decoding
hostile input can only raise ValueError. To support another type, add a tag to ``_encode`` and ``_decode``.
"""

from __future__ import annotations

MAX_FRAME = 64 * 1024 * 1024
"""Largest frame either side accepts, bytes."""
_MAX_DEPTH = 8


def encode(value: object) -> bytes:
    """Encode None, bool, int, bytes, str (surrogate escapes included), lists, and dicts with str keys."""
    out: list[bytes] = []
    _encode(value, out)
    return b"".join(out)


def _encode(value: object, out: list[bytes]) -> None:
    if value is None:
        out.append(b"n")
    elif isinstance(value, bool):
        out.append(b"t" if value else b"f")
    elif isinstance(value, int):
        out.append(b"i%d;" % value)
    elif isinstance(value, bytes):
        out += (b"b%d;" % len(value), value)
    elif isinstance(value, str):
        raw = value.encode("utf-8", "surrogateescape")
        out += (b"s%d;" % len(raw), raw)
    elif isinstance(value, (list, tuple)):
        out.append(b"l%d;" % len(value))
        for item in value:
            _encode(item, out)
    elif isinstance(value, dict):
        out.append(b"d%d;" % len(value))
        for key, item in value.items():
            _encode(key, out)
            _encode(item, out)
    else:
        raise TypeError("cannot encode %r" % type(value))


def decode(data: bytes, max_values: int = MAX_FRAME) -> object:
    """Decode a value. Raises ValueError on malformed input.

    ``max_values`` limits the total length of lists and dicts: a decoded value costs far more time and memory
    than its encoding, which may be one byte.
    """
    value, end = _decode(data, 0, 0, [max_values])
    if end != len(data):
        raise ValueError("trailing bytes")
    return value


def _decode(data: bytes, at: int, depth: int, room: list[int]) -> tuple[object, int]:
    tag = data[at : at + 1]
    at += 1
    if tag == b"n":
        return None, at
    if tag in (b"t", b"f"):
        return tag == b"t", at
    end = data.find(b";", at, at + 24)
    if end < 0 or depth > _MAX_DEPTH:
        raise ValueError("malformed or too deeply nested value")
    number = int(data[at:end])
    at = end + 1
    if tag == b"i":
        return number, at
    if not 0 <= number <= len(data) - at:
        raise ValueError("malformed length")
    if tag == b"b":
        return data[at : at + number], at + number
    if tag == b"s":
        return data[at : at + number].decode("utf-8", "surrogateescape"), at + number
    if tag not in (b"l", b"d"):
        raise ValueError("unknown tag")
    room[0] -= number
    if room[0] < 0:
        raise ValueError("too many values")
    if tag == b"d":
        return _decode_dict(data, at, depth, number, room)
    items = []
    for _ in range(number):
        item, at = _decode(data, at, depth + 1, room)
        items.append(item)
    return items, at


def _decode_dict(
    data: bytes, at: int, depth: int, number: int, room: list[int]
) -> tuple[dict[str, object], int]:
    table: dict[str, object] = {}
    for _ in range(number):
        key, at = _decode(data, at, depth + 1, room)
        if not isinstance(key, str):
            raise ValueError("a key is not text")
        table[key], at = _decode(data, at, depth + 1, room)
    return table, at


def frame(value: object) -> bytes:
    """Return four bytes of big-endian length and the encoded value. Raises ValueError above ``MAX_FRAME``."""
    body = encode(value)
    if len(body) > MAX_FRAME:
        raise ValueError("a frame of %d bytes is larger than %d" % (len(body), MAX_FRAME))
    return len(body).to_bytes(4, "big") + body
