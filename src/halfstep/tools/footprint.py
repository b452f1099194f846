"""What blocks take on flash, beside the bytes that clients put: by block, and by layout, group and codec.

Logical bytes are a block's own, as the listing tells them. Flash bytes are its extent: coded or plain parts, trailer, padding
to whole pages; the daemon tells them of one key at a time (Explain). They are what a namespace's quota counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.client.layout_question import ask_layout

if TYPE_CHECKING:
    from halfstep import Client
    from halfstep.client.entries import Entry


_GROUP_SHIFT = 24  # of a component


@dataclass(frozen=True)
class Footprint:
    """Of one block. flash_bytes: None where it went meanwhile.

    codec: of its parts, such as "raw" or "bfx+ubq"; what its layout names where the block went or its daemon does not say.
    """

    entry: Entry
    codec: str
    flash_bytes: int | None


@dataclass
class LayoutFootprint:
    """Of the blocks of one layout, group and codec that were looked at and are still there."""

    layout_id: bytes
    group: int
    codec: str
    blocks: int = 0
    logical_bytes: int = 0
    flash_bytes: int = 0

    @property
    def ratio(self) -> float:
        """Logical bytes to those on flash; below 1 where padding weighs more than a codec gains."""
        return self.logical_bytes / self.flash_bytes if self.flash_bytes else 1.0


def footprints(client: Client, entries: Iterable[Entry]) -> Iterator[Footprint]:
    """One request for each block, and one for each layout. Errors: Unavailable, ProtocolError."""
    codecs: dict[bytes, str] = {}
    for entry in entries:
        if entry.layout_id not in codecs:
            layout = ask_layout(client.url, entry.layout_id)
            codecs[entry.layout_id] = "" if layout is None else layout.fields.get("codec", "")
        told = client.admin.explain(entry.key, [range(entry.component, entry.component + 1)], every_group=False)
        here = (
            (block.get("codec", codecs[entry.layout_id]), block["extent_bytes"])
            for block in told["blocks"]
            if block["layout"] == entry.layout_id.hex() and block["component"] == entry.component and block["there"]
        )
        yield Footprint(entry, *next(here, (codecs[entry.layout_id], None)))


def by_layout(told: Iterable[Footprint]) -> list[LayoutFootprint]:
    """The sums, in the order of the first block of each."""
    sums: dict[tuple[bytes, int, str], LayoutFootprint] = {}
    for one in told:
        if one.flash_bytes is None:
            continue
        kind = one.entry.layout_id, one.entry.component >> _GROUP_SHIFT, one.codec
        layout = sums.setdefault(kind, LayoutFootprint(*kind))
        layout.blocks += 1
        layout.logical_bytes += one.entry.block_bytes
        layout.flash_bytes += one.flash_bytes
    return list(sums.values())
