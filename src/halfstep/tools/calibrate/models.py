"""A model to calibrate, out of a folder of transformers or a callable of one's own; and the windows that it is asked with."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from halfstep.compress import LOSSY_ELEMENTS, Element
from halfstep.compress.probe import Model, Recode, Tokens
from halfstep.errors import ConfigError

# Logits of a run, at most.
_LOGITS_BYTES = 256 << 20


class Subject(NamedTuple):
    """tokens_of: a text as token ids; None: the model has no tokenizer. element: of its cache. batch: windows of a run."""

    model: Model
    tokens_of: Callable[[str], npt.NDArray[np.int64]] | None
    element: Element
    batch: int


def subject_of(named: str, tokens: int) -> Subject:
    """named: a folder with config.json, or MODULE:NAME or FILE.py:NAME of a callable. tokens: that a window is answered for.

    Errors: ConfigError.
    """
    if Path(named).is_dir():
        return _of_folder(named, tokens)
    place, colon, attribute = named.rpartition(":")
    if not colon:
        raise ConfigError(f"model={named!r}: must be a folder of transformers, or MODULE:NAME or FILE.py:NAME of a callable")
    try:
        module = _file_as_module(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        found = getattr(module, attribute)
    except (ImportError, AttributeError, OSError) as error:
        raise ConfigError(f"model={named!r}: {error}") from None
    if not callable(found):
        raise ConfigError(f"model={named!r}: is no callable; halfstep.compress.probe says what it is called with")
    element: Element = getattr(found, "element", "bf16")
    return Subject(cast("Model", found), getattr(found, "tokens_of", None), element, getattr(found, "batch", 16))


class Windows(NamedTuple):
    """To solve for, and to verify on."""

    solved: Tokens
    verified: Tokens


def windows_of(subject: Subject, text: Path, others: Path | None, length: int, count: int) -> Windows:
    """Windows of `length` tokens out of files: .npy of token ids, else text.

    Without `others`, every second window of the text is one to verify on. Errors: ConfigError.
    """
    first = _windows(subject, text, length, count if others is not None else 2 * count)
    if others is not None:
        return Windows(first, _windows(subject, others, length, count))
    return Windows(first[::2], first[1::2])


# ---- within ----


def _file_as_module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _windows(subject: Subject, path: Path, length: int, count: int) -> Tokens:
    try:
        if path.suffix == ".npy":
            ids = np.load(path, allow_pickle=False)
            if ids.ndim not in (1, 2) or ids.dtype.kind not in "iu":
                raise ConfigError(f"{path}: shape {ids.shape} of {ids.dtype}; must be token ids, [tokens] or [windows, tokens]")
        else:
            if subject.tokens_of is None:
                raise ConfigError(f"{path}: the model has no tokenizer (tokens_of); give an .npy of token ids")
            ids = np.asarray(subject.tokens_of(path.read_text(errors="replace")))
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path}: {error}") from None
    rows = ids[np.newaxis] if ids.ndim == 1 else ids
    cut = [row[at : at + length] for row in rows for at in range(0, len(row) - length + 1, length)]
    if len(cut) < 4:
        raise ConfigError(
            f"{path}: has {len(cut)} windows of {length} tokens; must be at least 4, and {count} are wanted: give a longer "
            "text, or lower --prefix"
        )
    # Evenly over the whole text, which may begin with a preface.
    kept = np.linspace(0, len(cut) - 1, min(count, len(cut))).astype(int)
    return np.stack([cut[at] for at in kept]).astype(np.int64)


def _of_folder(folder: str, tokens: int) -> Subject:
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed; in the checkout of Halfstep: pip install '.[torch]'") from None
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    auto: Any = AutoModelForCausalLM  # its methods are not typed
    try:
        config = AutoConfig.from_pretrained(folder)
        loaded = auto.from_pretrained(folder, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model={folder}: {' '.join(str(error).split())}") from None
    told = str(getattr(config, "dtype", None) or "bfloat16").removeprefix("torch.")
    element: Element = "fp16" if told == "float16" else "bf16"
    assert element in LOSSY_ELEMENTS

    def tokens_of(text: str) -> npt.NDArray[np.int64]:
        made: Any = AutoTokenizer
        try:
            tokenizer = made.from_pretrained(folder)
        except (OSError, ValueError) as error:
            raise ConfigError(f"model={folder}: no tokenizer: {' '.join(str(error).split())}; give an .npy of ids") from None
        return np.asarray(tokenizer(text)["input_ids"], np.int64)

    batch = max(1, min(16, _LOGITS_BYTES // (8 * tokens * int(config.vocab_size))))
    return Subject(TransformersModel(loaded, element), tokens_of, element, batch)


class TransformersModel:
    """A causal model of transformers, as halfstep.compress.probe calls it; on the device where it lies.

    element: of the cache that is stored, whatever the model computes in. The K and V of the last windows are kept.
    Errors: ConfigError (a layer that does not keep every token's K and V).
    """

    def __init__(self, model: Any, element: Element = "bf16") -> None:
        self.model, self.element = model.eval(), element
        self._known: tuple[bytes, int] | None = None
        self._kept: list[tuple[Any, Any]] = []

    def __call__(self, tokens: Tokens, prefix: int, recode: Recode) -> Any:
        """See halfstep.compress.probe."""
        import torch
        from transformers import DynamicCache

        from halfstep.connectors.transformers_cache import cache_argument, fill

        ids = torch.from_numpy(tokens).to(self.model.device)
        with torch.no_grad():
            if self._known != (tokens.tobytes(), prefix):
                self._kept, self._known = self._computed(ids[:, :prefix]), (tokens.tobytes(), prefix)
            past = [(recode(n, "k", k), recode(n, "v", v)) for n, (k, v) in enumerate(self._kept)]
            cache = DynamicCache(config=self.model.config)
            fill(cache, past, prefix)
            return self.model(ids[:, prefix:], use_cache=True, **cache_argument(self.model, cache)).logits

    def _computed(self, ids: Any) -> list[tuple[Any, Any]]:
        import torch
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer

        from halfstep.connectors.transformers_cache import cache_argument, layers_of

        cache = DynamicCache(config=self.model.config)
        for number, layer in enumerate(layers_of(cache)):
            if type(layer) is not DynamicLayer:
                raise ConfigError(
                    f"model {self.model.config.model_type}: layer {number} caches as {type(layer).__name__}; only layers that "
                    "keep every token's K and V are covered"
                )
        self.model(ids, use_cache=True, **cache_argument(self.model, cache))
        stored = torch.bfloat16 if self.element == "bf16" else torch.float16
        return [tuple(x.to(stored).to(x.dtype) for x in (one.keys, one.values)) for one in layers_of(cache)]
