"""Tensors of K and V out of a file, as the bits of their elements: npz and safetensors.

Source: the safetensors format (a length of 8 bytes, a JSON header, the tensors' bytes); numpy's npz.
"""

from __future__ import annotations

import json
import mmap
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from halfstep.compress import ELEMENTS, Element
from halfstep.errors import ConfigError

_HEADER_BYTES_MAX = 100 << 20  # of the format
_SAFETENSORS: dict[str, Element] = {"BF16": "bf16", "F16": "fp16", "F8_E4M3": "e4m3", "F8_E5M2": "e5m2"}


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file. bits: uint16 or uint8, as many bytes as its element has."""

    name: str
    element: Element
    bits: npt.NDArray[Any]


def read_tensors(path: Path, *, element: Element | None = None) -> Iterator[Tensor]:
    """The tensors of a file whose elements a codec knows, in the file's order; others are left out.

    path: *.npz or *.safetensors. element: of arrays of unsigned integers in an npz, which has no name for bf16 and fp8; taken
    as bf16 (16 bits) where it is not said.
    Errors: ConfigError (no such file, or none of these).
    """
    try:
        if path.suffix == ".npz":
            yield from _of_npz(path, element)
        elif path.suffix == ".safetensors":
            yield from _of_safetensors(path)
        else:
            raise ConfigError(f"{path}: must be an .npz or a .safetensors file")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, EOFError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path}: cannot be read as {path.suffix.removeprefix('.')}: {error}") from None


def _of_npz(path: Path, element: Element | None) -> Iterator[Tensor]:
    with np.load(path, allow_pickle=False) as arrays:
        for name in arrays.files:
            array = arrays[name]
            if array.dtype == np.float16:
                yield Tensor(name, "fp16", array.view(np.uint16))
            elif array.dtype in (np.uint16, np.uint8):
                told: Element | None = element or ("bf16" if array.dtype == np.uint16 else None)
                if told is not None and ELEMENTS[told] == array.dtype.itemsize:
                    yield Tensor(name, told, array)


def _of_safetensors(path: Path) -> Iterator[Tensor]:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if len(data) < 8:
            raise ValueError(f"it has {len(data)} bytes, and the length of a header alone has 8")
        (header_bytes,) = struct.unpack_from("<Q", data)
        if header_bytes > min(_HEADER_BYTES_MAX, len(data) - 8):
            raise ValueError(f"its header would have {header_bytes} bytes")
        header = json.loads(data[8 : 8 + header_bytes])
        if not isinstance(header, dict):
            raise TypeError(f"its header is a JSON {type(header).__name__}; it must be an object")
        for name, told in header.items():
            if name == "__metadata__":
                continue
            if not isinstance(told, dict):
                raise TypeError(f"tensor {name} is described by a JSON {type(told).__name__}; it must be an object")
            kind = _SAFETENSORS.get(told.get("dtype", ""))
            if kind is None:
                continue
            begin, end = told["data_offsets"]
            shape = tuple(told["shape"])
            if not 0 <= begin <= end <= len(data) - 8 - header_bytes or end - begin != prod(shape) * ELEMENTS[kind]:
                raise ValueError(f"tensor {name} does not lie within the file")
            raw = data[8 + header_bytes + begin : 8 + header_bytes + end]
            yield Tensor(name, kind, np.frombuffer(raw, np.uint16 if ELEMENTS[kind] == 2 else np.uint8).reshape(shape))
