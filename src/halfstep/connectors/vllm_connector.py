"""vLLM's KV cache straight to the daemon: a KV connector without a host tier, which configuration alone loads.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "HalfstepConnector", "kv_role": "kv_both",
      "kv_connector_module_path": "halfstep.connectors.vllm_connector",
      "kv_connector_extra_config": {"url": "halfstep://flash-node"}}'

vLLM makes it twice: beside the scheduler, which asks what is there, and in each worker, which moves blocks between the paged
memory of its layers and heads and the daemon. Nothing is copied on the way. Loads are asynchronous and bring the first layers
first; stores begin as soon as the layers of a cell are computed, and nobody waits for them.

Keys are vLLM's block hashes: tokens, LoRA, images and the cache salt. All that decides what the bytes mean besides is in the
layout (`layout_of`). What a head has of a block is opaque: attention backends order it in ways of their own.

Source: vLLM 0.32 and 0.33, vllm/distributed/kv_transfer/kv_connector/v1/base.py. Thread: the scheduler's, or the worker's; no
call waits but handle_preemptions, and shutdown.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, UniformTypeKVCacheSpecs
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from halfstep.connectors.mover import Mover
from halfstep.connectors.paged import Planner
from halfstep.connectors.positions import positions_of
from halfstep.connectors.processor import instruction_set
from halfstep.connectors.settings import refuse_unknown
from halfstep.connectors.steps import Done, Step
from halfstep.connectors.versions import refuse_unknown_methods, warn_of_version
from halfstep.connectors.weights import folder_revision, hub_revision
from halfstep.errors import ConfigError
from halfstep.layout import PARTS_MAX
from halfstep.tier import (
    HOLD_MS,
    Coding,
    Counts,
    Grid,
    Kind,
    KVLayout,
    Notices,
    codecs_of,
    connect,
    counted,
    policy_of,
    refuse_two_words,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

# Of this module's meaning of a block; another one has other blocks.
INTERFACE = "kv-connector-1"
# Whose interface was read. Another one is tried, with a word about it; its blocks are kept apart.
VERSIONS = ("0.32", "0.33")
# A block is cut into layer cells where each has as much: what is smaller costs the flash more than an early start gains.
LAYER_CELL_BYTES = 256 * 1024
LAYER_CELLS_MAX = 8
# Stores may read a quarter of vLLM's blocks at once, and so many where those are few.
READING_SHARE, READING_BLOCKS_MIN = 4, 64
TIER = "the secondary tier does it, see docs/engines/vllm.md"

Plan = Literal["auto", "always"]

log = logging.getLogger("halfstep.connectors.vllm_connector")


@dataclass
class HalfstepMetadata(KVConnectorMetadata):
    """From the scheduler to the workers, each step."""

    step: Step = field(default_factory=Step)


@dataclass
class HalfstepProgress(KVConnectorWorkerMetadata):
    """From a worker to the scheduler, where there is something to say."""

    done: Done = field(default_factory=Done)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """With what another worker said of the same step."""
        assert isinstance(other, HalfstepProgress)
        self.done.add(other.done)
        return self


@dataclass(frozen=True)
class Options:
    """Keys of "kv_connector_extra_config".

    url: the daemon's. weights_revision: what tells these weights from others of the same name; by default a digest of a local
    folder's files, or the commit of a download from the hub. ttl_s: of stored blocks, 0 = the namespace's default.
    deadline_ms: of a store, and at least of a load, which may take as long as computing its tokens would; match_deadline_ms:
    of a lookup. hold_ms: for so long the daemon keeps what a lookup found, until its load; 0 = not. connections: data
    connections per shard. layer_cells: into how many pieces a block is cut along the layers, each stored as soon as it is
    computed; 0: as its size suggests. codec: "bfx" = blocks are stored coded, exactly; "" = as they are. policy:
    instead of a codec, "exact" or "off"; a lossy one is refused, since K and V of a head are one part here. coding: whether
    blocks are coded: "auto", "always" or "never"; see halfstep.connect. plan: "auto" =
    no more is loaded than ends before computing it would, once vLLM was seen to compute; "always" = all that is there.
    """

    url: str
    weights_revision: str | None = None
    ttl_s: int = 0
    deadline_ms: float = 2000
    match_deadline_ms: float = 50
    hold_ms: int = HOLD_MS
    connections: int = 1
    layer_cells: int = 0
    codec: str = ""
    policy: str = ""
    coding: Coding = "auto"
    plan: Plan = "always"


class HalfstepConnector(KVConnectorBase_V1):
    """A Halfstep daemon as a KV connector. See Options, and halfstep.connectors.paged for its two halves.

    It does not derive from SupportsHMA: vLLM then gives layers with a window blocks for all of their tokens, and one group of
    layers is what is covered. Errors: ConfigError, which ends vLLM's start: a wrong option, a model or a device that is not
    covered, a vLLM that lacks what this needs. A daemon that is not there is none.
    """

    _cache_hit_source = CacheHitSource.DISK

    def __new__(cls, *_: object, **__: object) -> Self:
        """Before Python says that the class is abstract, and not why."""
        check_version(vllm.__version__)
        made: Self = super().__new__(cls)
        return made

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        options = options_of(vllm_config.kv_transfer_config.kv_connector_extra_config)
        refuse_what_is_not_covered(vllm_config, kv_cache_config)
        # vLLM's default is to fail the request; what a cache has lost is computed.
        vllm_config.kv_transfer_config.kv_load_failure_policy = "recompute"
        self.layout = layout_of(vllm_config, kv_cache_config, options)
        self._connection = connect(
            options.url,
            deadline_ms=options.deadline_ms,
            match_deadline_ms=options.match_deadline_ms,
            connections=options.connections,
            codecs=codecs_of(options.codec),
            policy=options.policy,
            coding=options.coding,
        )
        roles, on = vllm_config.kv_transfer_config, self._connection.mode != "off"
        self._loading, self._storing = on and roles.is_kv_consumer, on and roles.is_kv_producer
        self._name = f"halfstep connector at {options.url}" + (", worker" if role is KVConnectorRole.WORKER else "")
        notices = Notices(self._name) if role is KVConnectorRole.SCHEDULER else None
        # Workers measure, and the scheduler decides.
        plan: Plan = options.plan if role is KVConnectorRole.SCHEDULER else "always"
        # And each connects for itself: all must know the same layout, whatever a namespace's default is.
        self._tier = tier = self._connection.tier(
            self.layout, ttl_s=options.ttl_s, notices=notices, plan=plan, follow_default=False
        )
        self._planner: Planner | None = None
        self._mover: Mover | None = None
        # With which layer so many cells are complete; whether this step has stores.
        self._cell_ends: dict[str, int] = {}
        self._stores = False
        tp = vllm_config.parallel_config.tensor_parallel_size
        if role is KVConnectorRole.SCHEDULER:
            block_tokens = self.layout.block_tokens
            self._planner = Planner(
                tier,
                workers=tp,
                hashes=block_tokens // (getattr(kv_cache_config, "hash_block_size", None) or block_tokens),
                reading_max=max(READING_BLOCKS_MIN, kv_cache_config.num_blocks // READING_SHARE),
                hold_ms=options.hold_ms if self._loading else 0,
                stores=self._storing,
            )
            log.info(
                "%s: blocks of %d bytes, layout %s, codec %s",
                self._name,
                self.layout.block_bytes,
                self.layout.layout.id.hex(),
                options.codec or options.policy or "none",
            )
        else:
            # Consecutive ranks have the same heads where there are fewer cells than ranks; the first of them writes.
            replicas = tp // self.layout.grid.heads
            self._shard, replica = divmod(_tp_rank(), replicas)
            self._mover = Mover(tier, writes=replica == 0, tells=options.plan == "auto")

    @property
    def counts(self) -> Counts:
        """What this half of it did, and the CPU time that its hooks took of vLLM's thread."""
        half = self._planner or self._mover
        assert half is not None
        return half.counts

    @property
    def plans(self) -> dict[str, int]:
        """Decisions by reason, and how often the circuit has opened; in the scheduler, with plan="auto"."""
        return {} if self._tier.planning is None else self._tier.planning.planner.counts()

    @property
    def requires_kv_delivery(self) -> bool:
        """No: what is not stored is computed by whoever needs it."""
        return False

    # ---- Scheduler ----

    @counted
    def on_new_request(self, request: Request) -> None:
        """It waits from now on; while others go before it, what it will need is looked for and brought near."""
        if self._loading and not getattr(request, "skip_reading_prefix_cache", False):
            self._scheduler.arrived(request.request_id, request, (request.num_tokens - 1) // self.layout.block_tokens)

    @counted
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """(tokens, True), (0, False), or (None, False) until the daemon has answered: after match_deadline_ms at the latest."""
        if not self._loading or getattr(request, "skip_reading_prefix_cache", False):
            return 0, False
        tokens = self.layout.block_tokens
        # At least one token is computed: the next one comes of it.
        last = (request.num_tokens - 1) // tokens
        planner = self._scheduler
        found = planner.ask(
            request.request_id, request.num_preemptions, request, num_computed_tokens // tokens, last, request.num_tokens
        )
        return (None, False) if found is None else (found * tokens, found > 0)

    @counted
    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """The request has blocks: a load goes out with this step."""
        if self._loading or self._storing:
            count = num_external_tokens // self.layout.block_tokens
            self._scheduler.admit(request.request_id, request, blocks.get_block_ids()[0] if count else (), count)

    @counted
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """Loads of requests that wait, and stores of blocks that this step fills."""
        scheduled = scheduler_output.num_scheduled_tokens if self._loading or self._storing else {}
        return HalfstepMetadata(self._scheduler.step(scheduled, scheduler_output.preempted_req_ids or (), self._blocks_of))

    @counted
    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """What workers have ended."""
        said = connector_output.kv_connector_worker_meta
        if isinstance(said, HalfstepProgress):
            self._scheduler.ended(said.done)
        if connector_output.finished_sending:
            self._scheduler.freed(connector_output.finished_sending)

    @counted
    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """True while a store reads its blocks: get_finished names it once they are free."""
        return self._scheduler.finished(request.request_id), None

    def has_pending_block_frees(self) -> bool:
        """True: vLLM waits a moment for those before it preempts a request."""
        return self._scheduler.keeps_blocks

    def reset_cache(self) -> bool | None:
        """Nothing that was stored before is found by this engine: vLLM asks for it when weights have changed.

        Blocks on flash stay, for engines that have not: `halfstep clear` deletes those of a layout.
        """
        if self._planner is not None:
            self._planner.forget()
        return True

    # ---- Workers ----

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Where the blocks of each layer are. Errors: ConfigError (they are on a device, or are cut into smaller ones)."""
        names = [name for name, _ in _layers(self._kv_cache_config)]
        kinds = self.layout.kinds
        places: dict[str, list[list[Any]]] = {kind.name: [] for kind in kinds}
        for number, name in enumerate(names):
            kind = next(kind for kind in kinds if number in kind.layers)
            places[kind.name].append([_plane(name, kv_caches[name], self._kv_cache_config.num_blocks)])
        split = max(kind.heads for kind in kinds) // self.layout.grid.heads
        heads = range(self._shard * split, (self._shard + 1) * split)
        count = self.layout.grid.layers
        each = len(names) // count
        cells = [range(at, at + each) for at in range(0, len(names), each)] if count > 1 else [None]
        self._cell_ends = {name: (number + 1) * count // len(names) for number, name in enumerate(names)}
        self._worker.attach(self._tier.memory(places, heads=heads), cells)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """The step begins."""
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, HalfstepMetadata)
        self._worker.begin(connector_metadata.step)
        self._stores = bool(connector_metadata.step.stores)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Blocks that are taken from requests are read by no store afterwards."""
        assert isinstance(kv_connector_metadata, HalfstepMetadata)
        if kv_connector_metadata.step.preempted:
            self._worker.fence(kv_connector_metadata.step.preempted)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begins the loads of the step."""
        metadata = self._connector_metadata
        if isinstance(metadata, HalfstepMetadata) and metadata.step.loads:
            self._load()

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: requests run once all of their layers are there.

        Only when a load is over is it known which blocks are lost. A step that ran before would compute from a lost block, and
        store what it computed. vLLM takes back that step alone; with asynchronous scheduling, its default, the next one is
        under way by then, and its token would be said (0.32, Scheduler._update_requests_with_invalid_blocks).
        """

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Begins the stores of a cell with its last layer."""
        if self._stores and (cells := self._cell_ends.get(layer_name, 0)):
            self._store(cells)

    def wait_for_save(self) -> None:
        """Begins the stores that no layer has begun, and waits for none."""
        self._worker.end()
        if self._stores:
            self._store(None)
            self._stores = False

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Requests whose kept blocks are free, and requests whose load is over."""
        if self._worker.idle:
            return None, None
        return self._ended()

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that vLLM has to compute."""
        return self._worker.bad()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """What has ended."""
        done = self._worker.done()
        return None if done is None else HalfstepProgress(done)

    @counted
    def _load(self) -> None:
        self._worker.load()

    @counted
    def _store(self, cells: int | None) -> None:
        self._worker.store(cells)

    @counted
    def _ended(self) -> tuple[set[str] | None, set[str] | None]:
        free, loaded = self._worker.finished()
        return free or None, loaded or None

    # ---- Both ----

    def shutdown(self) -> None:
        """Nothing reads or writes vLLM's memory afterwards. Idempotent."""
        log.info("%s: %s", self._name, self.counts)
        if plans := {why: count for why, count in self.plans.items() if count}:
            log.info("%s: planned %s", self._name, plans)
        if self._mover is not None:
            self._mover.close()
        self._tier.close()
        self._connection.close()

    @property
    def _scheduler(self) -> Planner:
        assert self._planner is not None, "a hook of the scheduler, in a worker"
        return self._planner

    @property
    def _worker(self) -> Mover:
        assert self._mover is not None, "a hook of a worker, in the scheduler"
        return self._mover

    def _blocks_of(self, request_id: str) -> Sequence[int]:
        assert self._kv_cache_manager is not None
        blocks: Sequence[int] = self._kv_cache_manager.get_block_ids(request_id)[0]
        return blocks


def check_version(version: str) -> None:
    """One word about a vLLM that this was not run with. Errors: ConfigError (it lacks what a connector is made of)."""
    refuse_unknown_methods(HalfstepConnector, "KV connector", "vLLM", version, VERSIONS, "--kv-transfer-config out")
    warn_of_version("vLLM", version, VERSIONS)


def options_of(given: dict[str, Any]) -> Options:
    """Errors: ConfigError (unknown, or missing; no codec, no policy)."""
    refuse_unknown(given, Options.__dataclass_fields__, "kv_connector_extra_config")
    options = Options(**given)
    codecs_of(options.codec)
    refuse_two_words(options.codec, options.policy)
    if options.policy != "" and policy_of(options.policy).lossy:
        raise ConfigError(
            f"halfstep: policy={options.policy!r}: is lossy, and how K and V lie in a head's entry is the attention "
            "backend's own, which no connector is told; take 'exact' or 'off'"
        )
    return options


def refuse_what_is_not_covered(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
    """Errors: ConfigError, each with what to do instead."""
    device = current_platform.device_type
    if device != "cpu":
        raise ConfigError(f"halfstep: the KV cache is on {device}, and this connector reaches host memory alone; {TIER}")
    parallel = vllm_config.parallel_config
    for name, size in (
        ("pipeline_parallel_size", parallel.pipeline_parallel_size),
        ("decode_context_parallel_size", parallel.decode_context_parallel_size),
        ("prefill_context_parallel_size", getattr(parallel, "prefill_context_parallel_size", 1)),
    ):
        if size > 1:
            raise ConfigError(f"halfstep: {name}={size}: not covered by this connector; use tensor parallelism, or {TIER}")
    if vllm_config.speculative_config is not None:
        raise ConfigError(
            f"halfstep: speculative decoding: a draft may be refused after its block is full, and is not covered here; {TIER}"
        )
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        raise ConfigError(
            "halfstep: calculate_kv_scales: each process scales its cache in another way, and blocks of one are wrong in "
            "another; load the scales from the checkpoint, or take --kv-transfer-config out"
        )
    if len(kv_cache_config.kv_cache_groups) != 1:
        kinds = ", ".join(type(group.kv_cache_spec).__name__ for group in kv_cache_config.kv_cache_groups)
        raise ConfigError(
            f"halfstep: this model's layers are in several groups ({kinds}), and this connector covers one; for layers with "
            f"a window add --disable-hybrid-kv-cache-manager; for recurrent ones {TIER}"
        )
    for name, spec in _layers(kv_cache_config):
        if type(spec) not in (FullAttentionSpec, MLAAttentionSpec):
            raise ConfigError(
                f"halfstep: layer {name} is a {type(spec).__name__}, and this connector covers full attention and MLA; "
                f"for layers with a window add --disable-hybrid-kv-cache-manager; else {TIER}"
            )
        if spec.tokens_per_state != 1 or spec.kv_quant_mode.is_per_token_head:
            raise ConfigError(
                f"halfstep: layer {name} keeps {spec.tokens_per_state} tokens in an entry, quantized as "
                f"{spec.kv_quant_mode.name}: not covered by this connector; {TIER}"
            )


def layout_of(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, options: Options) -> KVLayout:
    """All that decides what the bytes of a block mean, for the scheduler and each worker alike."""
    model, parallel, cache = vllm_config.model_config, vllm_config.parallel_config, vllm_config.cache_config
    revision = (
        options.weights_revision
        or folder_revision(model.model)
        or hub_revision(model.model, model.revision, vllm_config.load_config.download_dir)
    )
    if revision is None:
        raise ConfigError(
            f"halfstep: model {model.model!r}: is no folder with weights, and no download of it was found; add "
            '"weights_revision" to kv_connector_extra_config: a commit, a date, any text that changes with the weights'
        )
    layers = _layers(kv_cache_config)
    tp = parallel.tensor_parallel_size
    shards = 1
    found: dict[tuple[str, int, int], list[int]] = {}
    dtypes: dict[tuple[str, int, int], str] = {}
    for number, (_, spec) in enumerate(layers):
        latent = isinstance(spec, MLAAttentionSpec)
        own = 1 if latent else getattr(spec, "max_tp_shards", None) or min(tp, model.get_total_num_kv_heads())
        shards = max(shards, min(tp, own))
        heads = spec.num_heads * min(tp, own)
        shape = ("latent" if latent else "full", heads, spec.state_content_size_bytes)
        found.setdefault(shape, []).append(number)
        # torch knows several formats of eight bits as uint8; the cache's own name tells them apart.
        named = str(spec.dtype).removeprefix("torch.")
        dtypes.setdefault(shape, str(cache.cache_dtype) if named == "uint8" else named)
    if len({heads for _, heads, _ in found if heads > 1}) > 1:
        raise ConfigError(f"halfstep: layers have different numbers of KV heads: not covered by this connector; {TIER}")
    kinds = tuple(
        Kind(f"{name}-{content}", tuple(numbers), heads, (content,), dtype=dtypes[name, heads, content])
        for (name, heads, content), numbers in found.items()
    )
    block_tokens = layers[0][1].block_size
    attention = getattr(getattr(vllm_config, "attention_config", None), "backend", None)
    overrides = json.dumps(model.hf_overrides, sort_keys=True, default=str) if model.hf_overrides else ""
    positions = positions_of(model)
    return KVLayout(
        model=Path(model.model).name,
        weights_revision=revision,
        dtype=str(layers[0][1].dtype).removeprefix("torch."),
        block_tokens=block_tokens,
        kinds=kinds,
        grid=Grid(heads=shards, layers=_layer_cells(options.layer_cells, kinds, shards, block_tokens)),
        more={
            "engine": "vllm",
            "engine_version": ".".join(vllm.__version__.split(".")[:2]),
            "interface": INTERFACE,
            "platform": current_platform.device_name,
            "cpu": instruction_set(),
            "kv_cache_layout": getattr(kv_cache_config, "kv_cache_layout", None) or "",
            "attention_backend": "" if attention is None else getattr(attention, "name", str(attention)),
            "cache_dtype": str(cache.cache_dtype),
            "model_dtype": str(model.dtype).removeprefix("torch."),
            "quantization": str(model.quantization or ""),
            "overrides": hashlib.sha256(overrides.encode()).hexdigest()[:16] if overrides else "",
            "hash_tokens": getattr(kv_cache_config, "hash_block_size", None) or block_tokens,
            "tp": tp,
            "pp": parallel.pipeline_parallel_size,
            "dcp": parallel.decode_context_parallel_size,
            **({"positions": positions} if positions else {}),
        },
        codec=options.codec,
        policy=options.policy,
    )


def _layers(kv_cache_config: KVCacheConfig) -> list[tuple[str, AttentionSpec]]:
    """Names of the one group's layers in the model's order, each with what its cache is."""
    group = kv_cache_config.kv_cache_groups[0]
    spec = group.kv_cache_spec
    each = spec.kv_cache_specs if isinstance(spec, UniformTypeKVCacheSpecs) else dict.fromkeys(group.layer_names, spec)
    return sorted(each.items(), key=lambda layer: ([int(number) for number in re.findall(r"\d+", layer[0])], layer[0]))


def _layer_cells(wanted: int, kinds: Sequence[Kind], shards: int, block_tokens: int) -> int:
    """Into how many cells a block is cut along its layers."""
    if len(kinds) > 1:
        if wanted > 1:
            raise ConfigError(f"halfstep: layer_cells={wanted}: this model's layers are of {len(kinds)} kinds; leave it out")
        return 1
    (kind,) = kinds
    heads = max(1, kind.heads // shards)
    layers = len(kind.layers)
    if wanted:
        return wanted
    cells = [count for count in range(1, layers + 1) if layers % count == 0 and heads * layers // count <= PARTS_MAX]
    block_bytes = heads * layers * block_tokens * kind.head_bytes
    large = [count for count in cells if count <= LAYER_CELLS_MAX and block_bytes // count >= LAYER_CELL_BYTES]
    return max(large, default=min(cells, default=1))


def _plane(name: str, tensor: torch.Tensor, blocks: int) -> torch.Tensor:
    """[blocks, heads, tokens, values] of a layer."""
    if tensor.device.type != "cpu":
        raise ConfigError(f"halfstep: {name} is on {tensor.device}, and this connector reaches host memory alone; {TIER}")
    if tensor.dim() == 3:
        tensor = tensor.unsqueeze(1)
    if tensor.shape[0] != blocks:
        raise ConfigError(
            f"halfstep: {name}: the attention backend cuts each of {blocks} blocks, {tensor.shape[0]} in all; "
            f"add --block-size {tensor.shape[2]}"
        )
    return tensor


def _tp_rank() -> int:
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

    return int(get_tensor_model_parallel_rank())
