"""Pages of an engine's host pool whose pieces hold K or V: what a lossy policy makes of them.

    memory layout        pieces of a page           parts, in turn             what a policy may tell apart
    layer_first          K, V of each layer         K0 V0 K1 V1 …              planes and layers
    page_first_direct    K, V: [layers, tokens, …]  K0 K1 … V0 V1 …, cut here  planes and layers
    page_first           K, V: [tokens, layers, …]  K V                        planes
    page_head            K, V: [heads, tokens, layers, …]  K V                 planes

Invariants: a page is cut for a lossy policy alone, so that exact ones have the blocks that they always had. A row of MLA holds
its latent and its rotary part, which is never lossy: no lossy policy takes such pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from halfstep.errors import ConfigError
from halfstep.tier import Part, PartValues, Plane, Stride, listed_fields

if TYPE_CHECKING:
    from halfstep.tier import Policy

_CUT = "page_first_direct"
_WHOLE = ("page_first", "page_head")


def lossy_pages(
    policy: Policy, memory_layout: str, pieces: Sequence[Stride], *, layers: int, page_tokens: int, values: PartValues | None
) -> tuple[dict[str, str], list[Stride]]:
    """Fields of a layout of such pages, and the pieces, one a part.

    values: what the pieces hold, with a row that repeats. Errors: ConfigError (nobody says which piece is K and which is V).
    """
    planes: tuple[Plane, Plane] = ("k", "v")
    if memory_layout == "layer_first" and len(pieces) == 2 * layers:
        parts = [Part(layer, plane, values) for layer in range(layers) for plane in planes]
        return listed_fields(policy, parts, layers, page_tokens), list(pieces)
    if memory_layout == _CUT and len(pieces) == 2 and not any(piece.bytes % layers for piece in pieces):
        cut = [_layer_of(piece, layer, layers) for piece in pieces for layer in range(layers)]
        parts = [Part(layer, plane, values) for plane in planes for layer in range(layers)]
        return listed_fields(policy, parts, layers, page_tokens), cut
    if memory_layout in _WHOLE and len(pieces) == 2:
        return listed_fields(policy, [Part(None, plane, values) for plane in planes], layers, page_tokens), list(pieces)
    raise ConfigError(
        f"policy {policy.name!r}: is lossy, and in a pool of memory layout {memory_layout!r} with {len(pieces)} pieces a page "
        "nobody says which values are K and which are V; take 'exact'"
    )


def depths_of(pages: int, before: Sequence[object] | None) -> list[int]:
    """At least how many pages lie before each of these, which follow one another. before: those pages; None: not known."""
    first = len(before or ())
    return list(range(first, first + pages))


def _layer_of(piece: Stride, layer: int, layers: int) -> Stride:
    each = piece.bytes // layers
    return Stride(piece.address + layer * each, piece.stride, each)
