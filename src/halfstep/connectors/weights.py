"""What tells a model's weights from others of the same name, without reading all of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

# Of each file of weights, at equal distances from its begin to its end: a fine-tune changes most values of what it touches.
SAMPLES, SAMPLE_BYTES = 256, 4096
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


def folder_revision(model: str) -> str | None:
    """A folder's digest: of config.json, and of each file of weights its name, length and SAMPLES places. None: not there."""
    folder = Path(model)
    files = sorted({path for pattern in WEIGHTS for path in folder.glob(pattern)}) if folder.is_dir() else []
    if not files:
        return None
    digest = hashlib.sha256()
    if (config := folder / "config.json").is_file():
        digest.update(config.read_bytes())
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            for at in range(SAMPLES):
                file.seek(max(0, size - SAMPLE_BYTES) * at // (SAMPLES - 1))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def hub_revision(model: str, revision: str | None, cache_dir: str | None) -> str | None:
    """The commit of a model that was downloaded from the hub, as the engine was asked for it. None: it is not in that cache."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    try:
        found = try_to_load_from_cache(model, "config.json", cache_dir=cache_dir, revision=revision)
    except ValueError:  # no name of a model
        return None
    return Path(found).parent.name if isinstance(found, str) else None
