"""A vLLM engine on the CPU with a KV connector of ours, that a test talks to as to vllm_engine.py.

    python vllm_direct.py MODEL EXTRA_CONFIG_JSON [ENGINE_JSON]

{"prompts": [[token, ...], ...], "tokens": N} -> {"answers": [{"tokens": [...], "cached": N}, ...], "scheduler": counts,
                                                  "worker": counts, "plans": decisions by reason, "preemptions": N,
                                                  "ahead": what was brought for requests that wait, by how it ended}
{"prompt": [token, ...], "tokens": N}         -> the one answer, and the same counts; with "watch": true also the "steps" of
                                                  vllm_watch.py
... with "salt": text, "lora": folder         -> the same, of a tenant's cache, or with that adapter
... with "image": seed                        -> the same, where an image of that seed stands for the image token
{"prompt": [...], "judge": [token, ...]}      -> {"agreement": share of those tokens that are the likeliest ones here}
{"reset": true}                               -> waits for stores, forgets the engine's own cache
{"reset": true, "connector": true}            -> and what the connector has stored, as after new weights
{"pace": N}                                   -> from now on a prefill is measured as N times as long as it is
{"digests": true}                             -> {"digests": {key: digest}} of the full blocks of the request that ended last
EXTRA_CONFIG_JSON: of the connector; {} = an engine without one. ENGINE_JSON: more arguments of vllm.LLM.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # scheduler and worker are in this process, with their counts

import torch
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm_prompts import adapter_of, prompt_of
from vllm_watch import Watch


class Program:
    """The one engine of this process. extra: of our connector, {} = none. more: of vllm.LLM, another connector among it."""

    def __init__(self, model: str, extra: dict[str, Any], more: dict[str, Any]) -> None:
        if extra:
            more["kv_transfer_config"] = KVTransferConfig(
                kv_connector="HalfstepConnector",
                kv_connector_module_path="halfstep.connectors.vllm_connector",
                kv_role="kv_both",
                kv_connector_extra_config=extra,
            )
        common = {
            "seed": 0,
            "enable_prefix_caching": True,
            "skip_tokenizer_init": True,
            "dtype": "bfloat16",
            "enforce_eager": True,
            "max_model_len": 2048,
        }
        self.llm = LLM(model=model, **(common | {"max_num_seqs": 4} | more))
        self.core = getattr(self.llm.llm_engine.engine_core, "engine_core", None)  # None: in another process
        self.connected = bool(extra)
        self.preemptions = 0
        self.blocks: dict[str, int] = {}
        if self.core is not None and self.connected:
            self._watch(self.core.scheduler)

    @property
    def fields(self) -> dict[str, Any]:
        """Of the layout."""
        if self.core is None or not self.connected:
            return {}
        return dict(self.core.scheduler.connector.layout.layout.fields)

    def _watch(self, scheduler: Any) -> None:
        preempt, finished = scheduler._preempt_request, scheduler.connector.request_finished

        def counting(*arguments: Any, **named: Any) -> None:
            self.preemptions += 1
            preempt(*arguments, **named)

        def remembering(request: Any, blocks: list[int]) -> Any:
            self.blocks = {bytes(key).hex(): block for key, block in zip(request.block_hashes, blocks, strict=False)}
            return finished(request, blocks)

        scheduler._preempt_request, scheduler.connector.request_finished = counting, remembering

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """To one line."""
        if "reset" in asked:
            return {"reset": self._reset(asked.get("connector", False))}
        if "pace" in asked:
            get_kv_transfer_group()._mover._clock = lambda: asked["pace"] * time.monotonic()
            return {"pace": asked["pace"]}
        if "digests" in asked:
            return {"digests": self._digests()}
        if "judge" in asked:
            return {"agreement": self._agreement(asked["prompt"], asked["judge"])}
        prompts = asked["prompts"] if "prompts" in asked else [asked["prompt"]]
        parameters = SamplingParams(temperature=0.0, max_tokens=asked["tokens"], ignore_eos=True, detokenize=False, logprobs=1)
        watch = Watch(self.core.scheduler) if asked.get("watch") else None
        with watch or nullcontext():
            outputs = self.llm.generate(
                [prompt_of(asked, prompt) for prompt in prompts], parameters, use_tqdm=False, lora_request=adapter_of(asked)
            )
        answers = [{"tokens": list(one.outputs[0].token_ids), "cached": one.num_cached_tokens} for one in outputs]
        told = self._counts() | ({} if watch is None else {"steps": watch.steps})
        return {"answers": answers, **told} if "prompts" in asked else answers[0] | told

    def _agreement(self, prompt: list[int], told: list[int]) -> float:
        parameters = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False, prompt_logprobs=1)
        (output,) = self.llm.generate([{"prompt_token_ids": prompt + told}], parameters, use_tqdm=False)
        ranks = [output.prompt_logprobs[len(prompt) + at][token].rank for at, token in enumerate(told)]
        return sum(rank == 1 for rank in ranks) / len(ranks)

    def _counts(self) -> dict[str, Any]:
        if self.core is None or not self.connected:
            return {}
        scheduler = self.core.scheduler.connector
        worker = asdict(get_kv_transfer_group().counts) if has_kv_transfer_group() else {}  # {}: ranks have their processes
        return {
            "scheduler": asdict(scheduler.counts),
            "worker": worker,
            "plans": {why: count for why, count in scheduler.plans.items() if count},
            "preemptions": self.preemptions,
            "ahead": {} if scheduler._tier.ahead is None else asdict(scheduler._tier.ahead.counts()["turn"]),
        }

    def _reset(self, connector: bool) -> bool:
        end = time.monotonic() + 60
        while self.core is not None and self.core.scheduler.has_requests() and time.monotonic() < end:
            self.core.step_fn()
            time.sleep(0.001)
        return bool(self.llm.reset_prefix_cache(reset_connector=connector))

    def _digests(self) -> dict[str, str]:
        caches = self.core.model_executor.driver_worker.worker.model_runner.kv_caches
        found = {}
        for key, block in self.blocks.items():
            digest = hashlib.sha256()
            for cache in caches:
                digest.update(cache[block].contiguous().view(torch.uint8).numpy().tobytes())
            found[key] = digest.hexdigest()
        return found


def serve(program: Program) -> None:
    """Answers until stdin ends."""
    with os.fdopen(int(os.environ["ANSWERS"]), "w", buffering=1) as answers:
        print(json.dumps({"layout": program.fields}), file=answers)
        for line in sys.stdin:
            print(json.dumps(program.answer(json.loads(line))), file=answers)
    program.llm.llm_engine.engine_core.shutdown()


def main() -> None:
    """As the command line says."""
    serve(Program(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}))


if __name__ == "__main__":
    main()
