"""An SGLang engine on the CPU that a test talks to: requests are lines of JSON on stdin, answers on descriptor $ANSWERS.

    python sglang_engine.py MODEL EXTRA_CONFIG_JSON [ENGINE_JSON]

{"prompt": [token, ...], "tokens": N} -> {"tokens": [...], "cached": N, "storage": N of them from the backend, "counts": its}
{"prompts": [[token, ...], ...], "tokens": N} -> {"answers": [the same of each], "counts": its}
... with "watch": true                -> the same, and the "steps" that it took, as sglang_hicache_cpu.py tells them
{"reset": true}                       -> {"reset": true}    forgets what the device and the host pool have
EXTRA_CONFIG_JSON: of the backend; {} = an engine without HiCache. ENGINE_JSON: more arguments of sglang.Engine.
$HALFSTEP_COUNTS: a file for what the backend counts; $HALFSTEP_STEPS: one for the scheduler's steps.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ |= {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"}


def engine(model: str, extra: dict[str, Any], more: dict[str, Any]) -> Any:
    """The one engine of this process; its scheduler is a process of its own."""
    import sglang

    # Its scheduler and detokenizer are forked from what is imported here already: a new interpreter takes 20 s for that, twice.
    multiprocessing.set_start_method("fork", force=True)
    multiprocessing.set_start_method = lambda *_, **__: None  # type: ignore[method-assign, assignment]
    if extra:
        more |= {
            "enable_hierarchical_cache": True,
            "hicache_ratio": 2.0,
            "hicache_io_backend": "direct",
            "hicache_mem_layout": "page_first_direct",
            "hicache_write_policy": "write_through",
            "hicache_storage_prefetch_policy": "wait_complete",
            "hicache_storage_backend": "dynamic",
            "hicache_storage_backend_extra_config": json.dumps(
                {
                    "backend_name": "halfstep",
                    "module_path": "halfstep.connectors.sglang",
                    "class_name": "HalfstepHiCache",
                    "interface_v1": 1,
                    "prefetch_threshold": 16,
                }
                | extra
            ),
        }
    return sglang.Engine(
        model_path=model,
        device="cpu",
        attention_backend="torch_native",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        page_size=16,
        max_total_tokens=4096,
        mem_fraction_static=0.5,  # of what is free at its start, of which others may take some; the pool has max_total_tokens
        disable_overlap_schedule=True,
        disable_cuda_graph=True,
        context_length=1024,
        max_running_requests=4,
        log_level="warning",
        **more,
    )


def answer(output: dict[str, Any]) -> dict[str, Any]:
    """To one prompt."""
    told = output["meta_info"]
    details = told.get("cached_tokens_details") or {}
    return {"tokens": output["output_ids"], "cached": told["cached_tokens"], "storage": int(details.get("storage") or 0)}


def counts() -> dict[str, Any]:
    """Of the backend, as of its last call."""
    path = Path(os.environ.get("HALFSTEP_COUNTS", "/nowhere"))
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def steps() -> list[dict[str, Any]]:
    """Of the scheduler, all of them."""
    path = Path(os.environ.get("HALFSTEP_STEPS", "/nowhere"))
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    """Answers until stdin ends."""
    made = engine(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]) if len(sys.argv) > 3 else {})
    with os.fdopen(int(os.environ["ANSWERS"]), "w", buffering=1) as answers:
        print(json.dumps({"layout": {}}), file=answers)
        for line in sys.stdin:
            asked = json.loads(line)
            if "reset" in asked:
                # What is on its way down is let go by a reset.
                time.sleep(2)
                said: dict[str, Any] = {"reset": bool(made.flush_cache())}
            else:
                parameters = {"temperature": 0, "max_new_tokens": asked["tokens"], "ignore_eos": True}
                prompts = asked["prompts"] if "prompts" in asked else [asked["prompt"]]
                before = len(steps()) if asked.get("watch") else 0
                outputs = made.generate(input_ids=prompts, sampling_params=parameters)
                said = {"answers": [answer(one) for one in outputs]} if "prompts" in asked else answer(outputs[0])
                said |= {"steps": steps()[before:]} if asked.get("watch") else {}
                said["counts"] = counts()
            print(json.dumps(said), file=answers)
    made.shutdown()


if __name__ == "__main__":
    main()
