"""A vLLM engine on the CPU that a test talks to: requests are lines of JSON on stdin, answers on descriptor $ANSWERS.

    python vllm_engine.py MODEL TIERS_JSON [ENGINE_JSON]

{"prompt": [token, ...], "tokens": N} -> {"tokens": [...], "cached": N, "counts": {...}}; with "watch": true also the
                                         "steps" of vllm_watch.py
... with "salt": text, "lora": folder -> the same, of a tenant's cache, or with that adapter
... with "image": seed                -> the same, where an image of that seed stands for the image token
{"reset": true}                       -> {}          forgets the engine's own caches, in the GPU's place and on the host
TIERS_JSON: "secondary_tiers" of its configuration; [] = an engine without offloading. ENGINE_JSON: more arguments of vllm.LLM.
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
from vllm_prompts import adapter_of, prompt_of  # noqa: E402
from vllm_watch import Watch  # noqa: E402

# Of host memory.
CPU_BYTES = 64 << 20


def engine(model: str, tiers: list[dict[str, Any]], more: dict[str, Any]) -> LLM:
    """The one engine of this process."""
    if tiers:
        more["kv_transfer_config"] = KVTransferConfig(
            kv_connector="OffloadingConnector",
            kv_role="kv_both",
            kv_connector_extra_config={
                "spec_name": "CpuTieringSpec",
                "spec_module_path": "vllm_cpu",
                "cpu_bytes_to_use": CPU_BYTES,
                "blocks_per_chunk": 1,
                "secondary_tiers": tiers,
            },
        )
    common = {
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "enforce_eager": True,
        "max_model_len": 2048,
        "max_num_seqs": 4,
        "enable_prefix_caching": True,
        "seed": 0,
    }
    return LLM(model=model, **(common | more))


def tier_of(llm: LLM) -> Any:
    """Our tier, in the engine's scheduler; None without one."""
    connector = llm.llm_engine.engine_core.engine_core.scheduler.connector
    return None if connector is None else connector.connector_scheduler.manager.secondary_tiers[0]


def rows_of(llm: LLM) -> str:
    """The file of its host memory, in /dev/shm."""
    return f"vllm_offload_{llm.llm_engine.vllm_config.kv_transfer_config.engine_id}.mmap"


def main() -> None:
    """Answers until stdin ends."""
    tiers = json.loads(sys.argv[2])
    llm = engine(sys.argv[1], tiers, json.loads(sys.argv[3]) if len(sys.argv) > 3 else {})
    tier = tier_of(llm) if tiers else None
    with os.fdopen(int(os.environ["ANSWERS"]), "w", buffering=1) as answers:
        said: dict[str, Any] = {} if tier is None else {"layout": dict(tier.layout.fields), "rows": rows_of(llm)}
        print(json.dumps({"layout": {}} | said), file=answers)
        for line in sys.stdin:
            asked = json.loads(line)
            if "reset" in asked:
                said = {"reset": llm.reset_prefix_cache(reset_connector=True)}
            else:
                parameters = SamplingParams(
                    temperature=0.0, max_tokens=asked["tokens"], ignore_eos=True, detokenize=False, logprobs=1
                )
                watch = Watch(llm.llm_engine.engine_core.engine_core.scheduler) if asked.get("watch") else None
                with watch or nullcontext():
                    output = llm.generate(
                        [prompt_of(asked, asked["prompt"])], parameters, use_tqdm=False, lora_request=adapter_of(asked)
                    )[0]
                said = {"tokens": list(output.outputs[0].token_ids), "cached": output.num_cached_tokens}
                said |= {} if watch is None else {"steps": watch.steps}
            said["counts"] = asdict(tier.counts) if tier is not None else {}
            print(json.dumps(said), file=answers)
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
