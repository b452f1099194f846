"""Where bytes of a batch go to or come from: registered memory by row or address, or whatever a caller has.

Errors of every function: ConfigError.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from halfstep import _peer
from halfstep.client.arrays import unsigned_array, whole_numbers
from halfstep.client.region import Addresses, Region, Rows, Template
from halfstep.errors import ConfigError


def place(
    batch: _peer.Batch, where: Rows | Addresses, items: int, *, is_source: bool, block_bytes: npt.NDArray[Any] | None = None
) -> Sequence[Region]:
    """Says where in registered memory bytes go to or come from; returns the regions. Errors: ConfigError."""
    if isinstance(where, Addresses):
        if block_bytes is not None:
            raise ConfigError("block_bytes: the lengths of addresses say it; leave it out")
        if isinstance(where.regions, Region) or not isinstance(where.regions, Iterable):
            raise ConfigError(f"regions ({type(where.regions).__name__}): must be a list of regions")
        regions = list(where.regions)
        if wrong := [type(region).__name__ for region in regions if not isinstance(region, Region)]:
            raise ConfigError(f"regions ({wrong[0]}): must be regions; Client.register makes one")
        addresses = np.ascontiguousarray(unsigned_array("addresses", where.addresses, np.uint64))
        if addresses.ndim > 2 or (addresses.ndim == 2 and addresses.shape[0] != items):
            raise ConfigError(f"addresses: shape {addresses.shape}; must be [items={items}, pieces], or flat")
        told = unsigned_array("lengths", where.lengths, np.uint32)
        if told.shape not in ((), addresses.shape):
            raise ConfigError(f"lengths: shape {told.shape}; must be one number, or that of addresses, {addresses.shape}")
        lengths = np.ascontiguousarray(np.broadcast_to(told, addresses.shape))
        batch.set_addresses([region.native for region in regions], addresses, lengths, is_source)
        return regions
    if not isinstance(where.template, Template):
        raise ConfigError(f"template ({type(where.template).__name__}): must be a Template; Region.template makes one")
    rows = np.ascontiguousarray(whole_numbers("rows", where.rows))
    batch.set_rows(where.template.native, rows, is_source, block_bytes)
    return where.template.regions


def place_source(batch: _peer.Batch, source: object, items: int, block_bytes: npt.NDArray[Any] | None) -> Sequence[Region]:
    """As place, for whatever a put may read. Errors: ConfigError."""
    if isinstance(source, (Rows, Addresses)):
        return place(batch, source, items, is_source=True, block_bytes=block_bytes)
    batch.set_source(source, block_bytes)
    return ()


def streams_of(stream: object) -> list[int]:
    """The CUDA stream whose work comes before a batch touches memory of a GPU: a number, or what has one as `cuda_stream`.

    -1: none, the memory is ready, as DLPack has it. Errors: ConfigError.
    """
    number = getattr(stream, "cuda_stream", stream)
    if isinstance(number, bool) or not isinstance(number, int) or not -1 <= number < 1 << 64:
        raise ConfigError(f"stream={stream!r}: must be a CUstream as a number, an object with cuda_stream, or -1 for none")
    return [] if number == -1 else [number]
