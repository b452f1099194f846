"""Who chooses a codec: a small file that says for each layer and plane by what its parts are coded, and how coarsely.

    policy = policy_of("balanced")            # built in, or the path of a file that ends with .toml
    policy.choice(0, "k", layers=32)          # Choice("ubq", 0.03)

A file names itself and has rules. The last rule that fits a part decides; a part that none fits is coded exactly, by `bfx`.

    name = "balanced"

    [[rule]]
    planes = ["k"]
    codec = "ubq"
    step = 0.07

    [[rule]]
    planes = ["k"]
    layers = ["first 2", "last 2"]
    codec = "ubq"
    step = 0.03

Invariants: what a rule does not say is never lossy, and of the planes of `NEVER_LOSSY` none can be. Name and rules are
part of the layouts that use a policy, the rules as a hash; a file's comments and order of keys are not.

Source: docs/compression.md, *Policies*.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from halfstep.compress import CODECS, LOSSY, STEP_MAX, STEP_MIN
from halfstep.errors import ConfigError

__all__ = [
    "BUILT_IN",
    "EXACT_TOKENS",
    "NEVER_LOSSY",
    "PLANES",
    "Choice",
    "Plane",
    "Policy",
    "Predicted",
    "Rule",
    "parsed",
    "policy_of",
    "written",
]

# What a plane of a layer's cache holds. latent: of MLA, without its rotary part. mixed: several of these in one part, or
# nobody says what. state: of a recurrent layer.
Plane = Literal["k", "v", "latent", "rotary", "indexer", "state", "mixed"]
PLANES: tuple[Plane, ...] = ("k", "v", "latent", "rotary", "indexer", "state", "mixed")
# An error of these is no error of attention alone: it moves positions, or which tokens are looked at, or it stays for good.
NEVER_LOSSY: tuple[Plane, ...] = ("rotary", "indexer", "state", "mixed")
# The first tokens of a sequence draw most of the attention, and are few.
EXACT_TOKENS = 4

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_END = re.compile(r"(first|last) ([1-9]\d{0,4})")
_RUN = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_RULE_HEAD = re.compile(r"\s*\[\[\s*rule\s*\]\]")
_FILE_KEYS = ("name", "rule", "predicted")
_RULE_KEYS = ("planes", "layers", "kinds", "codec", "step")
_PREDICTED_NUMBERS = ("kl", "agreement", "verified_kl", "verified_agreement", "bits")
_PREDICTED_KEYS = (*_PREDICTED_NUMBERS, "block_tokens", "model", "error")
_SUCH: Mapping[str, str] = {"planes": "k", "layers": "first 2", "kinds": "full"}
_FILE_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class Choice:
    """By what a part is coded. step: of a lossy codec, see PartValues; 0 for an exact one."""

    codec: str = "bfx"
    step: float = 0.0

    @property
    def lossy(self) -> bool:
        """Whether decoding gives something else."""
        return self.codec in LOSSY


@dataclass(frozen=True)
class Rule:
    """A choice, and the parts that it is for.

    planes: none = all of them. layers: as in a file ("3", "4-7", "first 2", "last 2"); none = all. kinds: of the layout, by
    their names; none = all.
    """

    choice: Choice
    planes: tuple[Plane, ...] = ()
    layers: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    def fits(self, layer: int, plane: Plane, layers: int, kind: str) -> bool:
        """As Policy.choice."""
        if self.planes and plane not in self.planes:
            return False
        if self.kinds and kind not in self.kinds:
            return False
        return not self.layers or any(_is_among(layer, some, layers) for some in self.layers)

    def __str__(self) -> str:
        """The same of two rules that mean the same; a policy's hash is made of it."""
        parts = [",".join(sorted(set(some))) or "*" for some in (self.planes, self.layers, self.kinds)]
        return " ".join([*parts, self.choice.codec, f"{self.choice.step:.6g}"])


@dataclass(frozen=True)
class Predicted:
    """What a calibration says of its policy; no part of the policy's hash.

    kl, agreement: by the law, of windows of the kind that it was solved for. verified_kl, verified_agreement: measured on other
    windows. bits: of a value. block_tokens: of the units that all of this is of. error: of each plane, by layer from 0 on, the
    root mean square of what a part is off, in the values' own unit; 0 where it is exact. model: for people.
    """

    kl: float
    agreement: float
    verified_kl: float
    verified_agreement: float
    bits: float
    block_tokens: int
    error: Mapping[str, tuple[float, ...]]
    model: str = ""

    def error_of(self, layer: int, plane: Plane) -> float:
        """0 where nobody has said."""
        of_plane = self.error.get(plane, ())
        return of_plane[layer] if layer < len(of_plane) else 0.0


@dataclass(frozen=True)
class Policy:
    """A name and rules. Made by policy_of(). predicted: by a calibration; None: nobody has said."""

    name: str
    rules: tuple[Rule, ...] = ()
    predicted: Predicted | None = field(default=None, compare=False)

    def choice(self, layer: int, plane: Plane, *, layers: int, kind: str = "") -> Choice:
        """By what a part is coded.

        layer: the model's number of it. layers: how many the model has. kind: of the layout (halfstep.tier.Kind.name).
        """
        if plane not in PLANES:
            raise ConfigError(f"plane={plane!r}: must be {' or '.join(PLANES)}")
        if not 0 <= layer < layers:
            raise ConfigError(f"layer={layer}: must be 0 to {layers - 1}, the model's last")
        for rule in reversed(self.rules):
            if rule.fits(layer, plane, layers, kind):
                return Choice() if rule.choice.lossy and plane in NEVER_LOSSY else rule.choice
        return Choice()

    @cached_property
    def hash(self) -> str:
        """16 hexadecimal digits that tell its rules from others'."""
        return hashlib.sha256("\n".join(map(str, self.rules)).encode()).hexdigest()[:16]

    @property
    def lossy(self) -> bool:
        """Whether some rule is."""
        return any(rule.choice.lossy for rule in self.rules)

    @property
    def codecs(self) -> tuple[str, ...]:
        """What a client has to speak for it: nothing where all is stored as it is."""
        named = {rule.choice.codec for rule in self.rules} - {"raw"}
        whole = [rule for rule in self.rules if not (rule.planes or rule.layers or rule.kinds)]
        return tuple(sorted(named)) if whole and not self.lossy else tuple(sorted(named | {"bfx"}))


def policy_of(given: str | Policy) -> Policy:
    """A built-in policy by its name, or the one in a file whose name ends with .toml. Errors: ConfigError."""
    if isinstance(given, Policy):
        return given
    if not isinstance(given, str) or not given:
        raise ConfigError(f"policy={given!r}: must be {_those_there_are()}")
    if given in BUILT_IN:
        return BUILT_IN[given]
    if not given.endswith(".toml"):
        near = difflib.get_close_matches(given.lower(), BUILT_IN, 1)
        raise ConfigError(f"policy={given!r}: {f'did you mean {near[0]}? ' if near else ''}must be {_those_there_are()}")
    try:
        with Path(given).open("rb") as file:
            text = file.read(_FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # a path with a zero byte is none
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"policy={given!r}: {why}; give the path of a file, or one of {', '.join(BUILT_IN)}") from None
    if len(text) > _FILE_BYTES_MAX:
        raise ConfigError(f"{given}: is longer than {_FILE_BYTES_MAX} bytes; a policy has a rule for a group of layers")
    try:
        return parsed(text.decode(), given)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{given}: byte {error.start} is no UTF-8; save it as UTF-8") from None


def parsed(text: str, where: str) -> Policy:
    """A policy out of a file's text. where: the file's name, for errors. Errors: ConfigError."""
    try:
        read = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of more digits than Python reads, or tables too deep
        raise ConfigError(f"{where}: is no TOML: {error}") from None
    _refuse_unknown(read, _FILE_KEYS, where)
    name = read.get("name", Path(where).stem)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: name={name!r}: must be 1 to 63 letters, digits, dots, dashes and underscores; rename it")
    if name in BUILT_IN:
        raise ConfigError(f"{where}: name={name!r}: is a built-in policy's; give another name")
    rules = read.get("rule", [])
    if not isinstance(rules, list) or not all(isinstance(one, dict) for one in rules):
        raise ConfigError(f"{where}: rule: must be tables; write each under [[rule]]")
    lines = [number for number, line in enumerate(text.splitlines(), 1) if _RULE_HEAD.match(line)]
    # Rules may be written as one list of inline tables; then there is no line for each.
    places = [f"line {line}" for line in lines] if len(lines) == len(rules) else [f"rule {n + 1}" for n in range(len(rules))]
    made = tuple(_rule(rule, f"{where}, {place}") for rule, place in zip(rules, places, strict=True))
    return Policy(name, made, _predicted(read["predicted"], f"{where}, predicted") if "predicted" in read else None)


def written(policy: Policy) -> str:
    """The text of a file that `parsed` reads as the same policy."""
    lines = [f'name = "{policy.name}"']
    if (said := policy.predicted) is not None:
        lines += ["", "[predicted]  # by halfstep calibrate; other figures here make no other blocks"]
        lines += [f"{key} = {getattr(said, key):.6g}" for key in _PREDICTED_NUMBERS]
        lines += [f"block_tokens = {said.block_tokens}"]
        lines += [f"model = {json.dumps(said.model)}"] if said.model else []
        lines += ["", "[predicted.error]  # root mean square, in the values' own unit, of each layer"]
        lines += [f"{plane} = [{', '.join(f'{one:.6g}' for one in of_plane)}]" for plane, of_plane in said.error.items()]
    for rule in policy.rules:
        lines += ["", "[[rule]]"]
        named = (("planes", rule.planes), ("layers", rule.layers), ("kinds", rule.kinds))
        lines += [f"{key} = {json.dumps(list(some), ensure_ascii=False)}" for key, some in named if some]
        lines += [f'codec = "{rule.choice.codec}"']
        lines += [f"step = {rule.choice.step:.6g}"] if rule.choice.lossy else []
    return "\n".join(lines) + "\n"


# ---- within ----


def _those_there_are() -> str:
    return f"{', '.join(BUILT_IN)}, or the path of a file that ends with .toml"


def _is_among(layer: int, some: str, layers: int) -> bool:
    if end := _END.fullmatch(some):
        count = int(end[2])
        return layer < count if end[1] == "first" else layer >= layers - count
    first, _, last = some.partition("-")
    return int(first) <= layer <= int(last or first)


def _refuse_unknown(given: Iterable[str], known: tuple[str, ...], where: str) -> None:
    for key in sorted(set(given) - set(known)):
        near = difflib.get_close_matches(key, known, 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"{where}: {key}: unknown; {meant}there are {', '.join(known)}")


def _rule(read: Mapping[str, Any], where: str) -> Rule:
    _refuse_unknown(read, _RULE_KEYS, where)
    planes = _texts(read, "planes", where)
    for plane in planes:
        if plane not in PLANES:
            near = difflib.get_close_matches(plane.lower(), PLANES, 1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise ConfigError(f"{where}: planes: {plane!r}: {meant}must be {', '.join(PLANES)}")
    layers = _texts(read, "layers", where)
    for some in layers:
        run = _RUN.fullmatch(some)
        if not (_END.fullmatch(some) or (run and int(run[1]) <= int(run[2] or run[1]))):
            raise ConfigError(f'{where}: layers: {some!r}: must be like "3", "4-7", "first 2" or "last 2"')
    choice = _choice(read, where)
    if choice.lossy and not planes:
        raise ConfigError(
            f'{where}: codec={choice.codec!r}: is lossy and needs planes; add planes = ["k"], or those that you mean'
        )
    if choice.lossy and (never := [plane for plane in planes if plane in NEVER_LOSSY]):
        raise ConfigError(f'{where}: planes: {never[0]!r} is never coded lossily; give it codec = "bfx" in a rule of its own')
    return Rule(choice, tuple(plane for plane in PLANES if plane in planes), layers, _texts(read, "kinds", where))


def _choice(read: Mapping[str, Any], where: str) -> Choice:
    codec, step = read.get("codec"), read.get("step")
    if not isinstance(codec, str) or codec not in CODECS:
        near = difflib.get_close_matches(codec, CODECS, 1) if isinstance(codec, str) else []
        said = "codec is missing" if codec is None else f"codec={codec!r}"
        raise ConfigError(f"{where}: {said}: {f'did you mean {near[0]}? ' if near else ''}must be {', '.join(CODECS)}")
    if codec not in LOSSY:
        if step is not None:
            raise ConfigError(f"{where}: step={step!r}: codec {codec!r} is exact and has none; take it out")
        return Choice(codec)
    if isinstance(step, bool) or not isinstance(step, (int, float)) or not STEP_MIN <= step <= STEP_MAX:
        said = "step is missing" if step is None else f"step={step!r}"
        raise ConfigError(f"{where}: {said}: must be {STEP_MIN} to {STEP_MAX:g}, a share of the part's deviation, such as 0.1")
    return Choice(codec, float(step))


def _predicted(read: object, where: str) -> Predicted:
    if not isinstance(read, dict):
        raise ConfigError(f"{where}: must be a table, as halfstep calibrate writes it; or take it out")
    _refuse_unknown(read, _PREDICTED_KEYS, where)
    numbers = {key: _number(read.get(key), f"{where}: {key}") for key in _PREDICTED_NUMBERS}
    tokens, model, error = read.get("block_tokens"), read.get("model", ""), read.get("error", {})
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise ConfigError(f"{where}: block_tokens={tokens!r}: must be a whole number from 1 on")
    if not isinstance(model, str):
        raise ConfigError(f"{where}: model={model!r}: must be text")
    if not isinstance(error, dict) or not all(isinstance(of_plane, list) for of_plane in error.values()):
        raise ConfigError(f"{where}: error: must be a table of lists, with a number for each layer")
    _refuse_unknown(error, PLANES, f"{where}.error")
    errors = {plane: tuple(_number(one, f"{where}.error: {plane}") for one in each) for plane, each in error.items()}
    return Predicted(**numbers, block_tokens=tokens, error=errors, model=model)


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ConfigError(f"{where}={value!r}: must be a number of 0 or more; have it written by halfstep calibrate")
    return float(value)


def _texts(read: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    """Of a list of texts, and whole numbers as such; none where it is not there."""
    if key not in read:
        return ()
    given = read[key]
    if (
        not isinstance(given, list)
        or not given
        or any(isinstance(one, bool) or not isinstance(one, (str, int)) for one in given)
    ):
        raise ConfigError(f'{where}: {key}={given!r}: must be a list, such as {key} = ["{_SUCH[key]}"]; or take it out')
    return tuple(map(str, given))


def _built_in() -> Mapping[str, Policy]:
    """K is finer than V by two or three throughout; of a latent nothing was measured, so it is exact."""
    ends = ("first 2", "last 2")

    def lossy(plane: Plane, step: float, layers: tuple[str, ...] = ()) -> Rule:
        return Rule(Choice("ubq", step), (plane,), layers)

    made = (
        Policy("exact"),
        Policy("high", (lossy("k", 0.03), lossy("k", 0.02, ends), lossy("v", 0.08))),
        Policy("balanced", (lossy("k", 0.07), lossy("k", 0.03, ends), lossy("v", 0.25))),
        Policy("compact", (lossy("k", 0.15), lossy("v", 0.5))),
        Policy("off", (Rule(Choice("raw")),)),
    )
    return {policy.name: policy for policy in made}


BUILT_IN: Mapping[str, Policy] = _built_in()
