"""HiCache's storage contract, as SGLang's cache controller calls it, without SGLang: its modules are stand-ins here.

What its pools really look like, and that a whole engine restores its pages, `make connectors` runs.
"""

from __future__ import annotations

import abc
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.integration.commands import PATIENT
from tests.integration.conftest import Daemon

from halfstep.errors import ConfigError

torch = pytest.importorskip("torch", reason="no torch here; `scripts/setup.sh models` installs it")
pytestmark = pytest.mark.integration

PAGE, LAYERS, PAGES, WIDTH = 16, 4, 32, 64


class Storage(abc.ABC):
    """SGLang's base class, by its abstract methods."""

    @abc.abstractmethod
    def get(self, key: str) -> Any: ...
    @abc.abstractmethod
    def batch_get(self, keys: list[str]) -> Any: ...
    @abc.abstractmethod
    def set(self, key: str) -> Any: ...
    @abc.abstractmethod
    def batch_set(self, keys: list[str]) -> Any: ...
    @abc.abstractmethod
    def exists(self, key: str) -> bool: ...

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host


class Pool:
    """A host pool of keys and values, a page after the other in each layer."""

    def __init__(self) -> None:
        self.kv_buffer = torch.zeros((2, LAYERS, PAGES * PAGE, WIDTH), dtype=torch.bfloat16)
        self.page_size, self.size, self.layer_num = PAGE, PAGES * PAGE, LAYERS
        self.layout, self.dtype = "layer_first", torch.bfloat16
        self.head_num, self.head_dim = 1, WIDTH

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        """Pointers and lengths, page by page."""
        bytes_each = PAGE * WIDTH * 2
        places = [
            self.kv_buffer[kv, layer, int(first)].data_ptr()
            for first in indices[::PAGE]
            for layer in range(LAYERS)
            for kv in range(2)
        ]
        return places, [bytes_each] * len(places)

    def slots(self, *pages: int) -> Any:
        """Of these pages."""
        return torch.cat([torch.arange(PAGE) + page * PAGE for page in pages])

    def page(self, number: int) -> Any:
        """Its values."""
        return self.kv_buffer[:, :, number * PAGE : (number + 1) * PAGE]


def no_server() -> Any:
    raise ValueError("a pool without a server")


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The connector's module, over stand-ins of the modules that it imports."""
    for name, content in {
        "sglang": {"__version__": "0.5.23"},
        "sglang.srt": {},
        "sglang.srt.mem_cache": {},
        "sglang.srt.mem_cache.hicache_storage": {"HiCacheStorage": Storage},
        "sglang.srt.runtime_context": {"get_server_args": no_server},
    }.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "halfstep.connectors.sglang", raising=False)
    import halfstep.connectors.sglang as ours

    yield ours
    sys.modules.pop("halfstep.connectors.sglang", None)


@pytest.fixture
def backend(sglang: Any, daemon: Daemon, request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """backend(**options): one with a pool of its own."""
    made: list[Any] = []

    def make(**options: Any) -> Any:
        extra = {"interface_v1": 1, "url": daemon.unix_url, "weights_revision": request.node.name} | PATIENT | options
        ranks = dict.fromkeys(("tp_rank", "pp_rank", "attn_cp_rank", "dcp_rank"), 0)
        sizes = dict.fromkeys(("tp_size", "pp_size", "attn_cp_size", "dcp_size"), 1)
        config = types.SimpleNamespace(
            extra_config=extra, model_name="tiny", is_mla_model=False, should_split_heads=False, **ranks, **sizes
        )
        one = sglang.HalfstepHiCache(config)
        one.register_mem_pool_host(Pool())
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


def names(count: int, of: str = "a") -> list[str]:
    return [f"{of}{number:063x}" for number in range(count)]


def stored(one: Any, keys: list[str]) -> None:
    """Random pages under these keys."""
    pool = one.mem_pool_host
    pool.kv_buffer.normal_(generator=torch.Generator().manual_seed(len(keys)))
    assert one.batch_set_v1(keys, pool.slots(*range(len(keys)))) == [True] * len(keys)


def test_pages_come_back_and_each_call_is_counted(backend: Callable[..., Any]) -> None:
    cold, warm = backend(), backend()
    stored(cold, names(3))
    assert warm.batch_exists(names(5)) == 3
    assert warm.batch_get_v1(names(4), warm.mem_pool_host.slots(7, 2, 9, 4)) == [True, True, True, False]
    for page, place in enumerate((7, 2, 9)):
        assert torch.equal(warm.mem_pool_host.page(place), cold.mem_pool_host.page(page))
    counts = warm.counts
    assert (counts.matches, counts.keys_asked, counts.keys_hit, counts.loads, counts.loads_failed) == (1, 5, 3, 3, 1)
    assert (cold.counts.stores, cold.counts.stores_failed) == (3, 0)
    assert counts.overdue == 0
    assert counts.held_s_max > 0


def test_pages_that_were_found_behind_others_are_expected(backend: Callable[..., Any]) -> None:
    cold, warm = backend(), backend()
    for of in "abc":
        stored(cold, names(4, of))
    assert warm.batch_exists(names(4, "a")) == 4
    assert warm._pages.ahead is None, "they are the next to be read"
    assert warm.batch_exists(names(4, "b")) == 4
    assert warm.batch_exists(names(4, "c")) == 4
    for at, of in enumerate("abc"):
        places = warm.mem_pool_host.slots(*range(4 * at, 4 * at + 4))
        assert warm.batch_get_v1(names(4, of), places) == [True] * 4
    ended = warm._pages.ahead.counts()
    assert sum(one.asked for one in ended.values()) == 8
    assert sum(one.used + one.late for one in ended.values()) == 8
    assert warm.batch_exists(names(4, "a")) == 4
    assert sum(one.asked for one in warm._pages.ahead.counts().values()) == 8, "the line is empty"


def test_a_silent_daemon_costs_the_deadline_one_warning_and_no_overdue_call(
    backend: Callable[..., Any], daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    one = backend(match_deadline_ms=300, deadline_ms=300)
    daemon.pause()
    for _ in range(3):
        assert one.batch_exists(names(2)) == 0
        assert one.batch_get_v1(names(2), one.mem_pool_host.slots(0, 1)) == [False, False]
    daemon.resume()
    assert len([record for record in caplog.records if "blocks are computed instead" in record.getMessage()]) == 1
    assert one.counts.loads_failed == 6


def test_in_the_shadow_pages_are_asked_for_and_stored_and_none_is_there(
    backend: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALFSTEP_MODE", "shadow")
    shadow = backend()
    stored(shadow, names(3))
    assert shadow.batch_exists(names(3)) == 0
    assert shadow.batch_get_v1(names(3), shadow.mem_pool_host.slots(4, 5, 6)) == [False] * 3
    monkeypatch.delenv("HALFSTEP_MODE")
    assert backend().batch_exists(names(3)) == 3


def test_an_sglang_that_asks_for_more_is_refused_by_name(sglang: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang.HalfstepHiCache, "__abstractmethods__", frozenset({"teleport"}))
    with pytest.raises(ConfigError, match=r"SGLang 0.5.23: a HiCache storage backend has to have teleport there"):
        sglang.HalfstepHiCache(None)


def test_a_backend_that_is_switched_off_is_no_failure_of_a_backup(
    backend: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang warns of each page that was not stored."""
    monkeypatch.setenv("HALFSTEP_MODE", "off")
    one = backend()
    pool = one.mem_pool_host
    assert one.batch_set_v1(names(2), pool.slots(0, 1)) == [True, True]
    assert one.batch_set(names(2), [pool.page(0).clone(), pool.page(1).clone()]) is True
    assert one.batch_exists(names(2)) == 0
    assert one.batch_get_v1(names(2), pool.slots(0, 1)) == [False, False]
    assert one.clear() is True
    assert (one.counts.stores, one.counts.stores_failed) == (0, 0)
