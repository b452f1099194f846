"""From a policy to the fields of a layout: by what each part of its blocks is coded.

    policy          its name
    policy.hash     of its rules: other rules have other blocks
    codec, codec.<group>, …        docs/compression.md, *In a layout*; none where nothing is coded

Invariants: two policies have two layouts, whatever they say of the parts. A layout without a policy has none of the fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from halfstep.compress import LOSSY, PartValues, coding_fields
from halfstep.compress.policy import EXACT_TOKENS, Choice, Plane, Policy
from halfstep.errors import ConfigError

if TYPE_CHECKING:
    from halfstep.tier.shapes import Kind


@dataclass(frozen=True)
class KindParts:
    """How the parts of a kind's blocks follow each other.

    values: of each plane; None: nobody says what they are. heads: in a cell. head_cells, layer_cells: how many there are.
    """

    kind: Kind
    values: tuple[PartValues | None, ...]
    heads: int
    head_cells: int
    layer_cells: int

    def choices(self, policy: Policy, layers: int) -> list[list[Choice]]:
        """Of each layer, of each plane. layers: of the model."""
        return [
            [policy.choice(layer, plane, layers=layers, kind=self.kind.name) for plane in self.kind.held]
            for layer in self.kind.layers
        ]


def policy_fields(policy: Policy, kinds: Sequence[KindParts], block_tokens: int) -> dict[str, str]:
    """Of a layout with these kinds, a group each. Errors: ConfigError (the policy is lossy, and the values do not allow it)."""
    layers = 1 + max(max(one.kind.layers) for one in kinds)
    chosen = [one.choices(policy, layers) for one in kinds]
    used = {choice.codec for of_kind in chosen for of_layer in of_kind for choice in of_layer} - {"raw"}
    lossy = any(choice.lossy for of_kind in chosen for of_layer in of_kind for choice in of_layer)
    if policy.lossy and not lossy:
        held = sorted({plane for one in kinds for plane in one.kind.held})
        raise ConfigError(
            f"policy {policy.name!r}: is lossy, and fits no part of this layout, whose planes hold {', '.join(held)}; "
            "take an exact policy, or say what the planes are (halfstep.tier.Kind, holds)"
        )
    fields = _named(policy)
    if not used:
        return fields
    fields["codec"] = "ubq" if lossy else "zstd" if used == {"zstd"} else "bfx"
    if lossy:
        fields["codec.exact_blocks"] = str(-(-EXACT_TOKENS // block_tokens))
    for number, (one, of_kind) in enumerate(zip(kinds, chosen, strict=True)):
        told = [_parts(policy, one, of_layer) for of_layer in of_kind]
        each = {text for of_layer in told for text in of_layer}
        if each == {"any"}:
            continue
        alike = len(set(told)) == 1  # a list is repeated as often as a block has layers
        fields[f"codec.{number}"] = each.pop() if len(each) == 1 else _joined(one, told[:1] if alike else told)
        if not alike and one.layer_cells > 1:
            fields[f"codec.{number}.head_cells"] = str(one.head_cells)
    return fields


def uniform_fields(policy: Policy, parts: Sequence[PartValues | None]) -> dict[str, str]:
    """Of a layout of one group whose layers and planes nobody tells apart. parts: see halfstep.tier.coding_of.

    Errors: ConfigError (the policy tells them apart).
    """
    if any(rule.planes or rule.layers or rule.kinds for rule in policy.rules):
        raise ConfigError(
            f"policy {policy.name!r}: tells planes or layers apart, and here nobody says which part is of which; "
            "take exact, or off"
        )
    choice = policy.choice(0, "mixed", layers=1)
    if choice.codec == "raw":
        return _named(policy)
    known = [part for part in parts if part is not None]
    return _named(policy) | coding_fields(choice.codec, [known if len(known) == len(parts) else []])


@dataclass(frozen=True)
class Part:
    """A part of a block whose inside an engine knows. layer: of the model; None: it has all layers. values: None: not known."""

    layer: int | None
    plane: Plane
    values: PartValues | None


def listed_fields(policy: Policy, parts: Sequence[Part], layers: int, block_tokens: int) -> dict[str, str]:
    """Of a layout of one group with these parts, in turn. layers: of the model.

    Errors: ConfigError (the policy tells layers apart that a part has together, or codes lossily what does not allow it).
    """
    fields, words = _named(policy), []
    used = set()
    for part in parts:
        choice = _choice_of(policy, part, layers)
        used.add(choice.codec)
        words.append(_word(policy, f"this pool's {part.plane} parts", part.values, choice))
    if policy.lossy and not used & LOSSY:
        held = ", ".join(sorted({part.plane for part in parts}))
        raise ConfigError(f"policy {policy.name!r}: is lossy, and fits none of these parts, which hold {held}; take 'exact'")
    if used == {"raw"}:
        return fields
    fields["codec"] = "ubq" if used & LOSSY else "zstd" if used - {"raw"} == {"zstd"} else "bfx"
    if used & LOSSY:
        fields["codec.exact_blocks"] = str(-(-EXACT_TOKENS // block_tokens))
    if set(words) != {"any"}:
        runs = [(word, len(list(run))) for word, run in groupby(words)]
        fields["codec.0"] = words[0] if len(runs) == 1 else ",".join(_times(count, word) for word, count in runs)
    return fields


# ---- within ----


def _choice_of(policy: Policy, part: Part, layers: int) -> Choice:
    own = range(layers) if part.layer is None else (part.layer,)
    choices = {policy.choice(layer, part.plane, layers=layers) for layer in own}
    if len(choices) > 1:
        raise ConfigError(
            f"policy {policy.name!r}: has several steps for the layers' {part.plane}, and a part of this pool holds all "
            "layers; take one that has a single step for each plane, such as 'compact', or a pool whose pages go layer by layer"
        )
    return choices.pop()


def _named(policy: Policy) -> dict[str, str]:
    return {"policy": policy.name, "policy.hash": policy.hash}


def _parts(policy: Policy, parts: KindParts, choices: Sequence[Choice]) -> tuple[str, ...]:
    """Of one layer's planes: the words of the field."""
    return tuple(
        _part(policy, parts.kind, plane, values, choice)
        for plane, values, choice in zip(parts.kind.held, parts.values, choices, strict=True)
    )


def _part(policy: Policy, kind: Kind, plane: Plane, values: PartValues | None, choice: Choice) -> str:
    return _word(policy, f"{plane} of kind {kind.name!r}", values, choice)


def _word(policy: Policy, what: str, values: PartValues | None, choice: Choice) -> str:
    """Of one part, as the field has it. what: for people."""
    if choice.codec in ("raw", "zstd"):
        return choice.codec
    if not choice.lossy:
        return "any" if values is None else str(values)
    try:
        if values is None:
            raise ConfigError("nobody says what its values are")
        coarse = replace(values, step=choice.step)
        coarse.check_for(choice.codec)
    except ConfigError as error:
        raise ConfigError(f"policy {policy.name!r}: codes {what} lossily, and cannot: {error}; take policy 'exact'") from None
    return str(coarse)


def _joined(parts: KindParts, layers: Iterable[tuple[str, ...]]) -> str:
    """The parts of these layers in turn, runs of equal layers with their number."""
    runs = []
    for planes, run in groupby(layers):
        if parts.kind.plane_major or parts.heads == 1:
            layer = ",".join(_times(parts.heads, text) for text in planes)
        else:
            layer = _times(parts.heads, f"({','.join(planes)})")
        runs.append((layer, len(list(run))))
    return ",".join(layer if count == 1 else f"{count}*({layer})" for layer, count in runs)


def _times(count: int, text: str) -> str:
    return text if count == 1 else f"{count}*{text}"
