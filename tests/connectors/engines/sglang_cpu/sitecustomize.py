"""On PYTHONPATH, lets SGLang be imported with a torch for CPUs.

torchvision comes as a build for CUDA, whose native operators do not load then; SGLang's import needs that two of them are
declared.
"""

from __future__ import annotations

import importlib.abc
import sys
from typing import Any


class BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Declares the operators before torchvision is imported for the first time."""

    library: Any = None

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        """Finds nothing: whoever comes next does."""
        if fullname == "torchvision" and self.library is None:
            import torch

            self.library = torch.library.Library("torchvision", "DEF")
            for name in ("nms", "qnms"):
                self.library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


sys.meta_path.insert(0, BeforeTorchvision())
