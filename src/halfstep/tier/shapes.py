"""What a block of KV cache holds, in canonical form: kinds of attention, planes, and cells of a head x layer grid.

A block has `block_tokens` tokens of one kind's layers and heads, or of a cell of them. Its order is the same whoever writes it:
layer by layer; within a layer plane by plane (K, then V), head by head; a head's plane is [entries, plane bytes]. Each of those
is one part: what can be verified, and read, alone. Where the planes differ in size the order within a layer is head by head,
plane by plane, because a block repeats at most four sizes.

    parts of a cell of 2 layers and 2 heads: K00 K01 V00 V01 K10 K11 V10 V11     (plane, layer, head)

A grid cuts heads and layers into cells, each written whole by one writer. Ranks that own whole cells write them, whatever their
number; a rank that owns a part of a cell reads it and writes nothing. So what two ranks have written four can read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from halfstep.arguments import whole_number
from halfstep.compress import CODECS, LOSSY, PartValues, coding_fields
from halfstep.compress.policy import PLANES, Plane, Policy, policy_of
from halfstep.errors import ConfigError
from halfstep.layout import CELLS_MAX, GROUPS_MAX, PART_SIZES_MAX, PARTS_MAX, Group, Layout, component
from halfstep.tier.coding import refuse_two_words, values_of
from halfstep.tier.policy import KindParts, policy_fields

# Of the canonical order above; another one has other blocks.
ORDER = "layer-plane-head-1"


@dataclass(frozen=True)
class Kind:
    """Layers whose cache is shaped alike: full attention, windows, a latent (MLA), an indexer, a recurrent state.

    name: unique in a layout. layers: the model's numbers of them, ascending. heads: KV heads of all ranks together; 1 for what
    every rank has whole, such as a latent. planes: bytes of one head's entry in each plane (K and V; a latent has one).
    tokens_per_entry: 1, or how many tokens share an entry where the cache is compressed along the sequence. window: 0, or how
    many of the last tokens are enough to go on from: a sliding window's length, 1 for a recurrent state. dtype: of its values,
    where they are not of the layout's or the layout's does not say it (an fp8 cache that torch knows as uint8). Kinds of other
    dtypes have other blocks. holds: what each plane is, for a policy (halfstep.compress.policy.PLANES); where it is not said
    two planes are K and V, those of a recurrent state are states, and one plane is mixed, which no policy codes lossily.
    Errors: ConfigError.
    """

    name: str
    layers: tuple[int, ...]
    heads: int
    planes: tuple[int, ...]
    tokens_per_entry: int = 1
    window: int = 0
    dtype: str = ""
    holds: tuple[Plane, ...] = ()

    def __post_init__(self) -> None:
        for name in ("layers", "planes"):
            object.__setattr__(self, name, tuple(whole_number(name, one) for one in _each(name, getattr(self, name))))
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f'name={self.name!r}: a kind needs a name, such as "full"')
        if not isinstance(self.dtype, str):
            raise ConfigError(f'kind {self.name!r}: dtype={self.dtype!r}; must be text, such as "fp8_e4m3", or ""')
        if not self.layers or list(self.layers) != sorted(set(self.layers)) or self.layers[0] < 0:
            raise ConfigError(f"kind {self.name!r}: layers={self.layers}; must be ascending numbers from 0 on, at least one")
        if whole_number("heads", self.heads) < 1 or whole_number("tokens_per_entry", self.tokens_per_entry) < 1:
            raise ConfigError(
                f"kind {self.name!r}: heads={self.heads}, tokens_per_entry={self.tokens_per_entry}; both must be at least 1"
            )
        if whole_number("window", self.window) < 0:
            raise ConfigError(f"kind {self.name!r}: window={self.window}; must be 0 (every token is needed) or more")
        if not 1 <= len(self.planes) <= PART_SIZES_MAX or min(self.planes) < 1:
            raise ConfigError(f"kind {self.name!r}: planes={self.planes}; must be 1 to {PART_SIZES_MAX} sizes in bytes, over 0")
        object.__setattr__(self, "holds", tuple(_each("holds", self.holds)))
        if self.holds and (len(self.holds) != len(self.planes) or not set(self.holds) <= set(PLANES)):
            raise ConfigError(
                f"kind {self.name!r}: holds={self.holds}; must be one for each of the {len(self.planes)} planes, of "
                f"{', '.join(PLANES)}"
            )

    @property
    def held(self) -> tuple[Plane, ...]:
        """What each plane is."""
        if self.holds:
            return self.holds
        if len(self.planes) == 2 and self.window != 1:
            return ("k", "v")
        alike: Plane = "state" if self.window == 1 else "mixed"
        return (alike,) * len(self.planes)

    @property
    def head_bytes(self) -> int:
        """Bytes of one head's entry in one layer, all planes."""
        return sum(self.planes)

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry, of all layers and heads."""
        return self.head_bytes * self.heads * len(self.layers)

    @property
    def token_bytes(self) -> float:
        """Bytes that a token costs, all layers and heads."""
        return self.entry_bytes / self.tokens_per_entry

    @property
    def plane_major(self) -> bool:
        """K of all heads, then V of all heads; False: head by head, since the planes differ in size."""
        return len(set(self.planes)) == 1


@dataclass(frozen=True)
class Grid:
    """How many cells heads and layers are cut into. One cell, unless several writers share blocks.

    heads: head cells, at best as many as the largest number of tensor parallel ranks that shall write. layers: layer cells, as
    many as pipeline stages. A kind that every rank has whole has one head cell whatever the grid.
    Errors: ConfigError.
    """

    heads: int = 1
    layers: int = 1

    def __post_init__(self) -> None:
        if whole_number("heads", self.heads) < 1 or whole_number("layers", self.layers) < 1:
            raise ConfigError(f"Grid(heads={self.heads}, layers={self.layers}): both must be at least 1")
        if self.heads * self.layers > CELLS_MAX:
            raise ConfigError(f"Grid(heads={self.heads}, layers={self.layers}): at most {CELLS_MAX} cells")


@dataclass(frozen=True)
class Cell:
    """One cell of a kind: which of its heads and layers.

    component: its number on the wire. heads: KV heads, as the model numbers them. layers: ordinals among the kind's layers.
    """

    kind: Kind
    component: int
    heads: range
    layers: range
    entries: int

    @property
    def parts(self) -> int:
        """Parts of its blocks."""
        return len(self.layers) * len(self.heads) * len(self.kind.planes)

    @property
    def block_bytes(self) -> int:
        """Bytes of its blocks."""
        return len(self.layers) * len(self.heads) * self.kind.head_bytes * self.entries

    def part(self, layer: int, plane: int, head: int) -> int:
        """Which part is a head's plane of a layer, all three as the cell numbers them from 0 on."""
        planes, heads = len(self.kind.planes), len(self.heads)
        within = plane * heads + head if self.kind.plane_major else head * planes + plane
        return layer * planes * heads + within


@dataclass(frozen=True)
class KVLayout:
    """What blocks of a model's KV cache mean, as one layout: all that engines' keys forget.

    model: its name. weights_revision: what tells its weights from others of that name. dtype: of the cache. block_tokens: of a
    block; a multiple of each kind's tokens_per_entry. kinds: one group of the layout each, in this order. grid: see Grid.
    more: whatever else decides what the bytes are: the engine and its minor version, the interface, the attention's backend.
    codec: "" for blocks as they are, or "bfx" for exactly coded ones, which are other blocks (docs/compression.md). "ubq" is
    lossy and needs a step: one for all planes, or one for each, as a share of how far values lie from their channel's mean
    (docs/quantiser.md). Blocks of other steps are other blocks.
    policy: instead of both: a built-in one ("exact", "high", "balanced", "compact", "off"), or the path of a file, which says
    by layer and plane how blocks are coded (docs/compression.md, *Policies*). Blocks of other policies are other blocks.
    Errors: ConfigError.
    """

    model: str
    weights_revision: str
    dtype: str
    block_tokens: int
    kinds: tuple[Kind, ...]
    grid: Grid = Grid()
    more: Mapping[str, str | int] = field(default_factory=dict)
    codec: str = ""
    step: float | tuple[float, ...] = 0.0
    policy: str | Policy = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", tuple(_each("kinds", self.kinds)))
        if not isinstance(self.more, Mapping):
            raise ConfigError(f"more ({type(self.more).__name__}): must be a mapping of names to text or whole numbers")
        object.__setattr__(self, "more", dict(self.more))
        for name, given, wanted in (("grid", (self.grid,), Grid), ("kinds", self.kinds, Kind)):
            for one in given:
                if not isinstance(one, wanted):
                    raise ConfigError(f"{name} ({type(one).__name__}): must be a halfstep.tier.{wanted.__name__}")
        for name in ("model", "weights_revision", "dtype"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ConfigError(f"{name}={getattr(self, name)!r}: must be said, or blocks of different ones would be shared")
        if whole_number("block_tokens", self.block_tokens) < 1:
            raise ConfigError(f"block_tokens={self.block_tokens}: must be at least 1")
        if not 1 <= len(self.kinds) <= GROUPS_MAX or len({kind.name for kind in self.kinds}) != len(self.kinds):
            raise ConfigError(f"kinds: must be 1 to {GROUPS_MAX} with names of their own, not {[k.name for k in self.kinds]}")
        for kind in self.kinds:
            if self.block_tokens % kind.tokens_per_entry != 0:
                raise ConfigError(
                    f"block_tokens={self.block_tokens}: kind {kind.name!r} has an entry for {kind.tokens_per_entry} tokens; "
                    "a block must be a multiple of it"
                )
        refuse_two_words(self.codec, self.policy)
        if self.policy != "":  # a file is read once, whatever becomes of it
            object.__setattr__(self, "policy", policy_of(self.policy))
        object.__setattr__(self, "_cells", {kind.name: self._cut(number, kind) for number, kind in enumerate(self.kinds)})
        object.__setattr__(self, "_layout", self._make_layout())

    @property
    def layout(self) -> Layout:
        """As the wire names it."""
        made: Layout = self.__dict__["_layout"]
        return made

    def kind(self, name: str) -> Kind:
        """By name. Errors: ConfigError."""
        for kind in self.kinds:
            if kind.name == name:
                return kind
        raise ConfigError(f"kind {name!r}: this layout has {', '.join(kind.name for kind in self.kinds)}")

    def cells(self, kind: str) -> Sequence[Cell]:
        """The cells of a kind, by their numbers."""
        self.kind(kind)
        cut: Mapping[str, Sequence[Cell]] = self.__dict__["_cells"]
        return cut[kind]

    @property
    def token_bytes(self) -> float:
        """Bytes that a token costs, all kinds."""
        return sum(kind.token_bytes for kind in self.kinds)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of tokens, all kinds and cells together."""
        return sum(cell.block_bytes for kind in self.kinds for cell in self.cells(kind.name))

    def __hash__(self) -> int:
        return hash(self.layout)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KVLayout) and self.layout == other.layout

    # ---- within ----

    def _cut(self, number: int, kind: Kind) -> list[Cell]:
        head_cells = self._head_cells(kind)
        layers = len(kind.layers)
        if layers % self.grid.layers != 0:
            good = [cells for cells in range(1, layers + 1) if layers % cells == 0]
            raise ConfigError(
                f"Grid(layers={self.grid.layers}): kind {kind.name!r} has {layers} layers, which {good} cut into equal cells"
            )
        heads_each, layers_each = kind.heads // head_cells, layers // self.grid.layers
        entries = self.block_tokens // kind.tokens_per_entry
        cells = [
            Cell(
                kind,
                component(number, 0, layer_cell * head_cells + head_cell),
                range(head_cell * heads_each, (head_cell + 1) * heads_each),
                range(layer_cell * layers_each, (layer_cell + 1) * layers_each),
                entries,
            )
            for layer_cell in range(self.grid.layers)
            for head_cell in range(head_cells)
        ]
        if cells[0].parts > PARTS_MAX:
            raise ConfigError(
                f"kind {kind.name!r}: {cells[0].parts} parts in a block, at most {PARTS_MAX}; cut it with a Grid of more cells"
            )
        return cells

    def _head_cells(self, kind: Kind) -> int:
        cells = self.grid.heads
        if kind.heads % cells == 0:
            return cells
        if cells % kind.heads == 0:
            return kind.heads  # ranks beyond one a head have the same heads, and only read
        raise ConfigError(
            f"Grid(heads={cells}): kind {kind.name!r} has {kind.heads} heads, which do not fall into {cells} equal cells"
        )

    def _make_layout(self) -> Layout:
        fields: dict[str, str | int] = {
            "model": self.model,
            "weights_revision": self.weights_revision,
            "dtype": self.dtype,
            "block_tokens": self.block_tokens,
            "grid": f"{self.grid.heads}x{self.grid.layers}",
            "order": ORDER,
        }
        groups = []
        for number, kind in enumerate(self.kinds):
            cell = self.cells(kind.name)[0]
            told = f"{kind.name}: {_runs(kind.layers)}, {kind.heads} heads, 1/{kind.tokens_per_entry}"
            told += f", {kind.window} tokens" if kind.window else ""
            # Formats of eight bits are alike in size: their blocks must not meet, whether a codec is told of the format or not.
            told += f", dtype {kind.dtype}" if kind.dtype not in ("", self.dtype) else ""
            fields[f"kind{number}"] = told
            sizes = tuple(plane * cell.entries for plane in kind.planes)
            groups.append(Group(cell.parts, sizes[:1] if kind.plane_major else sizes))
        if not isinstance(self.codec, str) or self.codec not in ("", *CODECS) or self.codec == "raw":
            known = ", ".join(repr(name) for name in CODECS if name != "raw")
            raise ConfigError(f'codec={self.codec!r}: must be {known}, or "" for blocks as they are')
        if self.step and self.codec not in LOSSY:
            raise ConfigError(f'step={self.step}: only a lossy codec has one; say codec="ubq"')
        if self.codec:
            fields |= coding_fields(self.codec, [self._part_values(kind) for kind in self.kinds])
        if isinstance(self.policy, Policy):
            fields |= policy_fields(self.policy, [self._kind_parts(kind) for kind in self.kinds], self.block_tokens)
        if taken := sorted(fields.keys() & self.more.keys()):
            raise ConfigError(f"more: {', '.join(taken)} of the layout are said already")
        return Layout(fields | dict(self.more), groups)

    def _part_values(self, kind: Kind) -> list[PartValues]:
        """What the parts of a kind's blocks are, in turn; nothing where the codec has to look for itself."""
        steps = self._steps(kind)
        alike = kind.plane_major and len(set(steps)) == 1  # one says it for all
        told = [values_of(kind.dtype or self.dtype, plane) for plane in kind.planes[: 1 if alike else None]]
        known = [replace(one, step=step) for one, step in zip(told, steps, strict=False) if one is not None]
        if len(known) != len(told):
            return []
        if alike or not kind.plane_major:
            return known
        # All heads of a plane follow each other.
        heads = len(self.cells(kind.name)[0].heads)
        return [one for one in known for _ in range(heads)]

    def _kind_parts(self, kind: Kind) -> KindParts:
        cells = self.cells(kind.name)
        values = tuple(values_of(kind.dtype or self.dtype, plane) for plane in kind.planes)
        return KindParts(kind, values, len(cells[0].heads), len(cells) // self.grid.layers, self.grid.layers)

    def _steps(self, kind: Kind) -> Sequence[float]:
        """Of the kind's planes."""
        if isinstance(self.step, (int, float)):
            return [self.step] * len(kind.planes)
        if not isinstance(self.step, (list, tuple)) or len(self.step) != len(kind.planes):
            raise ConfigError(f"step={self.step!r}: must be a number, or one for each of the {len(kind.planes)} planes")
        return self.step


def _each(name: str, values: object) -> Iterable[Any]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise ConfigError(f"{name}={values!r}: must be a sequence")
    return values


def _runs(layers: Sequence[int]) -> str:
    """Numbers as they are read: "0-2 5"."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
