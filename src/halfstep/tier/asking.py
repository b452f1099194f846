"""What every call about blocks of a tier asks first: of whose memory, which rows and layers, how urgent, how many batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from halfstep.client.sections import SECTIONS_MAX
from halfstep.errors import ConfigError
from halfstep.tier.memory import Memory, Piece
from halfstep.tier.shapes import KVLayout

if TYPE_CHECKING:
    from halfstep.tier.face import Tier, TierSession

T = TypeVar("T")


def lies_in(piece: Piece, layers: range) -> bool:
    """Whether a cell's layers are among those of the model. Errors: ConfigError (some of them are)."""
    if not isinstance(layers, range):
        raise ConfigError(f"layers={layers!r}: must be a range of the model's layers")
    kind = piece.cell.kind
    numbers = [kind.layers[at] for at in piece.cell.layers]
    among = [number in layers for number in numbers]
    if any(among) and not all(among):
        raise ConfigError(
            f"layers={layers}: cuts a cell of kind {kind.name!r}, which has the layers {numbers[0]} to {numbers[-1]}; "
            "take ranges between cells, or a Grid with more layers"
        )
    return all(among)


def urgency_of(tier: Tier, session: TierSession | None, priority: int | None) -> int:
    """The call's own, or its session's, or the tier's."""
    return session.urgency if session is not None and priority is None else tier.urgency(priority)


def check_memory(memory: Memory, layout: KVLayout, session: TierSession | None) -> None:
    """Of another layout's memory every byte would be another model's."""
    if not isinstance(memory, Memory):
        raise ConfigError(f"memory ({type(memory).__name__}): must be a halfstep.tier.Memory; Tier.memory makes one")
    if memory.layout != layout:
        raise ConfigError(f"memory: is of layout {memory.layout.layout.id.hex()}, this tier has {layout.layout.id.hex()}")
    if session is not None and not hasattr(session, "urgency"):
        raise ConfigError(f"session ({type(session).__name__}): must be a TierSession; Tier.session makes one")


def places_of(rows: npt.ArrayLike | None, first: int, count: int, memory: Memory) -> npt.NDArray[np.int64]:
    """Which blocks of memory are meant. Beyond its last one lies somebody else's head, where heads come before blocks."""
    try:
        places = np.arange(first, first + count, dtype=np.int64) if rows is None else np.asarray(rows)
    except ValueError as error:
        raise ConfigError(f"rows: {error}") from None
    if places.shape != (count,) or (count and places.dtype.kind not in "iu"):
        raise ConfigError(f"rows: shape {places.shape} of {places.dtype}; must be {count} whole numbers, one a block")
    there = memory.blocks or 0
    if count and not (int(places.min()) >= 0 and int(places.max()) < there):
        raise ConfigError(f"rows: {int(places.min())} to {int(places.max())}; this memory has the blocks 0 to {there - 1}")
    return places.astype(np.int64, copy=False)


def sixteen(sections: Sequence[T]) -> list[Sequence[T]]:
    """As many in a batch as it takes."""
    return batches_of(sections, alone=False)


def batches_of(sections: Sequence[T], *, alone: bool) -> list[Sequence[T]]:
    """alone: each in a batch of its own, so that none is kept back by what another one waits for."""
    size = 1 if alone else SECTIONS_MAX
    return [sections[at : at + size] for at in range(0, len(sections), size)]
