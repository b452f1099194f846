"""Registered memory, and where the parts of a block lie in it.

An engine's KV pool is registered once; a template says once how a row of it is strided; a batch then names rows by number, and
nothing is computed per block in Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from halfstep import _peer
from halfstep.client.living import Living
from halfstep.errors import ConfigError


class Use(Protocol):
    """A batch that reads or writes registered memory."""

    def cancel(self) -> None:
        """Ask for its end."""
        ...

    def wait(self) -> bool:
        """Wait until it is over."""
        ...


@dataclass(frozen=True)
class PartDescriptor:
    """How one part of a row lies: inner_count pieces of inner_bytes, inner_stride apart, from offset + row * row_stride.

    Bytes throughout. inner_stride: None where there is one piece, or the pieces touch. region: where the part is, if not in the
    region that makes the template (engines hold a tensor per layer).
    """

    offset: int
    row_stride: int
    inner_count: int
    inner_bytes: int
    inner_stride: int | None = None
    region: Region | None = None


class Template:
    """One descriptor per part of a block, in the order of the parts; used by any number of batches."""

    def __init__(self, parts: Iterable[PartDescriptor], region: Region | None = None) -> None:
        self.native = _peer.Template()
        self.regions: list[Region] = []
        for number, part in enumerate(parts):
            owner = part.region or region
            if owner is None:
                raise ConfigError(f"part {number}: has no region; give PartDescriptor(region=...) or use Region.template")
            stride = part.inner_bytes if part.inner_stride is None else part.inner_stride
            try:
                self.native.add(owner.native, part.offset, part.row_stride, part.inner_count, part.inner_bytes, stride)
            except ConfigError as error:
                raise ConfigError(f"part {number}: {error}") from None
            if owner not in self.regions:
                self.regions.append(owner)
        if not self.regions:
            raise ConfigError("template: has no parts; it needs one descriptor per part of a block")

    @property
    def block_bytes(self) -> int:
        """Bytes of a row, all parts together."""
        return self.native.block_bytes


@dataclass(frozen=True)
class Rows:
    """A target or source: row rows[i] of the template's regions holds item i. rows: int64 array, one per item."""

    template: Template
    rows: Any


@dataclass(frozen=True)
class Addresses:
    """A target or source: pieces of registered memory by address, as engines name them; checked, and no object for each.

    addresses: array of [items, pieces] whole numbers, or flat, the pieces of an item one after the other. lengths: bytes of
    each, an array alike or one number. regions: those that they lie in; each piece within one of them.
    """

    regions: Sequence[Region]
    addresses: Any
    lengths: Any


class Region:
    """Memory that stays registered until close(), which fences first: afterwards nothing reads or writes it.

    address and bytes are those of the buffer; whoever owns it must not free it before close(). direct: over RDMA daemons write
    what is got straight into it, and read what is put out of it. Then nothing in a target may be used or written, and nothing
    in a source written, before the call that names it is over. The memory is pinned by the first such call, and a forked child
    may have none of it.
    """

    def __init__(self, buffer: object, *, direct: bool = False) -> None:
        self.direct = direct
        try:
            self.native, self.writable = _peer.Region(buffer, True, direct), True
        except ConfigError:
            # Not writable, or not usable at all: then this says why.
            self.native, self.writable = _peer.Region(buffer, False), False
            if direct:
                raise ConfigError("region: direct=True is for memory that daemons write into, and this is read-only") from None
        self._uses: Living[Use] = Living()

    @property
    def address(self) -> int:
        """Where it starts; 0 once closed."""
        return self.native.address

    @property
    def bytes(self) -> int:
        """How long it is; 0 once closed."""
        return self.native.bytes

    @property
    def closed(self) -> bool:
        """Whether it was released."""
        return self.native.closed

    def template(self, parts: Sequence[PartDescriptor]) -> Template:
        """A template whose parts lie in this region, except those that name another."""
        return Template(parts, self)

    def used_by(self, use: Use) -> None:
        """Remember a batch that reads or writes the memory."""
        self._uses.add(use)

    def close(self) -> None:
        """Refuse further batches, cancel those that use it, wait for their terminal events, release it. Idempotent."""
        self.native.refuse()
        # Who submits meanwhile is refused: nothing is added to what is waited for here.
        while self.native.uses:
            uses = tuple(self._uses)
            for use in uses:
                use.cancel()
            for use in uses:
                use.wait()
        self.native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
