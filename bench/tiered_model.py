"""What bench/first_token.py runs: a model of random weights, prompts of it, and a daemon in the state that each way needs.

Apart from the script, because torch takes seconds to load: what the script refuses, it refuses before that.
Invariant: when a run has ended, the daemon runs and answers, whatever state the run had it in.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from script import say
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig

import halfstep
from halfstep.connectors.transformers import PromptCache, cache_argument
from halfstep.daemon.config import setting_named
from halfstep.daemon.setting import Bytes
from halfstep.daemon.units import GIB, KIB, MIB, format_bytes
from halfstep.tools.bench.device import DEVICE_SHARE_MIN, BlockDevice
from halfstep.tools.bench.machine import device_name
from halfstep.tools.bench.place import own_daemon
from halfstep.tools.daemon_process import DaemonProcess

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SEED = 20_261
# Times the spread that keeps a layer's output as large as its input: what comes out depends on all of the prompt.
WEIGHT_GAIN = 1.4
DTYPES = ("float32", "bfloat16")
PROBE_TOKENS = 512
# Last tokens that are tried for a prompt.
CANDIDATES = 16
# Of what is not timed.
PATIENCE_MS = 60_000.0
# A get that reads a block from flash leaves it in memory at the latest when it comes again.
WARM_TRIES = 6
# A restore that was late is counted and made again, so often.
LATE_MAX = 5
ARENA_BYTES_MIN = 256 * MIB

# The ways in which blocks come from the tier; in the others nothing does.
RESTORING = ("memory", "flash")


# ---- The model ----


# Hidden and intermediate size, layers, heads, KV heads, vocabulary: four or five query heads to a KV head.
SHAPES = {
    "tiny": (64, 128, 2, 4, 1, 256),
    "140m": (768, 2048, 16, 12, 3, 16_384),
    "8b": (4096, 14_336, 32, 32, 8, 128_256),
    "32b": (5120, 27_648, 64, 40, 8, 152_064),
}


def config_of(name: str, positions: int) -> LlamaConfig:
    """tiny: for a test of this script, and of no use for a figure. 8b, 32b: the shapes of Llama 3 and Qwen 2.5 of that size."""
    hidden, intermediate, layers, heads, kv_heads, vocabulary = SHAPES[name]
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
    )


def build(config: LlamaConfig, dtype: str, device: str) -> PreTrainedModel:
    """The same weights in every run on a device, as far as the dtype has them; made there."""
    torch.manual_seed(SEED)
    auto: Any = AutoModelForCausalLM  # its methods are not typed
    with torch.device(device):
        model: PreTrainedModel = auto.from_config(config, dtype=getattr(torch, dtype))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, WEIGHT_GAIN / parameter.shape[-1] ** 0.5)
    model.train(mode=False)
    return model


def cuda_seen() -> bool:
    return torch.cuda.is_available()


def parameters_of(model: PreTrainedModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def forward(model: PreTrainedModel, ids: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
    """The last position's logits; what the cache lacks of the ids is computed and added to it."""
    left = ids[:, cache.get_seq_length() :]
    with torch.no_grad():
        said = model(left, use_cache=True, logits_to_keep=1, **cache_argument(model, cache))
    logits: torch.Tensor = said.logits[0, -1]
    return logits


def faster_model(config: LlamaConfig, dtype: str, device: str) -> tuple[PreTrainedModel, dict[str, float]]:
    """The model in this dtype, or with "auto" in the one that computes faster here; and the milliseconds of each one tried.

    On a GPU that is bfloat16, without a trial.
    """
    if dtype != "auto" or device != "cpu":
        return build(config, "bfloat16" if dtype == "auto" else dtype, device), {}
    ids = torch.randint(config.vocab_size, (1, PROBE_TOKENS), generator=torch.Generator().manual_seed(SEED))
    models, took_ms = {}, {}
    for name in DTYPES:
        models[name] = build(config, name, device)
        times = []
        for _ in range(3):  # the first forward of a model pays for its set-up
            began = time.perf_counter()
            forward(models[name], ids, DynamicCache(config=config))
            times.append((time.perf_counter() - began) * 1e3)
        took_ms[name] = min(times)
    fastest = min(took_ms, key=lambda name: took_ms[name])
    say(f"{PROBE_TOKENS} tokens: {', '.join(f'{name} {ms:.0f} ms' for name, ms in took_ms.items())}; {fastest} it is")
    return models[fastest], took_ms


# ---- The prompts ----


@dataclass(frozen=True)
class Prompt:
    """ids: [1, tokens]. cache: of all tokens but the last, as it was saved. token: what follows. margin: its logit's lead.

    spread: the standard deviation of all logits, for comparison.
    """

    ids: torch.Tensor
    cache: DynamicCache
    token: int
    margin: float
    spread: float
    blocks: int
    bytes: int

    @property
    def tokens(self) -> int:
        return int(self.ids.shape[1])

    def same_bytes(self, restored: DynamicCache, tokens: int) -> bool:
        """Whether a restored cache holds the very bits of the first `tokens` tokens that were saved."""
        layers: list[tuple[Any, Any]] = list(zip(self.cache.layers, restored.layers, strict=True))
        pairs = [pair for mine, theirs in layers for pair in ((mine.keys, theirs.keys), (mine.values, theirs.values))]
        return all(torch.equal(mine[:, :, :tokens], theirs[:, :, :tokens]) for mine, theirs in pairs)


def prompt_of(store: PromptCache, tokens: int) -> Prompt:
    """Random tokens, computed; the last one is chosen among some by what follows it. Errors: SystemExit where none will do."""
    model = store.model
    vocabulary = int(model.config.vocab_size)
    generator = torch.Generator().manual_seed(SEED + tokens)
    ids = torch.randint(vocabulary, (1, tokens), generator=generator).to(model.device)
    cache = DynamicCache(config=model.config)
    forward(model, ids[:, :-1], cache)
    blocks = (tokens - 1) // store.block_tokens
    best: tuple[float, int, int, float] | None = None
    for last in torch.randint(vocabulary, (CANDIDATES,), generator=generator).tolist():
        ids[0, -1] = last
        logits = forward(model, ids, cache).float()
        cache.crop(-1)
        # What is left to compute after a restore, as if nothing had been restored.
        alone = forward(model, ids[:, blocks * store.block_tokens :], DynamicCache(config=model.config))
        (first, second), (token, _) = torch.topk(logits, 2)
        if int(token) != int(alone.argmax()) and (best is None or float(first - second) > best[0]):
            best = (float(first - second), last, int(token), float(logits.std()))
    if best is None:
        raise SystemExit(f"{tokens} tokens: what follows does not depend on the blocks; comparing tokens would show nothing")
    margin, ids[0, -1], token, deviation = best
    return Prompt(ids, cache, token, margin, deviation, blocks, blocks * store.block_bytes)


def save(store: PromptCache, prompt: Prompt) -> None:
    """All full blocks, on media when it returns."""
    until = time.monotonic() + PATIENCE_MS / 1e3
    while True:
        saved = store.save(prompt.ids, prompt.cache, deadline_ms=PATIENCE_MS)
        if saved.refused == 0:
            return
        # What was throttled is offered again.
        if time.monotonic() > until:
            raise SystemExit(
                f"{prompt.tokens} tokens: {saved.refused} of {prompt.blocks} blocks were not saved: {saved.reason}"
            )


# ---- One run ----


@dataclass(frozen=True)
class Counters:
    """Blocks that gets had from memory and from flash, bytes that were read for them, and those that the drive has read."""

    memory_hits: int
    flash_hits: int
    gets_read_bytes: int
    drive_read_bytes: int

    def since(self, before: Counters) -> Counters:
        return Counters(*(after - one for after, one in zip(vars(self).values(), vars(before).values(), strict=True)))


@dataclass(frozen=True)
class Run:
    """ms: until the first token; restore_ms: of that in the tier. counted: meanwhile, None where no daemon could be asked.

    late: restores before this one that came after a deadline though the daemon answers: something else had the processors.
    """

    way: str
    ms: float
    restore_ms: float
    token: int
    hit_blocks: int
    reason: str
    bytes_same: bool | None
    counted: Counters | None
    late: int = 0


class StoppingQueue:
    """A tier's queue whose daemon stops when its match was answered."""

    def __init__(self, queue: halfstep.Queue, stop: Callable[[], None]) -> None:
        self._queue, self._stop = queue, stop

    def get_sections(self, *arguments: Any, **options: Any) -> Any:
        self._stop()
        return self._queue.get_sections(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class Stage:
    """A daemon, a client that lives as long as the benchmark, as an engine's does, and what brings them into a way's state."""

    def __init__(self, daemon: DaemonProcess, store: PromptCache) -> None:
        self._daemon, self._store = daemon, store
        self._client = store.client
        self._queue = store.tier.queue
        self.device = BlockDevice.of(daemon.store)

    def run(self, way: str, prompt: Prompt) -> Run:
        """One. Errors: SystemExit where it does not show what it claims."""
        for late in range(LATE_MAX + 1):
            one = replace(self._once(way, prompt), late=late)
            if way not in RESTORING or not one.reason.startswith("late"):
                break
        if why := self._why_not(one, prompt):
            raise SystemExit(f"{prompt.tokens} tokens, {way}: {why}")
        return one

    def _once(self, way: str, prompt: Prompt) -> Run:
        with self._in_state(way, prompt):
            before = self._counters() if way in RESTORING else None
            began = time.perf_counter()
            if way == "computed":
                hit_blocks, reason, cache = 0, "", DynamicCache(config=self._store.config)
            else:
                restored = self._store.restore(prompt.ids)
                hit_blocks, reason, cache = restored.hit_blocks, restored.reason, restored.cache
            there = time.perf_counter()
            token = int(forward(self._store.model, prompt.ids, cache).argmax())
            ended = time.perf_counter()
            counted = self._counters().since(before) if before else None
        same = prompt.same_bytes(cache, hit_blocks * self._store.block_tokens) if hit_blocks else None
        return Run(way, (ended - began) * 1e3, (there - began) * 1e3, token, hit_blocks, reason, same, counted)

    @contextmanager
    def _in_state(self, way: str, prompt: Prompt) -> Iterator[None]:
        """What a way needs of the daemon, and afterwards a daemon that answers."""
        if way == "flash":
            self._daemon.end()
            self._daemon.start()
        self._ready()
        if way == "memory":
            self._into_memory(prompt)
        try:
            if way == "stopped":
                self._pause()
            elif way == "cut":
                stopping: Any = StoppingQueue(self._queue, self._pause)
                self._store.tier.queue = stopping
            elif way == "gone":
                self._daemon.end(signal.SIGKILL)
            yield
        finally:
            self._store.tier.queue = self._queue
            if way in ("stopped", "cut") and self._daemon.running:
                os.kill(self._daemon.pid, signal.SIGCONT)
        if way == "gone":
            self._daemon.start()

    def _ready(self) -> None:
        """The client has a connection and its layout's number: only a call of a connection that is new pays for those."""
        self._client.wait_ready(PATIENCE_MS)
        asked = self._client.match([b"no such block"], layout=self._store.layout, deadline_ms=PATIENCE_MS)
        if asked.reason:
            raise SystemExit(f"the daemon does not answer: {asked.reason}")

    def _into_memory(self, prompt: Prompt) -> None:
        for _ in range(WARM_TRIES):
            before = self._counters()
            restored = self._store.restore(prompt.ids, deadline_ms=PATIENCE_MS)
            counted = self._counters().since(before)
            if restored.hit_blocks == counted.memory_hits == prompt.blocks:
                return
        raise SystemExit(f"{prompt.tokens} tokens: after {WARM_TRIES} restores {counted.memory_hits} blocks come from memory")

    def _pause(self) -> None:
        os.kill(self._daemon.pid, signal.SIGSTOP)
        os.waitpid(self._daemon.pid, os.WUNTRACED)  # the signal only asks; here the last thread has stopped

    def _counters(self) -> Counters:
        with halfstep.connect(self._daemon.url, required=True, deadline_ms=PATIENCE_MS, mode="on") as operator:
            stat = operator.stat()
        return Counters(
            int(stat['halfstep_store_hits_total{from="memory"}']),
            int(stat['halfstep_store_hits_total{from="flash"}']),
            int(stat["halfstep_device_gets_read_bytes_total"]),
            self.device.read_bytes(),
        )

    def _why_not(self, one: Run, prompt: Prompt) -> str:
        """Why a run is not one of its way; "" if it is."""
        wanted = prompt.blocks if one.way in RESTORING else 0
        if one.hit_blocks != wanted:
            return (
                f"{one.hit_blocks} of {prompt.blocks} blocks were restored, {wanted} should be ({one.reason or 'no reason'}); "
                "on a busy machine give a longer --match-deadline-ms and --deadline-ms"
            )
        if one.counted is None:
            return ""
        counted = one.counted
        if one.way == "memory" and (counted.memory_hits, counted.gets_read_bytes) != (wanted, 0):
            return f"{counted.memory_hits} of {wanted} blocks came from memory, {counted.gets_read_bytes} bytes were read"
        if one.way == "flash":
            if counted.flash_hits != wanted or counted.gets_read_bytes < prompt.bytes:
                read = f"{counted.gets_read_bytes} bytes of {prompt.bytes} were read"
                return f"{counted.flash_hits} of {wanted} blocks came from flash, {read}"
            cached = "a page cache answered; put the store where O_DIRECT is to be had, with --directory"
            if self.device.stat_files and counted.drive_read_bytes < DEVICE_SHARE_MIN * counted.gets_read_bytes:
                read = f"{self.device.name} read {counted.drive_read_bytes} bytes of {counted.gets_read_bytes}"
                return f"{read}: {cached}"
            if not self.device.stat_files and not self._daemon.facts["backing"]["direct"]:
                return f"no device counts its reads: perhaps {cached}"
        return ""


# ---- All of them ----


def arena_for(prompts_bytes: Sequence[int]) -> int:
    """Three times what all prompts have, as far as a daemon may have that. Errors: SystemExit (no room for the largest).

    Each prompt is brought into memory before it is restored from there. So what must fit is the largest one, twice: the
    others' blocks, which are evicted for it, may have the other half.
    """
    kind = setting_named("arena").kind
    assert isinstance(kind, Bytes)
    if 2 * max(prompts_bytes) <= kind.most:
        return min(max(ARENA_BYTES_MIN, 3 * sum(prompts_bytes)), kind.most)
    raise SystemExit(
        f"the longest prompt has {format_bytes(max(prompts_bytes))} of KV, and a daemon's arena at most "
        f"{format_bytes(kind.most)}, half of it for one prompt: fewer --tokens, or a smaller --model"
    )


def measure(
    options: argparse.Namespace, ways: Sequence[str], head: dict[str, Any]
) -> list[tuple[Prompt, list[dict[str, Run]]]]:
    """Each prompt with its rounds, a run of each way; the header gets what only the model and the daemon know."""
    config = config_of("tiny" if options.small else options.model, max(*options.tokens, PROBE_TOKENS))
    model, tried_ms = faster_model(config, options.dtype, options.device)
    gpu = torch.cuda.get_device_name(model.device) if options.device == "cuda" else ""
    head |= {"torch": torch.__version__, "threads": torch.get_num_threads(), "seed": SEED, "parameters": parameters_of(model)}
    head |= {"dtype": str(model.dtype).removeprefix("torch."), "dtype_probe_ms": tried_ms, "gpu": gpu}
    head_bytes = config.hidden_size // config.num_attention_heads * model.dtype.itemsize
    kv_heads = config.num_key_value_heads or config.num_attention_heads
    token_bytes = 2 * config.num_hidden_layers * kv_heads * head_bytes
    all_bytes = sum(options.tokens) * token_bytes
    block_bytes = options.block_tokens * token_bytes
    arena = arena_for([tokens * token_bytes for tokens in options.tokens])
    # A store has 64 segments at least, and a segment is four times the largest block at least.
    size = max(GIB, 4 * all_bytes, 64 * 8 * (block_bytes + 256 * KIB))
    terms: dict[str, Any] = {"deadline_ms": options.deadline_ms, "match_deadline_ms": options.match_deadline_ms, "mode": "on"}
    with (
        own_daemon(
            "--size", str(size), "--arena", str(arena), directory=options.directory, unix=options.transport == "shm"
        ) as daemon,
        halfstep.connect(daemon.shared_url if options.transport == "shm" else daemon.url, required=True, **terms) as client,
    ):
        store = PromptCache(client, model, block_tokens=options.block_tokens, durability="persist")
        stage = Stage(daemon, store)
        head |= {"device": device_name(stage.device), "direct": daemon.facts["backing"]["direct"], "path": client.path}
        head |= {"arena_bytes": arena, "block_bytes": store.block_bytes, "kv_bytes_per_token": token_bytes}
        prompts = []
        for tokens in options.tokens:
            say(f"{tokens:,} tokens: computed once and saved, in blocks of {format_bytes(store.block_bytes)}")
            prompts.append(prompt_of(store, tokens))
            save(store, prompts[-1])
        rounds: list[list[dict[str, Run]]] = [[] for _ in prompts]
        for number in range(options.rounds):
            # Drawn, so that no way has always the same one before it.
            order = random.Random(SEED + number).sample(ways, len(ways))
            for prompt, runs in zip(prompts, rounds, strict=True):
                runs.append({way: stage.run(way, prompt) for way in order})
                told = ", ".join(f"{way} {runs[-1][way].ms:,.0f}" for way in ways)
                say(f"round {number + 1} of {options.rounds}, {prompt.tokens:,} tokens, ms: {told}")
    return list(zip(prompts, rounds, strict=True))
