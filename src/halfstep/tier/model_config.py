"""A model's config.json, read with checks: each field has a type and a bound, and none is guessed.

Whoever adds a field here says what it is when it is absent. A wrong value is a ConfigError that names the field, the value, the
bound and the remedy; nothing else is ever raised, whatever the file holds.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping

from halfstep.errors import ConfigError

# Far beyond any model, and small enough that a wrong file costs no memory.
LAYERS_MAX = 4096
HEADS_MAX = 4096
DIM_MAX = 1 << 16
WINDOW_MAX = 1 << 30

# Canonical name of a cache's dtype -> bytes of a value.
DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
# What engines call the same; two names of one dtype must not make two layouts.
_DTYPE_NAMES: Mapping[str, str] = {
    "fp8": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "half": "float16",
    "float": "float32",
}
# vLLM's packed latent, whose entries hold fp8 values, their scales, and the rotated half in bfloat16.
PACKED_LATENT = "fp8_ds_mla"


class ModelConfig:
    """The text model's part of a config.json.

    model_type: as the file says. Multimodal files nest the text model in `text_config`.
    Errors: ConfigError, of every method too.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        if not isinstance(config, Mapping):
            raise ConfigError(f"config: must be an object of named fields, as in a model's config.json, not {_kind(config)}")
        nested = config.get("text_config")
        if nested is not None and not isinstance(nested, Mapping):
            raise ConfigError(f"text_config={_shown(nested)}: must be an object of named fields, not {_kind(nested)}")
        self._outer = config
        self._fields: Mapping[str, object] = config if nested is None else nested
        self._where = "" if nested is None else "text_config."
        self.model_type = self.text("model_type")

    def name(self, field: str) -> str:
        """Where a field stands in the file."""
        return self._where + field

    def has(self, field: str) -> bool:
        """Whether it is there and not null."""
        return self._fields.get(field) is not None

    def states(self, field: str) -> bool:
        """Whether it is there, be it null."""
        return field in self._fields

    def wrong(self, field: str, must: str) -> ConfigError:
        """The error for a field: its value, and what it must be."""
        return ConfigError(f"{self.name(field)}={_shown(self._fields.get(field))}: {must}")

    def text(self, field: str) -> str:
        """A text that must be there."""
        value = self._there(field)
        if not isinstance(value, str) or not value:
            raise self.wrong(field, f"must be a text, not {_kind(value)}")
        return value

    def flag(self, field: str) -> bool:
        """True or false; absent is false."""
        value = self._fields.get(field)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.wrong(field, f"must be true or false, not {_kind(value)}")
        return value

    def number(self, field: str, most: int, default: int | None = None, *, least: int = 1) -> int:
        """A whole number of `least` to `most`; without a default it must be there."""
        if default is not None and not self.has(field):
            return default
        value = self._there(field)
        if not _in_bounds(value, least, most):
            raise self.wrong(field, f"must be a whole number of {least} to {most}; correct the file")
        assert isinstance(value, int)
        return value

    def numbers(self, field: str, least: int, most: int, at_least: int) -> list[int]:
        """A list of at least so many whole numbers, which must be there."""
        value = self._there(field)
        if not isinstance(value, list) or not all(_in_bounds(entry, least, most) for entry in value):
            raise self.wrong(field, f"must be a list of whole numbers of {least} to {most}, one a layer")
        if len(value) < at_least:
            raise self.wrong(field, f"has {len(value)} entries for {at_least} layers; there must be one for each")
        return value

    def words(self, field: str, count: int) -> list[str]:
        """A list of so many texts, which must be there."""
        value = self._there(field)
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise self.wrong(field, "must be a list of texts, one a layer")
        if len(value) != count:
            raise self.wrong(field, f"has {len(value)} entries for {count} layers; there must be one for each")
        return value

    def letters(self, field: str, count: int) -> list[str]:
        """So many letters, written as one text, or as a list of them."""
        value = self._there(field)
        if isinstance(value, str):
            if len(value) != count:
                raise self.wrong(field, f"has {len(value)} letters for {count} layers; there must be one for each")
            return list(value)
        return self.words(field, count)

    def table(self, field: str) -> Mapping[str, object]:
        """An object of named fields; absent is an empty one."""
        value = self._fields.get(field)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.wrong(field, f"must be an object of named fields, not {_kind(value)}")
        return value

    def refuse(self, *fields: str) -> None:
        """Raises if one of these changes the cache in a way that this model type is not known to have."""
        for field in fields:
            value = self._fields.get(field)
            if value is not None and not (isinstance(value, (int, float, str, list, dict)) and not value):
                raise self.wrong(field, f"model_type {self.model_type!r} is not covered with it; name the kinds by hand")

    def dtype(self, asked: str | None) -> str:
        """The cache's dtype in its canonical name: what was asked for, else the model's own.

        A file that says how to quantise the cache leaves the choice to the engine, and is refused unless a dtype is asked for.
        """
        if asked is not None:
            return _dtype_checked("dtype", asked)
        for holder in (self._fields, self._outer):
            quantised = holder.get("quantization_config")
            if isinstance(quantised, Mapping):
                for field in ("kv_cache_scheme", "kv_cache_quant_algo"):
                    if quantised.get(field) is not None:
                        raise ConfigError(
                            f"quantization_config.{field}={_shown(quantised[field])}: the cache is quantised where the engine "
                            "obeys it; give the dtype that the engine uses, such as fp8"
                        )
        found = {
            _dtype_checked(field, holder[field])
            for holder in (self._fields, self._outer)
            for field in ("dtype", "torch_dtype")
            if holder.get(field) is not None
        }
        if len(found) != 1:
            said = f"{', '.join(sorted(found))} are named" if found else "neither is there"
            raise ConfigError(f"dtype, torch_dtype: {said}; give the cache's dtype, such as bfloat16")
        return found.pop()

    def _there(self, field: str) -> object:
        value = self._fields.get(field)
        if value is None:
            said = "is null" if field in self._fields else "is missing"
            raise ConfigError(f"{self.name(field)}: {said}, and is not guessed; take the config.json that the model came with")
        return value


def _dtype_checked(field: str, value: object) -> str:
    if isinstance(value, str):
        name = value.removeprefix("torch.")
        name = _DTYPE_NAMES.get(name, name)
        if name in DTYPE_BYTES or name == PACKED_LATENT:
            return name
    known = ", ".join([*DTYPE_BYTES, PACKED_LATENT])
    raise ConfigError(f"{field}={_shown(value)}: must be one of {known}")


def _in_bounds(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to write thousands of digits
        return f"(a number of {value.bit_length()} bits)"
    return reprlib.repr(value)
