"""TensorFlow's checkpoints without TensorFlow: NAME.index, a table in LevelDB's format, and NAME.data-*, the bytes of tensors.

The table's values are protocol buffers, those of tensorflow/core/protobuf/tensor_bundle.proto.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

_NUM_SHARDS, _ENDIANNESS = 1, 2  # fields of BundleHeaderProto
_DTYPE, _SHAPE, _SHARD, _OFFSET, _SIZE, _CRC32C, _SLICES = range(1, 8)  # of BundleEntryProto
_DTYPES = {1: "<f4", 2: "<f8", 19: "<f2"}  # of DataType; whole numbers, such as the step's, are no weights
_FOOTER, _MAGIC = 48, bytes.fromhex("57fb808b247547db")  # its size in bytes, and its last ones
_SLOTS = re.compile(r"/(adam|lamb)_[mv]$")  # the optimizer's
_NAMES = (  # of Google's BERT, and Hugging Face's
    (r"/", "."),
    (r"\.layer_(\d+)\.", r".layer.\1."),
    (r"\.(kernel|output_weights)$", ".weight"),
    (r"\.output_bias$", ".bias"),
    (r"_embeddings$", "_embeddings.weight"),
)


def read_bundle(index: Path) -> Iterator[tuple[str, Tensor]]:
    """The weights of a checkpoint by Hugging Face's names, without the optimizer's. index: its .index file.

    Raises ValueError, which says why, or LookupError for a damaged file or another format; ModelError for partitioned
    variables; and OSError.
    """
    import torch

    table = _table(index.read_bytes())
    entries = {key.decode(): dict(_fields(value)) for key, value in table if not key.startswith(b"\0")}  # of a slice
    header = entries.pop("")
    if header.get(_ENDIANNESS):
        raise ValueError("from a machine with another byte order")
    count = header[_NUM_SHARDS]
    shards = [np.memmap(index.with_suffix(f".data-{shard:05}-of-{count:05}"), np.uint8, "r") for shard in range(count)]
    for name, entry in entries.items():
        if entry[_DTYPE] not in _DTYPES or _SLOTS.search(name):
            continue
        if _SLICES in entry:
            what = f"the checkpoint has partitioned variables, such as {name}"
            raise ModelError(what, where=str(index), hint="save it without a partitioner")
        start = entry.get(_OFFSET, 0)
        stored = shards[entry.get(_SHARD, 0)][start : start + entry[_SIZE]]
        if len(stored) < entry[_SIZE] or _masked_crc32c(stored) != entry[_CRC32C]:
            raise ValueError(f"damaged: {name} does not match its checksum")
        shape = [dict(_fields(size)).get(1, 0) for _, size in _fields(entry.get(_SHAPE, b""))]
        tensor = torch.from_numpy(stored.view(_DTYPES[entry[_DTYPE]]).reshape(shape).copy())
        transposed = name.endswith("/kernel")
        for pattern, replacement in _NAMES:
            name = re.sub(pattern, replacement, name)
        yield name, tensor.T if transposed else tensor


def _table(file: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a table, whose last block says where the others are."""
    if not file.endswith(_MAGIC):
        raise ValueError("truncated or not a TensorFlow checkpoint")
    footer = BytesIO(file[-_FOOTER:])
    _, _, start, size = (_varint(footer) for _ in range(4))
    for _, handle in _block(file, start, size):
        place = BytesIO(handle)
        yield from _block(file, _varint(place), _varint(place))


def _block(file: bytes, start: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a block: a key is the length of the prefix that it shares with the one before, and the rest."""
    block, compression, checksum = file[start : start + size], file[start + size], file[start + size + 1 : start + size + 5]
    if _masked_crc32c(np.frombuffer(file[start : start + size + 1], np.uint8)) != int.from_bytes(checksum, "little"):
        raise ValueError("damaged: the index does not match its checksum")
    if compression:
        raise ValueError("compressed, which TensorFlow never does")
    stream, key = BytesIO(block), b""
    restarts = int.from_bytes(block[-4:], "little")  # positions of whole keys, for searching
    while stream.tell() < size - 4 * restarts - 4:
        shared, rest, length = _varint(stream), _varint(stream), _varint(stream)
        key = key[:shared] + stream.read(rest)
        yield key, stream.read(length)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protocol buffer: each field number with its value, an integer or bytes."""
    stream = BytesIO(message)
    while stream.tell() < len(message):
        number, kind = divmod(_varint(stream), 8)
        if kind == 2:
            yield number, stream.read(_varint(stream))
        else:
            yield number, _varint(stream) if kind == 0 else int.from_bytes(stream.read({1: 8, 5: 4}[kind]), "little")


def _varint(stream: BytesIO) -> int:
    """An integer in 7 bits per byte, lowest first; every byte but the last has its top bit set."""
    number = shift = 0
    while (byte := stream.read(1)[0]) > 127:
        number, shift = number | (byte & 127) << shift, shift + 7
    return number | byte << shift


# --- checksums ---------------------------------------------------------------------------------------------------------

_PART = 7  # a part has 2**7 pairs of bytes, read one after another, for all parts at once
_NEXT: NDArray[np.uint32] = np.arange(2**16, dtype=np.uint32)  # the remainder after a pair
for _ in range(16):
    _NEXT = _NEXT >> np.uint32(1) ^ (_NEXT & np.uint32(1)) * np.uint32(0x82F63B78)


def crc32c(data: NDArray[np.uint8]) -> int:
    """The CRC-32C of at least four bytes. Apart from the XOR at both ends it is linear: parts are computed and combined."""
    count = 1 << (len(data) - 1 >> _PART + 1).bit_length()
    padded = np.zeros(count << _PART + 1, dtype=np.uint8)  # zeros in front change nothing
    padded[-len(data) :] = data
    padded[-len(data) :][:4] ^= 255
    crc = np.zeros(count, dtype=np.uint32)
    for column in np.ascontiguousarray(padded.view("<u2").reshape(count, -1).T):
        crc = _NEXT[(crc ^ column) & 0xFFFF] ^ crc >> 16
    power = _PART
    while len(crc) > 1:
        crc, power = _after(_zeros(power), crc[::2]) ^ crc[1::2], power + 1
    return int(crc[0]) ^ 0xFFFFFFFF


@cache
def _zeros(power: int) -> NDArray[np.uint32]:
    """(2, 65536): the remainder after 2**power pairs of zero bytes, for each lower half and each upper half of a remainder."""
    return _after(_zeros(power - 1), _zeros(power - 1)) if power else np.stack([_NEXT, np.arange(2**16, dtype=np.uint32)])


def _after(zeros: NDArray[np.uint32], crc: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return zeros[0][crc & 0xFFFF] ^ zeros[1][crc >> 16]


def _masked_crc32c(data: NDArray[np.uint8]) -> int:
    """The checksum masked as in TensorFlow: a plain checksum of data that contains checksums would be weak."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
