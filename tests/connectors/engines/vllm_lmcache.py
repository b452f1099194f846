"""A vLLM engine on the CPU over LMCache's server (MP mode), that a test talks to as to vllm_direct.py.

    python vllm_lmcache.py MODEL PORT

$LMCACHE_PACKAGES: the packages of LMCache's environment. They stand behind vLLM's own, which are taken first.
"""

from __future__ import annotations

import os
import sys
from typing import Any

sys.path.append(os.environ["LMCACHE_PACKAGES"])
os.environ |= {"LMCACHE_DISABLE_BANNER": "1", "LMCACHE_TRACK_USAGE": "false"}

import llvmlite.binding.ffi as library
from vllm.config import KVTransferConfig
from vllm_direct import Program, serve


def hide_special_names() -> None:
    """vLLM 0.32 looks for __dict__ of all that its kernels' modules name, and llvmlite's library makes a function of that."""
    found = type(library.lib).__getattr__

    def of_the_library(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return found(self, name)

    type(library.lib).__getattr__ = of_the_library


def main() -> None:
    """As the command line says."""
    hide_special_names()
    transfer = KVTransferConfig(
        kv_connector="LMCacheMPConnector",
        kv_role="kv_both",
        kv_connector_extra_config={"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": int(sys.argv[2])},
    )
    serve(Program(sys.argv[1], {}, {"kv_transfer_config": transfer, "max_model_len": 1024}))


if __name__ == "__main__":
    main()
