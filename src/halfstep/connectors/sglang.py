"""SGLang's HiCache through the tier: a storage backend that configuration alone loads.

    python -m sglang.launch_server … --enable-hierarchical-cache --hicache-storage-backend dynamic
      --hicache-storage-backend-extra-config '{"backend_name": "halfstep", "module_path": "halfstep.connectors.sglang",
        "class_name": "HalfstepHiCache", "interface_v1": 1, "url": "halfstep://flash-node"}'

SGLang keeps pages of tokens in a host pool; a page of one rank is one block here. With interface_v1 pages move straight between
the pool and the daemon: the pool's memory is registered once, how a page lies in it is read from the pointers of two pages, and
a batch names pages by number. Without it SGLang hands flat copies over, whose bytes are ordered in another way: other blocks.

SGLang's keys name the tokens, and nothing else. All that decides what the bytes of a page mean is in the layout: weights,
dtype, the pool's memory layout, page size, ranks, SGLang's version.

SGLang asks which pages of a request are there, and reads them when those of earlier requests are read: meanwhile the daemon
brings them into its memory.

Source: SGLang 0.5.23, sglang/srt/mem_cache/hicache_storage.py, managers/cache_controller.py. Thread: SGLang's query, read and
backup threads, at once; each call waits, and no longer than its deadline. The scheduler's thread calls nothing here after the
start.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import sglang
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
from sglang.srt.runtime_context import get_server_args

from halfstep.connectors.found_pages import FoundPages
from halfstep.connectors.pages import depths_of, lossy_pages
from halfstep.connectors.settings import refuse_unknown
from halfstep.connectors.versions import refuse_unknown_methods, warn_of_version
from halfstep.connectors.weights import folder_revision, hub_revision
from halfstep.errors import ConfigError
from halfstep.layout import PART_SIZES_MAX, Group, Layout
from halfstep.tier import (
    BACKGROUND,
    EXPECT_S,
    HOLD_MS,
    Counts,
    Notices,
    RowMemory,
    SharedCounts,
    Stride,
    Values,
    Waits,
    codecs_of,
    coding_of,
    connect,
    counted,
    policy_of,
    values_of,
)

if TYPE_CHECKING:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

# Of this module's meaning of a page; another one has other blocks.
INTERFACE = "hicache-1"
# Whose interface was read and run. Another one is tried, with a word about it; its blocks are kept apart.
VERSIONS = ("0.5.23",)
OPTIONS = {
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
}
# SGLang's own, of the same dictionary; and what begins so.
THEIRS = {"backend_name", "module_path", "class_name", "interface_v1", "tp_lcm_size"}
THEIRS_BEGIN = ("prefetch_", "hicache_")

log = logging.getLogger("halfstep.connectors.sglang")


class HalfstepHiCache(HiCacheStorage):
    """A Halfstep daemon as HiCache's storage. Its options are keys of --hicache-storage-backend-extra-config.

    url: the daemon's. weights_revision: see halfstep.connectors.vllm. ttl_s: of stored pages, 0 = the namespace's default.
    deadline_ms: of a batch of pages, 2000; match_deadline_ms: of a question, 100. hold_ms: for so long the daemon keeps what
    was found, until it is read; 0 = not. connections: data connections per shard. codec: "bfx" = pages are stored coded,
    exactly; "" (default) = as they are. policy: instead of a codec, one of
    halfstep.tier.KVLayout, or a file; a lossy one takes pools of K and V by their pointers (interface_v1), and what
    halfstep.connectors.pages tells apart. coding: whether pages are coded: "auto", "always" or "never"; see halfstep.connect.
    Errors: ConfigError, which ends SGLang's start: a wrong option, a pool that is not covered, an SGLang that
    asks for more.
    """

    def __new__(cls, *_: object, **__: object) -> Self:
        """Before Python says that the class is abstract, and not why."""
        check_version(sglang.__version__.split("+")[0])
        made: Self = super().__new__(cls)
        return made

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: dict[str, Any] | None = None) -> None:
        options = {name: value for name, value in (storage_config.extra_config or {}).items() if name in OPTIONS}
        given = set(storage_config.extra_config or {}) - THEIRS
        ours = [name for name in given if not name.startswith(THEIRS_BEGIN)]
        refuse_unknown(ours, OPTIONS, "--hicache-storage-backend-extra-config")
        self._config = storage_config
        self._fields = _fields(storage_config, options.pop("weights_revision", None))
        self._ttl_s = int(options.pop("ttl_s", 0))
        self._url = url = options.pop("url")
        self._hold_ms = options.pop("hold_ms", HOLD_MS)
        self.counts = SharedCounts()
        self._line = FoundPages(EXPECT_S)
        self._codec, self._policy = options.pop("codec", ""), options.pop("policy", "")
        self._lossy = self._policy != "" and policy_of(self._policy).lossy
        if self._lossy and not (storage_config.extra_config or {}).get("interface_v1"):
            raise ConfigError(
                f'halfstep: policy={self._policy!r}: is lossy, and flat pages say nothing of K and V; set "interface_v1": 1'
            )
        self._notices = Notices(f"halfstep at {url}")
        self._connection = connect(
            url, codecs=codecs_of(self._codec), policy=self._policy, **{"match_deadline_ms": 100} | options
        )
        self._memory: RowMemory | None = None
        self._page_tokens = 0
        self._dtype = ""  # of the pool's values
        # Of flat pages, until a pool is registered.
        self._pages = self._flat_pages = self._make_flat()
        self._pages.hold_options(self._hold_ms)  # refuses what is no time

    # ---- The pool ----

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Registers the pool's memory. Errors: ConfigError (its pages do not lie at equal distances)."""
        if len(getattr(mem_pool_host, "entries", ())) > 1:
            raise ConfigError(
                "halfstep: this model has side pools, which are not covered; take --hicache-storage-backend out for it"
            )
        super().register_mem_pool_host(mem_pool_host)
        self._page_tokens = int(mem_pool_host.page_size)
        self._fields |= {
            "page_tokens": self._page_tokens,
            "pool": type(mem_pool_host).__name__,
            "pool_layout": str(mem_pool_host.layout),
            "layers": int(mem_pool_host.layer_num),
            "dtype": str(mem_pool_host.dtype),
        }
        self._dtype = _values_dtype(mem_pool_host)
        self._flat_pages = self._make_flat()
        coding, pieces = self._coding(mem_pool_host, _pieces(mem_pool_host))
        sizes = _sizes([piece.bytes for piece in pieces])
        fields = self._fields | {"name": "sglang", "interface": INTERFACE} | coding
        self._pages = self._make(Layout(fields, [Group(len(pieces), sizes)]))
        buffers = mem_pool_host.kv_buffer
        tensors = list(buffers) if isinstance(buffers, (list, tuple)) else [buffers]
        self._memory = self._pages.memory([_flat(tensor) for tensor in tensors], pieces)
        row_bytes = self._memory.row_bytes
        used = self._used().layout.id.hex()
        log.info(
            "halfstep at %s: pages of %d bytes, layout %s, codec %s",
            self._url,
            row_bytes,
            used,
            self._codec or self._policy or "none",
        )

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """The pool of keys and values, once more. Errors: ConfigError (a side pool: state-space layers, windows, drafts)."""
        if str(host_pool_name) == "kv":
            return
        raise ConfigError(
            f"halfstep: SGLang's side pool {host_pool_name} is not covered: models with one kind of attention are; take "
            "--hicache-storage-backend out for this model"
        )

    # ---- Pages by number ----

    @counted
    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many are there from the first on."""
        names, values = _names(keys), self._used()
        with self._waited(self._connection.match_deadline_ms):
            found = values.match(names, stop_at_miss=True, hold_ms=self._hold_ms).prefix
        self.counts.add(matches=1, keys_asked=len(names), keys_hit=found)
        if self._memory is not None and values is self._pages and (behind := self._line.found(names[:found])):
            values.expect(behind, self._memory.row_bytes)
        return found

    @counted
    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Pages into the pool. False: its bytes are undefined, and SGLang stops there."""
        memory, rows = self._place(keys, host_indices)
        names = _names(keys)
        with self._line.reading(names), self._waited(self._connection.deadline_ms):
            loaded: list[bool] = self._pages.get(names, memory, rows=rows, stop_at_miss=True).ok.tolist()
        self.counts.add(loads=sum(loaded), loads_failed=len(loaded) - sum(loaded))
        return loaded

    @counted
    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Pages from the pool; what is there already is not sent."""
        if self._connection.mode == "off":
            return [True] * len(keys)  # SGLang warns of each page that is not stored, and nothing is to be done
        memory, rows = self._place(keys, host_indices)
        depths = depths_of(len(keys), getattr(extra_info, "prefix_keys", None))
        stored: list[bool] = self._pages.put(_names(keys), memory, rows=rows, depths=depths, priority=BACKGROUND).ok.tolist()
        self.counts.add(stores=sum(stored), stores_failed=len(stored) - sum(stored))
        return stored

    # ---- Flat pages: interface_v1 is 0 ----

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """One page into a tensor, which it returns; None where it did not come."""
        return self.batch_get([key], [target_location])[0]

    @counted
    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """Pages into tensors, which are returned; None in the place of each that did not come."""
        if not target_locations or any(one is None for one in target_locations):
            raise ConfigError("halfstep: batch_get without tensors to put pages into; set interface_v1 to 1")
        targets = [_flat(one) for one in target_locations]
        with self._waited(self._connection.deadline_ms):
            whole: list[bool] = self._flat_pages.get(_names(keys), targets).ok.tolist()
        self.counts.add(loads=sum(whole), loads_failed=len(whole) - sum(whole))
        return [one if ok else None for one, ok in zip(target_locations, whole, strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """One page."""
        return self.batch_set([key], [value])

    @counted
    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        """Pages; True: all are there, or the tier is switched off."""
        if self._connection.mode == "off":
            return True
        stored = self._flat_pages.put(_names(keys), [_flat(one) for one in values], priority=BACKGROUND).ok.tolist()
        self.counts.add(stores=sum(stored), stores_failed=len(stored) - sum(stored))
        return all(stored)

    def exists(self, key: str) -> bool:
        """Whether one page is there."""
        return self.batch_exists([key]) == 1

    # ---- The end ----

    def clear(self) -> bool:
        """Drops all pages of this layout, of every server that uses it."""
        if self._connection.mode != "off":
            self._used().clear()
        return True

    def close(self) -> None:
        """Nothing reads or writes the pool afterwards. Idempotent."""
        self._notices.end()
        log.info("halfstep at %s: %s", self._url, self.counts)
        if self._memory is not None:
            self._memory.close()
        self._connection.close()

    # ---- within ----

    @contextmanager
    def _waited(self, within_ms: float) -> Iterator[None]:
        """A request of SGLang's waits for what is done here, no longer than its deadline."""
        counts = Counts()
        waits = Waits(counts)
        wait = waits.begin(within_ms)
        try:
            yield
        finally:
            waits.end_now(wait)
            self.counts.add(overdue=counts.overdue, held_s_max=counts.held_s_max)

    def _make(self, layout: Layout) -> Values:
        return self._connection.values(layout, ttl_s=self._ttl_s, notices=self._notices)

    def _make_flat(self) -> Values:
        # One after the other K and V of all layers: there is no row that all of them repeat.
        # A lossy policy is of pages by their pointers, and none are flat then.
        coding = {} if self._lossy else coding_of(self._codec, [values_of(self._dtype)], self._policy)
        return self._make(Layout.opaque("sglang", **self._fields | {"interface": f"{INTERFACE}-flat"} | coding))

    def _coding(self, pool: Any, pieces: list[Stride]) -> tuple[dict[str, str], list[Stride]]:
        values = values_of(self._dtype, _row_bytes(pool))
        if not self._lossy:
            return coding_of(self._codec, [values], self._policy), pieces
        if self._config.is_mla_model:
            raise ConfigError(
                f"halfstep: policy={self._policy!r}: is lossy, and a row of MLA holds its rotary part, which never is; "
                "take 'exact'"
            )
        return lossy_pages(
            policy_of(self._policy),
            str(pool.layout),
            pieces,
            layers=int(pool.layer_num),
            page_tokens=self._page_tokens,
            values=values,
        )

    def _used(self) -> Values:
        return self._pages if (self._config.extra_config or {}).get("interface_v1") else self._flat_pages

    def _place(self, keys: Sequence[str], host_indices: Any) -> tuple[RowMemory, Any]:
        if self._memory is None:
            raise ConfigError("halfstep: no host pool is registered; SGLang does that when it attaches the backend")
        first = np.asarray(host_indices).reshape(len(keys), self._page_tokens)[:, 0].astype(np.int64)
        if (first % self._page_tokens).any():
            raise ConfigError(
                f"halfstep: a page begins at slot {first[(first % self._page_tokens) != 0][0]}, inside of another"
            )
        return self._memory, first // self._page_tokens


def check_version(version: str) -> None:
    """One word about an SGLang that this was not run with. Errors: ConfigError (it asks for more than this has)."""
    remedy = "--hicache-storage-backend out"
    refuse_unknown_methods(HalfstepHiCache, "HiCache storage backend", "SGLang", version, VERSIONS, remedy)
    warn_of_version("SGLang", version, VERSIONS)


def _fields(config: HiCacheStorageConfig, revision: str | None) -> dict[str, str | int]:
    try:
        arguments: Any = get_server_args()
    except ValueError:  # a pool without a server
        arguments = None
    # What is served under a name need not be the model of that name.
    model = config.model_name or "" if arguments is None else arguments.model_path
    known = revision or folder_revision(model)
    if known is None and arguments is not None:
        known = hub_revision(model, arguments.revision, arguments.download_dir)
    if known is None:
        raise ConfigError(
            f"halfstep: model {model!r} is no folder with weights and not in the cache of downloads, so nothing tells its "
            'weights from others; add "weights_revision" to --hicache-storage-backend-extra-config'
        )
    # The pool calls several formats of eight bits uint8; the arguments say which one it is.
    told = ("dtype", "kv_cache_dtype", "quantization", "json_model_override_args", "attention_backend", "device")
    more = {} if arguments is None else {name: str(value) for name, value in _told_by(arguments, told).items()}
    if scales := getattr(arguments, "quantization_param_path", None):  # of an fp8 cache
        more["scales"] = hashlib.sha256(Path(scales).read_bytes()).hexdigest() if Path(scales).is_file() else str(scales)
    # A page of MLA is the same on every rank, and SGLang stores that of rank 0 alone.
    ranks = ("pp_rank", "pp_size", "attn_cp_rank", "attn_cp_size", "dcp_rank", "dcp_size")
    heads = () if config.is_mla_model else ("tp_rank", "tp_size")
    fields: dict[str, str | int] = {
        "engine": "sglang",
        "engine_version": sglang.__version__.split("+")[0],  # its releases of one minor version differ as others' minor ones do
        "model": Path(model).name,
        "weights_revision": known,
        "mla": int(config.is_mla_model),
        "split_heads": int(config.should_split_heads),
    }
    numbers = {name: int(value) for name, value in _told_by(config, (*heads, *ranks)).items()}
    return fields | numbers | {"arguments": hashlib.sha256(json.dumps(more, sort_keys=True).encode()).hexdigest()[:16]}


def _told_by(source: Any, names: Sequence[str]) -> dict[str, Any]:
    """Attributes. Errors: ConfigError; what has another name now would be bound to nothing, and different blocks shared."""
    missing = [name for name in names if not hasattr(source, name)]
    if missing:
        raise ConfigError(
            f"SGLang {sglang.__version__}: {type(source).__name__} has no {', '.join(missing)}, which this Halfstep "
            f"needs; it was made for SGLang {' and '.join(VERSIONS)}: upgrade Halfstep, or take --hicache-storage-backend out"
        )
    return {name: getattr(source, name) for name in names}


def _names(keys: Sequence[str]) -> list[bytes]:
    return [key.encode() for key in keys]


def _bytes_of(tensor: Any) -> Any:
    import torch

    return torch.uint8 if tensor.device.type == "cpu" else None


def _flat(tensor: Any) -> Any:
    return tensor.reshape(-1).view(dtype=_bytes_of(tensor)).numpy()


def _pieces(pool: Any) -> list[Stride]:
    """How a page lies in the pool: the addresses of page 0, and how far page 1 is from it. Checked with the last one."""
    import torch

    page = int(pool.page_size)
    pages = int(pool.size) // page
    if pages < 2:
        raise ConfigError(f"halfstep: a host pool of {pages} pages; raise --hicache-size")
    asked = torch.cat([torch.arange(page) + number * page for number in (0, 1, pages - 1)])
    addresses, sizes = pool.get_page_buffer_meta(asked)
    count = len(addresses) // 3
    first, second, last = (addresses[at * count : (at + 1) * count] for at in range(3))
    pieces = []
    for number in range(count):
        stride = second[number] - first[number]
        if first[number] + stride * (pages - 1) != last[number] or len({sizes[number + at * count] for at in range(3)}) != 1:
            raise ConfigError(f"halfstep: pages of the host pool do not lie at equal distances (layout {pool.layout})")
        pieces.append(Stride(int(first[number]), int(stride), int(sizes[number])))
    return pieces


def _values_dtype(pool: Any) -> str:
    """What the pool's values are. It calls several formats of eight bits uint8; the arguments say which one it is."""
    named = str(pool.dtype).removeprefix("torch.")
    if named != "uint8":
        return named
    try:
        return str(get_server_args().kv_cache_dtype)
    except ValueError:  # a pool without a server
        return ""


def _row_bytes(pool: Any) -> int:
    """Of what follows itself within a piece of a page, in the pool's layout; 0: not known."""
    values = getattr(pool, "kv_cache_dim", 0) or getattr(pool, "head_num", 0) * getattr(pool, "head_dim", 0)
    if getattr(pool, "v_head_dim", None) not in (None, getattr(pool, "head_dim", None)):
        return 0  # K and V have rows of their own
    if pool.layout == "page_first":
        values *= int(pool.layer_num)
    elif pool.layout == "page_head":
        values = values // max(1, int(getattr(pool, "head_num", 1))) * int(pool.layer_num)
    elif pool.layout not in ("layer_first", "page_first_direct"):
        return 0
    return int(values) * int(pool.dtype.itemsize)


def _sizes(pieces: list[int]) -> tuple[int, ...]:
    """The shortest run of sizes that repeats."""
    for length in range(1, PART_SIZES_MAX + 1):
        if all(size == pieces[at % length] for at, size in enumerate(pieces)):
            return tuple(pieces[:length])
    raise ConfigError(f"halfstep: pieces of a page have sizes {pieces}: at most {PART_SIZES_MAX} that repeat are covered")
