"""A setting of a daemon, described once: name, default, bound, unit, help.

The command line's option, the check, the refusal and the row of docs/configure.md are made from this description.
`daemon.config` describes each setting beside the field that holds it; `tools.settings` makes the options.

Invariant: a value that a kind has read or checked is within its bound, or a ConfigError named setting, value, bound and remedy.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from halfstep.daemon.units import BYTES_MAX, exact_bytes, format_micros, parse_bytes, parse_micros, parse_size
from halfstep.errors import ConfigError

SHARDS_MAX = 16


def one_of(words: tuple[str, ...]) -> str:
    """As a clause lists them: a, b or c."""
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a value is: how it is read and shown, and its bound. This one is a text that is checked elsewhere.

    unit: the option's metavar. words: texts that stand for values of their own, such as "off".
    """

    unit: str = "TEXT"
    words: Mapping[str, object] = field(default_factory=dict)

    def parse(self, text: str, name: str) -> Any:  # noqa: ARG002 -- the others name it
        """The value that `text`, which is no word, stands for. Errors: ConfigError where it stands for none."""
        return text

    def show(self, value: Any) -> str:
        """As it is written, with a space before its unit."""
        for word, meant in self.words.items():
            if value == meant and type(value) is type(meant):
                return word
        return self.text(value)

    def text(self, value: Any) -> str:
        """As show(), of a value that no word stands for."""
        return str(value)

    def bound(self, shards: int = 0) -> str:  # noqa: ARG002 -- some bounds are of each shard
        """A clause behind "must be"; empty for none. shards: 0 where their number is not known."""
        return one_of(tuple(self.words)) if self.words else ""

    def holds(self, value: Any, shards: int) -> bool:  # noqa: ARG002
        """Whether the bound does. shards: as of bound()."""
        return True

    def or_words(self, bound: str) -> str:
        """A bound with the words that are not bound by it."""
        words = tuple(self.words)
        return bound if not words else f"{bound}, {'or ' if len(words) == 1 else ''}{one_of(words)}"


@dataclass(frozen=True, kw_only=True)
class Bytes(Kind):
    """Bytes. A least of 0 allows 0. for_each_shard: the bound is that of one shard's share.

    given: 0 is the default's own sign, and is refused where somebody writes it. multiple, power_of_two: what else it has to be.
    """

    unit: str = "BYTES"
    least: int = 0
    most: int = BYTES_MAX
    multiple: int = 1
    power_of_two: bool = False
    for_each_shard: bool = False
    given: bool = False
    rate: bool = False

    def parse(self, text: str, name: str) -> int:
        """As Kind's."""
        if self.rate:
            text = text.strip().lower().removesuffix("/s")
        return parse_size(text, name) if self.given else parse_bytes(text, name)

    def text(self, value: int) -> str:
        """As Kind's."""
        return exact_bytes(value) + ("/s" if self.rate else "")

    def bound(self, shards: int = 0) -> str:
        """As Kind's."""
        if self.least == 0 and self.most == BYTES_MAX:
            return ""
        times = max(shards, 1) if self.for_each_shard else 1
        least, most = self.text(self.least * times), self.text(self.most * times)
        bound = f"at least {least}" if self.most == BYTES_MAX else f"{least} to {most}"
        if self.power_of_two:
            bound = f"a power of two from {bound}"
        if self.multiple > 1:
            bound = f"a multiple of {self.text(self.multiple)} from {bound}"
        if self.for_each_shard and shards != 1:
            bound += f" for {shards} shards" if shards else " for each shard"
        return self.or_words(bound)

    def holds(self, value: int, shards: int) -> bool:
        """As Kind's. Where the number of shards is not known the native core looks again."""
        if value == 0 and 0 in self.words.values():
            return True
        fewest, most = (max(shards, 1), shards or SHARDS_MAX) if self.for_each_shard else (1, 1)
        if self.power_of_two and value & (value - 1):
            return False
        return self.least * fewest <= value <= self.most * most and value % self.multiple == 0


@dataclass(frozen=True, kw_only=True)
class Micros(Kind):
    """A time in whole microseconds."""

    unit: str = "TIME"
    least: int
    most: int

    def parse(self, text: str, name: str) -> int:
        """As Kind's."""
        return round(min(parse_micros(text, name), 2.0 * self.most))  # "1e999s" has no whole microseconds

    def text(self, value: int) -> str:
        """As Kind's."""
        return format_micros(value)

    def bound(self, shards: int = 0) -> str:  # noqa: ARG002
        """As Kind's."""
        return self.or_words(f"{format_micros(self.least)} to {format_micros(self.most)}")

    def holds(self, value: int, shards: int) -> bool:  # noqa: ARG002
        """As Kind's."""
        return self.least <= value <= self.most


@dataclass(frozen=True, kw_only=True)
class Number(Kind):
    """A number from least to most; a whole one unless they are floats."""

    unit: str = "N"
    least: float
    most: float

    def parse(self, text: str, name: str) -> float:
        """As Kind's."""
        whole = isinstance(self.most, int)
        try:
            # What float() takes beside numbers, "nan" and "1e999", holds no bound.
            return int(text) if whole else float(text)
        except ValueError:
            what = "a whole number" if whole else "a number"
            raise ConfigError(f"{name}={text[:40]!r}: must be {what}, {self.bound()}") from None

    def bound(self, shards: int = 0) -> str:  # noqa: ARG002
        """As Kind's."""
        return self.or_words(f"{self.least:g} to {self.most:.9g}")

    def holds(self, value: float, shards: int) -> bool:  # noqa: ARG002
        """As Kind's."""
        return self.least <= value <= self.most


@dataclass(frozen=True, kw_only=True)
class Numbers(Kind):
    """Numbers and ranges such as 0-3,8, each below `below`."""

    unit: str = "LIST"
    below: int

    def parse(self, text: str, name: str) -> tuple[int, ...]:
        """As Kind's."""
        numbers: list[int] = []
        for item in text.split(","):
            match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", item)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
            if last < first or last >= self.below:
                raise ConfigError(f"{name}={text[:80]!r}: must be {self.bound()}; write for example 0-3,8")
            numbers.extend(range(first, last + 1))
        return tuple(numbers)

    def text(self, value: tuple[int, ...]) -> str:
        """As Kind's."""
        return ",".join(map(str, value))

    def bound(self, shards: int = 0) -> str:  # noqa: ARG002
        """As Kind's."""
        return self.or_words(f"numbers and ranges from 0 to {self.below - 1}")


@dataclass(frozen=True, kw_only=True)
class Word(Kind):
    """One of a few words."""

    unit: str = "WORD"
    choices: tuple[str, ...]

    def bound(self, shards: int = 0) -> str:  # noqa: ARG002
        """As Kind's."""
        return one_of(self.choices)

    def holds(self, value: str, shards: int) -> bool:  # noqa: ARG002
        """As Kind's."""
        return value in self.choices


@dataclass(frozen=True, kw_only=True)
class Switch(Kind):
    """On or off. off: the option that turns it off where it is on by default."""

    unit: str = ""
    off: str = ""

    def show(self, value: bool) -> str:
        """As Kind's."""
        return "on" if value else "off"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting. Its texts are Markdown of one line: only code is marked.

    option: the command line's, without the dashes; with `_` for `-` it is the name in a refusal. section: of docs/configure.md.
    without: what happens where it is left out and the default does not say. bound: where the kind's does not say it all.
    remedy: of a refusal, behind the bound. several: it may be given again. field, default: of the field that holds it.
    """

    option: str
    section: str
    kind: Kind
    help: str
    without: str = ""
    bound: str = ""
    remedy: str = ""
    several: bool = False
    field: str = ""
    default: Any = None

    @property
    def name(self) -> str:
        """As refusals call it."""
        return self.option.replace("-", "_")

    @property
    def default_text(self) -> str:
        """What holds where it is left out."""
        if self.without:
            return self.without
        return self.kind.show(self.default[0] if self.several else self.default)

    @property
    def bound_text(self) -> str:
        """What a value may be; empty for anything that the unit allows."""
        return self.bound or self.kind.bound()

    def read(self, text: str) -> Any:
        """The value that `text` stands for, within its bound for some number of shards. Errors: ConfigError."""
        word = text.strip().lower()
        if word in self.kind.words:
            return self.kind.words[word]
        value = self.kind.parse(text, self.name)
        if not self.kind.holds(value, 0):
            raise self.refusal(value, 0)
        return value

    def check(self, value: Any, shards: int) -> None:
        """shards: of a store that is to be made, 0 where that is not known. Errors: ConfigError."""
        if self.several or (self.without and value == self.default) or value in self.kind.words.values():
            return
        if not self.kind.holds(value, shards):
            raise self.refusal(value, shards)

    def refusal(self, value: Any, shards: int) -> ConfigError:
        """Setting, value, bound, remedy."""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return ConfigError(f"{self.name}={self.kind.text(value)}: must be {self.kind.bound(shards)}{remedy}")

    @property
    def row(self) -> str:
        """Of its section's table in docs/configure.md."""
        unit = f" {self.kind.unit}" if self.kind.unit else ""
        options = [f"`--{self.option}{unit}`"]
        if isinstance(self.kind, Switch) and self.kind.off:
            options.append(f"`--{self.kind.off}`")
        default = self.default_text if self.without else f"`{self.default_text}`"
        return f"| {', '.join(options)} | {default} | {self.bound_text} | {self.help} |"


def setting(default: Any = dataclasses.MISSING, **described: Any) -> Any:
    """A field of a frozen dataclass with its description. Arguments: those of Setting."""
    return dataclasses.field(default=default, metadata={"setting": Setting(**described)})


def settings_of(configuration: type[Any]) -> tuple[Setting, ...]:
    """The described fields of a dataclass, in their order."""
    found = []
    for one in dataclasses.fields(configuration):
        if (described := one.metadata.get("setting")) is not None:
            default = None if one.default is dataclasses.MISSING else one.default
            found.append(dataclasses.replace(described, field=one.name, default=default))
    return tuple(found)


def table(settings: tuple[Setting, ...], section: str) -> str:
    """The lines of a section's table, the last one's end included."""
    head = ["| option | default | bound | meaning |", "|---|---|---|---|"]
    return "".join(f"{line}\n" for line in [*head, *(one.row for one in settings if one.section == section)])
