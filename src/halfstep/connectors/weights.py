"""What tells a model's weights from others of the same name, without reading all of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

# Of the begin and the end of each file of weights: headers, and values that a fine-tune changes.
SAMPLE_BYTES = 64 * 1024
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


def weights_revision_of(model: str) -> str | None:
    """A folder's digest, or the commit of a download from the hub that is in its cache; None where there is neither.

    The digest is of config.json and of each file of weights: name, length, and SAMPLE_BYTES of both ends.
    """
    folder = Path(model)
    if folder.is_dir():
        return _digest(folder)
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    try:
        found = try_to_load_from_cache(model, "config.json")
    except ValueError:  # no name of a model
        return None
    return Path(found).parent.name if isinstance(found, str) else None


def _digest(folder: Path) -> str | None:
    digest = hashlib.sha256()
    files = sorted({path for pattern in WEIGHTS for path in folder.glob(pattern)})
    if not files:
        return None
    for path in [folder / "config.json", *files]:
        if not path.is_file():
            continue
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            digest.update(file.read(SAMPLE_BYTES))
            file.seek(max(SAMPLE_BYTES, size - SAMPLE_BYTES))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]
