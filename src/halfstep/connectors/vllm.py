"""vLLM's KV cache through the tier: a secondary tier below its CPU offloading, which configuration alone loads.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
      "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 10737418240,
        "secondary_tiers": [{"type": "HalfstepTier", "module_path": "halfstep.connectors.vllm",
                             "url": "halfstep://flash-node"}]}}'

vLLM copies blocks between the GPU and rows of host memory that its processes share; this tier moves rows to and from the
daemon. A row is a chunk: all layers of all workers of this node, opaque, and one block here. Lookups answer RETRY until the
match of the step has come back. A load that fails is a miss, and vLLM computes the chunk.

vLLM's keys name the tokens, LoRA, images and the cache salt, and nothing else. All that decides what the bytes of a row mean is
in the layout (`layout_of`), so another model, revision, dtype, KV layout, chunk size, parallelism or vLLM has other blocks.

Source: vLLM 0.32 and 0.33, vllm/v1/kv_offload/tiering/base.py. Thread: vLLM's scheduler; no call waits but drain_jobs.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Self

import vllm
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import LookupResult, Medium, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from halfstep.connectors.jobs import Jobs
from halfstep.connectors.processor import instruction_set
from halfstep.connectors.settings import refuse_unknown
from halfstep.connectors.shared_memory import Owned, sweep
from halfstep.connectors.versions import refuse_unknown_methods, warn_of_version
from halfstep.connectors.weights import folder_revision
from halfstep.errors import ConfigError
from halfstep.layout import OPAQUE_PART_BYTES, Group, Layout
from halfstep.tier import HOLD_MS, Coding, Counts, Lookups, Notices, codecs_of, coding_of, connect, counted, values_of

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import OffloadingSpec, OffloadKey, ReqContext, ScheduleEndContext
    from vllm.v1.kv_offload.config import OffloadingConfig
    from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector
    from vllm.v1.kv_offload.tiering.base import TransferJob

# Of this module's meaning of a row; another one has other blocks.
INTERFACE = "secondary-tier-1"
# Whose interface was read. Another one is tried, with a word about it; its blocks are kept apart.
VERSIONS = ("0.32", "0.33")

SETTINGS = (
    "url",
    "weights_revision",
    "ttl_s",
    "deadline_ms",
    "match_deadline_ms",
    "hold_ms",
    "connections",
    "codec",
    "policy",
    "coding",
)

log = logging.getLogger("halfstep.connectors.vllm")


class HalfstepTier(SecondaryTierManager):
    """A Halfstep daemon as a secondary tier. The keyword arguments are the keys of its entry in "secondary_tiers".

    url: the daemon's. weights_revision: what tells these weights from others of the same name; by default a digest of a local
    folder's files, and else it has to be said: vLLM tells a tier neither revision nor download folder. ttl_s: of stored
    blocks; 0 = the namespace's default. deadline_ms: of a load or store; match_deadline_ms: of a lookup. hold_ms: for so long
    the daemon keeps what a lookup found, until its load; 0 = not. connections: data connections per shard. codec: "bfx" =
    blocks are stored coded, exactly; "" = as they are. policy: instead of a codec, "exact" or "off"; a lossy one is refused,
    since a tier is not told which values are K and V. coding: whether blocks are coded: "auto", "always" or "never"; see
    halfstep.connect.
    Errors: ConfigError, which ends vLLM's start: a wrong argument, a vLLM that lacks what this needs. A daemon that is not
    there is none.
    """

    medium = Medium.STORAGE

    def __new__(cls, *_: object, **__: object) -> Self:
        """Before Python says that the class is abstract, and not why."""
        check_version(vllm.__version__)
        made: Self = super().__new__(cls)
        return made

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        *,
        url: str = "",
        weights_revision: str | None = None,
        ttl_s: int = 0,
        deadline_ms: float = 2000,
        match_deadline_ms: float = 50,
        hold_ms: int = HOLD_MS,
        connections: int = 1,
        codec: str = "",
        policy: str = "",
        coding: Coding = "auto",
        backpressure_detector: BackpressureDetector | None = None,
        **unknown: object,
    ) -> None:
        refuse_unknown({"url", *unknown} if url else unknown, SETTINGS, "its entry in secondary_tiers")
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        row_bytes = self.block_size_bytes
        self.layout = layout_of(offloading_spec.config, row_bytes, weights_revision, codec, policy)
        self._view = primary_kv_view.cast("B")
        self._connection = connect(
            url,
            deadline_ms=deadline_ms,
            match_deadline_ms=match_deadline_ms,
            connections=connections,
            codecs=codecs_of(codec),
            policy=policy,
            coding=coding,
        )
        # vLLM leaves its rows in /dev/shm when it is killed.
        if swept := sweep():
            log.info("halfstep: removed the shared memory of %d engines that died: %s", len(swept), ", ".join(swept))
        self._owned = Owned(f"vllm_offload_{offloading_spec.config.engine_id}.mmap")
        self._name = f"halfstep tier at {url}"
        values = self._connection.values(self.layout, ttl_s=ttl_s, notices=Notices(self._name))
        self._rows = values.rows(self._view, row_bytes)
        self._counts = Counts()
        self._lookups = Lookups(values, self._counts, hold_ms=hold_ms)
        self._jobs = Jobs(values, self._rows, self._counts)
        coded = codec or policy or "none"
        log.info("%s: rows of %d bytes, layout %s, codec %s", self._name, row_bytes, self.layout.id.hex(), coded)

    @property
    def counts(self) -> Counts:
        """What it did, and the CPU time that its hooks took of the scheduler's thread."""
        return self._counts

    # ---- Lookups: each step asks for many keys, and for the same ones again until they are known ----

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """HIT, MISS, or RETRY until the daemon has answered: after match_deadline_ms at the latest."""
        # Not @counted: it is called for each key and looks into a dictionary; the clock would take several times as long.
        there = self._lookups.ask(key, req_context.req_id)
        return LookupResult.RETRY if there is None else LookupResult.HIT if there else LookupResult.MISS

    @counted
    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Sends the lookups of this step, all in one."""
        self._lookups.flush()

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Chunk by chunk, as vLLM fills them."""
        return RequestOffloadingContext()

    @counted
    def on_request_finished(self, req_context: ReqContext) -> None:
        """The next request asks anew."""
        self._lookups.forget(req_context.req_id)

    # ---- Jobs ----

    @counted
    def submit_store(self, job_metadata: TransferJob) -> None:
        """Rows to the daemon. What it has already is not sent."""
        self._jobs.store(job_metadata.job_id, job_metadata.keys, job_metadata.chunk_ids)

    @counted
    def submit_load(self, job_metadata: TransferJob) -> None:
        """Blocks into rows. What does not come is computed by vLLM."""
        self._jobs.load(job_metadata.job_id, job_metadata.keys, job_metadata.chunk_ids)

    @counted
    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Those that are over. vLLM asks once a step; what has come back is looked at here."""
        self._lookups.look()
        finished = self._jobs.finished()
        for over in finished:
            if over.load and not over.whole:
                self._lookups.lost(set(over.keys) - set(over.good))
        return [
            JobResult(
                over.number,
                over.whole,
                successful_keys=None if over.whole or not over.good else tuple(over.good),
                transfer_time=over.seconds,
                transfer_bytes=over.bytes,
            )
            for over in finished
        ]

    def has_pending_work(self) -> bool:
        """While it is true, vLLM goes on to ask for what is over."""
        return self._jobs.busy

    def drain_jobs(self) -> None:
        """Waits for all jobs: until their deadline."""
        self._jobs.drain()

    def shutdown(self) -> None:
        """Nothing reads or writes vLLM's memory afterwards, and nothing keeps it mapped. Idempotent."""
        log.info("%s: %s", self._name, self._counts)
        self._jobs.close()
        self._rows.close()
        self._connection.close()
        self._view.release()
        self._owned.close()


def check_version(version: str) -> None:
    """One word about a vLLM that this was not run with. Errors: ConfigError (it lacks what a secondary tier is made of)."""
    refuse_unknown_methods(HalfstepTier, "secondary tier", "vLLM", version, VERSIONS, "the tier out of secondary_tiers")
    warn_of_version("vLLM", version, VERSIONS)


def layout_of(
    config: OffloadingConfig, row_bytes: int, weights_revision: str | None, codec: str = "", policy: str = ""
) -> Layout:
    """The layout of rows of `row_bytes`: all that decides what their bytes mean.

    codec, policy: see HalfstepTier. A codec is told what the values are where all layers have the same; how a layer orders them
    a tier is not told.

    Rows of other ranks, or of as many ranks in another order, are not the same, whatever vLLM's own `is_parallelism_agnostic`
    says: rows written with one worker and read by two gave wrong tokens.
    """
    revision = weights_revision or folder_revision(config.model.name)
    if revision is None:
        raise ConfigError(
            f"halfstep: model {config.model.name!r}: is no folder with weights, and vLLM does not say which revision it "
            'downloaded; add "weights_revision" to the tier: a commit, a date, any text that changes with the weights'
        )
    parallel, cache = config.parallel, config.cache
    groups = [[group.group_id, group.tokens_per_block, list(group.layer_names)] for group in config.groups]
    values = values_of(config.model.dtype) if len(groups) == 1 else None
    return Layout(
        coding_of(codec, [values], policy)
        | {
            "engine": "vllm",
            "engine_version": ".".join(vllm.__version__.split(".")[:2]),
            "interface": INTERFACE,
            "model": Path(config.model.name).name,
            "weights_revision": revision,
            "dtype": config.model.dtype,
            "platform": current_platform.device_name,
            "cpu": instruction_set() if current_platform.is_cpu() else "",
            "kv_cache_layout": config.kv_cache_layout or "",
            "canonical_layout": int(config.canonical_layout),
            "replicated_layout": int(config.replicated_layout),
            "hash_tokens": cache.tokens_per_hash,
            "chunk_blocks": cache.blocks_per_chunk,
            "groups": hashlib.sha256(json.dumps(groups).encode()).hexdigest()[:16],
            "worker_bytes": config.worker_kv_bytes_per_block,
            "row_bytes": row_bytes,
            "rank": parallel.rank,
            "ranks": parallel.world_size,
            "tp": parallel.tp_size,
            "pp": parallel.pp_size,
            "pcp": parallel.pcp_size,
            "dcp": parallel.dcp_size,
        },
        [Group(0, (OPAQUE_PART_BYTES,))],
    )
