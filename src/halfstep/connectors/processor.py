"""What of a processor decides how an engine orders bytes in its memory."""

from __future__ import annotations

import platform

import torch


def instruction_set() -> str:
    """Architecture and vector instructions: by these vLLM's CPU backend chooses how it orders a head's part of a block."""
    amx = getattr(torch.cpu, "_is_amx_tile_supported", bool)()
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}" + (" AMX" if amx else "")
