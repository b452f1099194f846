"""How blocks are coded, from one word of an engine's configuration: what a connector hands to connect() and to its layout.

    connection = connect(url, codecs=codecs_of(codec), policy=policy)     # codec: "" = blocks as they are, or "bfx"
    layout = Layout(fields | coding_of(codec, [values_of("bfloat16", row_bytes)], policy), groups)

What is said of the values decides how small they become, and never what comes back: coded blocks are exact whatever they hold.
The codec and what is said of the values are fields of the layout, so blocks of another codec are other blocks. A lossy codec is
no such word: it has a step, and whoever wants its blocks names a policy, or makes a layout that names both (KVLayout).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from halfstep.compress import CODECS, ELEMENTS, LOSSY, ROW_VALUES_MAX, Element, PartValues, coding_fields
from halfstep.compress.policy import Policy, policy_of
from halfstep.errors import ConfigError
from halfstep.tier.policy import uniform_fields

if TYPE_CHECKING:
    from halfstep.layout import Layout

# What engines call the elements that a codec knows. Others ("fp8_ds_mla", "int8", "nvfp4", …) pack values in ways of their own.
_ELEMENTS: Mapping[str, Element] = {
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp16": "fp16",
    "float8_e4m3fn": "e4m3",
    "float8_e4m3fnuz": "e4m3",
    "fp8_e4m3": "e4m3",
    "fp8": "e4m3",
    "fp8_inc": "e4m3",
    "float8_e5m2": "e5m2",
    "float8_e5m2fnuz": "e5m2",
    "fp8_e5m2": "e5m2",
}


def codecs_of(codec: str) -> tuple[str, ...]:
    """What connect() takes as `codecs`. codec: "" = none. Errors: ConfigError (this build has no such exact codec)."""
    exact = [name for name in CODECS if name != "raw" and name not in LOSSY]
    if not isinstance(codec, str) or (codec and codec not in exact):
        raise ConfigError(f'codec={codec!r}: must be {", ".join(map(repr, exact))}, or "" for blocks as they are')
    return (codec,) if codec else ()


def element_of(dtype: str) -> Element | None:
    """What a codec calls the values of a cache; None: it is none of those, and the codec looks for itself.

    dtype: as torch or an engine names it, such as "torch.bfloat16" or "fp8_e4m3".
    """
    return _ELEMENTS.get(dtype.removeprefix("torch."))


def values_of(dtype: str, row_bytes: int = 0) -> PartValues | None:
    """What the parts of a cache's blocks are; None: the codec looks for itself.

    dtype: see element_of. row_bytes: of what follows itself in a part, such as a head's entry; 0: not known.
    """
    element = element_of(dtype)
    if element is None or row_bytes % ELEMENTS[element]:
        return None
    row = row_bytes // ELEMENTS[element]
    return PartValues(element, row if row <= ROW_VALUES_MAX else 0)


def refuse_two_words(codec: str, policy: str | Policy) -> None:
    """Errors: ConfigError (a codec and a policy, which has its own)."""
    if codec != "" and policy != "":
        name = policy.name if isinstance(policy, Policy) else policy
        raise ConfigError(f"codec={codec!r}, policy={name!r}: a policy says which codec; take one of the two out")


def coding_of(codec: str, parts: Sequence[PartValues | None] = (), policy: str | Policy = "") -> dict[str, str]:
    """The fields by which a layout of one group says that its blocks are coded; none where codec and policy are "".

    parts: what the parts are, in turn as the group's sizes are; the codec looks for itself where one of them is not known.
    policy: instead of a codec, one that has one choice for all layers and planes, such as "exact".
    Errors: ConfigError.
    """
    refuse_two_words(codec, policy)
    if policy != "":
        return uniform_fields(policy_of(policy), parts)
    if not codecs_of(codec):
        return {}
    known = [part for part in parts if part is not None]
    return coding_fields(codec, [known if len(known) == len(parts) else []])


def refuse_unspoken(layout: Layout, codecs: Sequence[str]) -> None:
    """Errors: ConfigError (the layout names a codec that the client does not speak, or cannot: it meets none of its blocks)."""
    codec = layout.fields.get("codec", "")
    if codec and codec not in CODECS:
        known = ", ".join(name for name in CODECS if name != "raw")
        raise ConfigError(f"layout names codec {codec!r}, which is none of this build; it has {known}")
    if codec and codec not in codecs:
        raise ConfigError(f'layout names codec {codec!r}: open the client with codecs=("{codec}",)')
