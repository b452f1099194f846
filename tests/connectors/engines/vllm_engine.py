"""A vLLM engine on the CPU that a test talks to: requests are lines of JSON on stdin, answers on descriptor $ANSWERS.

    python vllm_engine.py MODEL TIERS_JSON [CPU_BYTES] [BLOCKS_PER_CHUNK]

{"prompt": [token, ...], "tokens": N} -> {"tokens": [...], "cached": N, "counts": {...}}; with "watch": true also the
                                         "steps" of vllm_watch.py
{"reset": true}                       -> {}          forgets the engine's own caches, in the GPU's place and on the host
TIERS_JSON: "secondary_tiers" of its configuration; [] = an engine without offloading.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).resolve().parent)
os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the tier is in this process, where its counts can be read
    "VLLM_NO_USAGE_STATS": "1",
    "PYTHONPATH": HERE,
}
sys.path.insert(0, HERE)

from vllm import LLM, SamplingParams  # noqa: E402
from vllm.config import KVTransferConfig  # noqa: E402
from vllm_watch import Watch  # noqa: E402


def engine(model: str, tiers: list[dict[str, Any]], cpu_bytes: int, blocks_per_chunk: int) -> LLM:
    """The one engine of this process."""
    more: dict[str, Any] = {}
    if tiers:
        more["kv_transfer_config"] = KVTransferConfig(
            kv_connector="OffloadingConnector",
            kv_role="kv_both",
            kv_connector_extra_config={
                "spec_name": "CpuTieringSpec",
                "spec_module_path": "vllm_cpu",
                "cpu_bytes_to_use": cpu_bytes,
                "blocks_per_chunk": blocks_per_chunk,
                "secondary_tiers": tiers,
            },
        )
    return LLM(
        model=model,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=2048,
        max_num_seqs=4,
        enable_prefix_caching=True,
        seed=0,
        **more,
    )


def tier_of(llm: LLM) -> Any:
    """Our tier, in the engine's scheduler; None without one."""
    connector = llm.llm_engine.engine_core.engine_core.scheduler.connector
    return None if connector is None else connector.connector_scheduler.manager.secondary_tiers[0]


def main() -> None:
    """Answers until stdin ends."""
    model, tiers = sys.argv[1], json.loads(sys.argv[2])
    cpu_bytes = int(sys.argv[3]) if len(sys.argv) > 3 else 64 << 20
    llm = engine(model, tiers, cpu_bytes, int(sys.argv[4]) if len(sys.argv) > 4 else 1)
    tier = tier_of(llm) if tiers else None
    with os.fdopen(int(os.environ["ANSWERS"]), "w", buffering=1) as answers:
        print(json.dumps({"layout": {} if tier is None else dict(tier.layout.fields)}), file=answers)
        for line in sys.stdin:
            asked = json.loads(line)
            if "reset" in asked:
                said: dict[str, Any] = {"reset": llm.reset_prefix_cache(reset_connector=True)}
            else:
                parameters = SamplingParams(
                    temperature=0.0, max_tokens=asked["tokens"], ignore_eos=True, detokenize=False, logprobs=1
                )
                watch = Watch(llm.llm_engine.engine_core.engine_core.scheduler) if asked.get("watch") else None
                with watch or nullcontext():
                    output = llm.generate([{"prompt_token_ids": asked["prompt"]}], parameters, use_tqdm=False)[0]
                said = {"tokens": list(output.outputs[0].token_ids), "cached": output.num_cached_tokens}
                said |= {} if watch is None else {"steps": watch.steps}
            said["counts"] = asdict(tier.counts) if tier is not None else {}
            print(json.dumps(said), file=answers)
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
