"""Pulsar's compression methods, used for lists of ledgers and for the contents of messages. Pure.

Memory is limited to the caller's `size`, and the result must have exactly that length. Pulsar never finishes a ZLIB
stream, so its end is not required.
"""

import zlib
from collections.abc import Callable
from enum import IntEnum

import cramjam


class Compression(IntEnum):
    """CompressionType of PulsarApi.proto and MLDataFormats.proto."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


class Undecodable(ValueError):
    """The compressed bytes are invalid, or not of the declared length; the message says which."""


def decompress(method: Compression, body: bytes, size: int) -> bytes:
    """Return the `size` bytes that `body` contains. Raises Undecodable."""
    return _METHODS[method](body, size)


def _none(body: bytes, size: int) -> bytes:
    return _sized(body, len(body), size)


def _zlib(body: bytes, size: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, size + 1)
    except zlib.error as error:
        raise Undecodable(error) from None
    if stream.unused_data:
        raise Undecodable(f"{len(stream.unused_data)} bytes behind the end of the stream")
    return _sized(data, len(data), size)


def _lz4(body: bytes, size: int) -> bytes:
    """Decode a raw block. The library fills up with zeros unless it is asked for the number of bytes."""
    return _into(size, lambda out: cramjam.lz4.decompress_block_into(body, out, output_len=size))


def _zstd(body: bytes, size: int) -> bytes:
    return _into(size, lambda out: cramjam.zstd.decompress_into(body, out))


def _snappy(body: bytes, size: int) -> bytes:
    return _into(size, lambda out: cramjam.snappy.decompress_raw_into(body, out))


def _into(size: int, method: Callable[[bytearray], int]) -> bytes:
    """Let the library write into a buffer of the declared size, which it cannot exceed."""
    out = bytearray(size)
    try:
        written = method(out)
    except cramjam.DecompressionError as error:
        raise Undecodable(error) from None
    return _sized(bytes(out), written, size)


def _sized(data: bytes, length: int, size: int) -> bytes:
    if length != size:
        raise Undecodable(f"{length} bytes" if length < size else f"more than {size} bytes")
    return data


_METHODS: dict[Compression, Callable[[bytes, int], bytes]] = {
    Compression.NONE: _none,
    Compression.LZ4: _lz4,
    Compression.ZLIB: _zlib,
    Compression.ZSTD: _zstd,
    Compression.SNAPPY: _snappy,
}
