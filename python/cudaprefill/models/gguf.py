"""Reading the GGUF file format (github.com/ggml-org/ggml, docs/gguf.md), versions 2 and 3, little-endian.

    magic "GGUF" | version u32 | number of tensors u64 | number of metadata pairs u64
    metadata pairs: key, type u32, value              strings are a u64 length and UTF-8
    tensor infos: name, number of dimensions u32, dimensions u64 (fastest first), quantisation u32, offset u64
    padding to general.alignment, then the tensors at their offsets

The header is parsed here, for the reader of the `gguf` package takes seconds over a vocabulary; the block formats of
quantised tensors are that package's.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from cudaprefill.models.errors import WeightsError
from cudaprefill.models.regular_file import check_regular_file

_SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
_ALIGNMENTS = [1 << bit for bit in range(32)]


@dataclass(frozen=True)
class GgufTensor:
    """A tensor as it lies in the mapped file."""

    name: str
    shape: tuple[int, ...]  # slowest dimension first
    quantisation: gguf.GGMLQuantizationType
    rows: npt.NDArray[np.uint8]  # [product of all but the last dimension, bytes of one row]

    def dequantise(self, rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Values of some of this tensor's `rows`, [rows, row length], in memory of their own."""
        try:
            values: npt.NDArray[np.float32] = gguf.quants.dequantize(rows.reshape(1, -1), self.quantisation)
        except NotImplementedError:
            kind = self.quantisation.name
            raise WeightsError(f"tensor {self.name!r} is stored as {kind}, which cannot be dequantised") from None
        return np.require(values, requirements="W").reshape(rows.shape[0], self.shape[-1])


class GgufFile:
    """The metadata and the mapped tensors of one file.

    Raises WeightsError with the path and the reason where the file is not GGUF, damaged, cut off or one of several.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        check_regular_file(path)
        with path.open("rb") as file:
            self._num_bytes = os.fstat(file.fileno()).st_size
            if self._num_bytes == 0:
                raise WeightsError(f"{path} is empty")
            self._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._view = memoryview(self._mapping)
        self._offset = 0
        try:
            num_tensors, num_pairs = self._read_counts()
            self.metadata: dict[str, Any] = {self._read_string(): self._read_value() for _ in range(num_pairs)}
            infos = [self._read_tensor_info() for _ in range(num_tensors)]
        except (struct.error, UnicodeDecodeError, IndexError) as error:
            raise WeightsError(f"{path} is damaged or cut off at byte {self._offset}: {error}") from None
        if self.metadata.get("split.count", 1) not in (0, 1):
            raise WeightsError(f"{path} is one of split.count = {self.metadata['split.count']} files; merge them first")
        alignment = self.metadata.get("general.alignment", 32)
        if alignment not in _ALIGNMENTS:
            raise WeightsError(f"{path}: general.alignment must be a power of two, got {alignment!r}")
        start = -self._offset % alignment + self._offset
        self.tensors = {name: self._map_tensor(name, start + at, shape, code) for name, at, shape, code in infos}

    def let_go(self, tensor: GgufTensor) -> None:
        """Takes the pages of a tensor that was read out of this process; who reads it again gets them from the file."""
        if hasattr(mmap, "MADV_DONTNEED") and tensor.rows.nbytes > 0:
            start = tensor.rows.ctypes.data - np.frombuffer(self._view, np.uint8).ctypes.data
            first = start // mmap.PAGESIZE * mmap.PAGESIZE
            self._mapping.madvise(mmap.MADV_DONTNEED, first, start + tensor.rows.nbytes - first)

    def _read_counts(self) -> tuple[int, int]:
        if bytes(self._view[:4]) != b"GGUF":
            raise WeightsError(f"{self.path} is not a GGUF file: it begins with {bytes(self._view[:4])!r}")
        self._offset = 4
        version = self._unpack("<I")
        if version not in (2, 3):
            kind = "a big-endian file" if version & 0xFFFF == 0 else f"version {version}"
            raise WeightsError(f"{self.path} is {kind}, only little-endian GGUF of version 2 and 3 is read")
        return self._unpack("<Q"), self._unpack("<Q")

    def _read_tensor_info(self) -> tuple[str, int, tuple[int, ...], int]:
        name = self._read_string()
        num_dimensions = self._unpack("<I")
        if num_dimensions > _MAX_DIMENSIONS:
            raise IndexError(f"tensor {name!r} has {num_dimensions} dimensions, more than {_MAX_DIMENSIONS}")
        shape = tuple(self._unpack("<Q") for _ in range(num_dimensions))[::-1]
        quantisation = self._unpack("<I")
        return name, self._unpack("<Q"), shape, quantisation

    def _map_tensor(self, name: str, offset: int, shape: tuple[int, ...], code: int) -> GgufTensor:
        try:
            quantisation = gguf.GGMLQuantizationType(code)
            block_size, block_bytes = gguf.GGML_QUANT_SIZES[quantisation]
        except (ValueError, KeyError):
            raise WeightsError(f"{self.path}: tensor {name!r} has the unknown quantisation {code}") from None
        if math.prod(shape) == 0 or not shape or shape[-1] % block_size:
            raise WeightsError(f"{self.path}: tensor {name!r} of shape {shape} is not made of blocks of {block_size}")
        row_bytes = shape[-1] // block_size * block_bytes
        end = offset + math.prod(shape[:-1]) * row_bytes
        if end > self._num_bytes:
            raise WeightsError(
                f"{self.path} is cut off: tensor {name!r} lies at bytes {offset} to {end}, "
                f"the file has {self._num_bytes}"
            )
        return GgufTensor(
            name, shape, quantisation, np.frombuffer(self._view[offset:end], np.uint8).reshape(-1, row_bytes)
        )

    def _unpack(self, layout: str) -> int:
        (value,) = struct.unpack_from(layout, self._view, self._offset)
        self._offset += struct.calcsize(layout)
        return int(value)

    def _read_string(self) -> str:
        length = self._unpack("<Q")
        return str(self._take(length), "utf-8")

    def _take(self, num_bytes: int) -> memoryview:
        taken = self._view[self._offset : self._offset + num_bytes]
        if len(taken) != num_bytes:
            raise IndexError(f"{num_bytes} bytes are expected, {len(taken)} are left")
        self._offset += num_bytes
        return taken

    def _read_value(self) -> Any:
        kind = self._unpack("<I")
        if kind == _STRING:
            return self._read_string()
        if kind == _ARRAY:
            kind, count = self._unpack("<I"), self._unpack("<Q")
            if kind == _STRING:
                return [self._read_string() for _ in range(count)]
            return self._read_scalars(kind, count).tolist()
        return self._read_scalars(kind, 1)[0].item()

    def _read_scalars(self, kind: int, count: int) -> npt.NDArray[Any]:
        if kind not in _SCALARS:
            raise IndexError(f"metadata of the unknown type {kind}")
        return np.frombuffer(self._take(count * _SCALARS[kind].itemsize), dtype=_SCALARS[kind])
