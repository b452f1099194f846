"""Keys, targets and sources as the core gets them; no daemon: a client that is off checks everything and sends nothing."""

from __future__ import annotations

import gc
import mmap
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import halfstep
from halfstep import ConfigError, PartDescriptor, Rows, Template, _peer
from halfstep.client.numbers import OP_GET, OP_MATCH, OP_PUT
from halfstep.client.ticket import Event

KEYS = [b"a", b"b"]


@pytest.fixture
def client() -> Iterator[halfstep.Client]:
    with halfstep.connect("halfstep://127.0.0.1:1", mode="off") as client:
        yield client


def batch_of(keys: Any, *, operation: int = OP_GET, components: int = 1) -> _peer.Batch:
    batch = _peer.Batch(operation)
    batch.set_keys(0, keys, 0, components, False)
    return batch


# ---- keys ----------------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(min_size=1, max_size=255), max_size=20))
def test_keys_are_packed_with_their_lengths(keys: list[bytes]) -> None:
    expected = b"".join(bytes([len(key)]) + key for key in keys)
    assert batch_of(keys).packed_keys == expected
    assert batch_of(tuple(bytearray(key) for key in keys)).packed_keys == expected
    assert batch_of([memoryview(key) for key in keys]).packed_keys == expected


@given(st.integers(0, 10), st.integers(1, 255), st.booleans())
def test_an_array_of_keys_is_packed_like_its_rows(count: int, key_bytes: int, reverse: bool) -> None:
    array = np.arange(count * key_bytes, dtype=np.uint32).astype(np.uint8).reshape(count, key_bytes)
    array = array[::-1] if reverse else np.asfortranarray(array)
    batch = batch_of(array)
    assert batch.item_count == count
    assert batch.packed_keys == batch_of([row.tobytes() for row in array]).packed_keys


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (b"abc", "put a single key into a list"),
        ("abc", "put a single key into a list"),
        (["abc"], "encode"),
        ([b""], r"keys\[0\]: 0 bytes"),
        ([b"x", b"y" * 256], r"keys\[1\]: 256 bytes"),
        ([17], "buffer"),
        (np.zeros(4, np.uint8), "1 dimensions"),
        (np.zeros((4, 4), np.int32), "4-byte elements"),
        (np.zeros((2, 256), np.uint8), "256 bytes"),
        (iter([b"x"]), "list or tuple"),
    ],
)
def test_what_is_no_key_is_refused_in_a_sentence(client: halfstep.Client, keys: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        client.match(keys)


# ---- targets -------------------------------------------------------------------------------------------------------------


def writable_targets() -> list[Any]:
    return [
        bytearray(64),
        memoryview(bytearray(64)),
        np.zeros((2, 32), np.uint8),
        np.zeros((2, 2, 8), np.float16),
        np.zeros(2, [("O", np.uint8)]),
        np.zeros(2, "datetime64[s]"),
        np.zeros(0, np.uint8),
        mmap.mmap(-1, 64),
        [bytearray(32), np.zeros(32, np.uint8)],
        [[bytearray(16), bytearray(16)], [np.zeros(4, np.float64)]],
        [[], bytearray(1)],
    ]


@pytest.mark.parametrize("target", writable_targets(), ids=lambda t: type(t).__name__)
def test_writable_contiguous_memory_is_a_target(client: halfstep.Client, target: Any) -> None:
    result = client.get(KEYS, target)
    assert result.reason(0) == "miss (skipped)"


def refused_targets() -> list[tuple[Any, str]]:
    frozen = np.zeros(64, np.uint8)
    frozen.flags.writeable = False
    return [
        (b"x" * 64, "read-only"),
        (frozen, "read-only"),
        (memoryview(b"x" * 64), "read-only"),
        (np.zeros((2, 64), np.uint8)[:, :32], "not C-contiguous"),
        (np.zeros((32, 2), np.uint8).T, "not C-contiguous"),
        (memoryview(bytearray(64))[::2], "not C-contiguous"),
        (bytearray(63), "63 bytes do not divide evenly over 2 blocks"),
        ([bytearray(32)], "a list of 1 for 2 blocks"),
        ([bytearray(32), b"read-only"], "read-only"),
        ("text", "neither the buffer protocol nor DLPack"),
        (None, "neither the buffer protocol nor DLPack"),
        (np.empty(2, object), "holds Python objects, not bytes"),
        (np.empty(2, [("O", np.uint8), ("value", object)]), "holds Python objects, not bytes"),
        (np.empty(2, [("value", object), ("when", "datetime64[s]")]), "holds Python objects, not bytes"),
    ]


@pytest.mark.parametrize(("target", "says"), refused_targets())
def test_other_memory_is_refused_by_name_with_the_remedy(client: halfstep.Client, target: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        client.get(KEYS, target)


@pytest.mark.parametrize("source", [b"x" * 64, memoryview(b"x" * 64), [b"x" * 32, bytearray(10)]])
def test_a_source_may_be_read_only(client: halfstep.Client, source: Any) -> None:
    assert client.put(KEYS, source).stored == 0


def test_a_source_may_be_larger_than_its_blocks_but_not_smaller(client: halfstep.Client) -> None:
    source = np.zeros((2, 32), np.uint8)
    client.put(KEYS, source, block_bytes=[32, 7])
    client.put(KEYS, source, block_bytes=32)
    client.put(KEYS, [[b"1234", b"56"], [b"7"]], block_bytes=[5, 1])
    with pytest.raises(ConfigError, match="block 1 has 32 bytes; block_bytes says 33"):
        client.put(KEYS, source, block_bytes=[1, 33])
    with pytest.raises(ConfigError, match=r"block_bytes: shape \(3,\)"):
        client.put(KEYS, source, block_bytes=[1, 2, 3])
    with pytest.raises(ConfigError, match="block_bytes=-1: must be 0 to"):
        client.put(KEYS, source, block_bytes=-1)


class ForeignMemory:
    """Memory that is somewhere else, as DLPack describes it."""

    def __init__(self, device: int) -> None:
        self.device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 3

    def __dlpack__(self, **_: object) -> object:
        raise AssertionError("must not be asked for memory that cannot be reached")


@pytest.mark.parametrize(("device", "says"), [(2, r"CUDA memory \(device 3\)"), (13, "CUDA memory"), (10, "device type 10")])
def test_memory_of_a_device_is_refused_by_name_and_not_touched(client: halfstep.Client, device: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        client.get(KEYS, ForeignMemory(device))
    with pytest.raises(ConfigError, match=says):
        client.put(KEYS, [ForeignMemory(device)] * 2)


class LazyTensor:
    """A tensor whose values are made when somebody computes with it; its export does not say so."""

    def __init__(self, **asked: bool) -> None:
        self.memory = np.zeros(64, np.uint8)
        self.is_conj = lambda: asked.get("is_conj", False)
        self.is_neg = lambda: asked.get("is_neg", False)
        self._is_zerotensor = lambda: asked.get("_is_zerotensor", False)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: Any) -> Any:
        return self.memory.__dlpack__(**options)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("is_conj", r"a conjugated view, whose bytes are not its values; pass resolve_conj\(\) of it"),
        ("is_neg", r"a negated view, whose bytes are not its values; pass resolve_neg\(\) of it"),
        ("_is_zerotensor", r"zeros that have no memory, whose bytes are not its values; pass clone\(\) of it"),
    ],
)
def test_a_view_whose_bytes_are_not_its_values_is_refused_by_name(client: halfstep.Client, asked: str, says: str) -> None:
    lazy = LazyTensor(**{asked: True})
    for attempt in (
        lambda: client.put(KEYS, lazy),
        lambda: client.put(KEYS, [lazy, LazyTensor()]),
        lambda: client.get(KEYS, lazy),
        lambda: client.register(lazy),
    ):
        with pytest.raises(ConfigError, match=says):
            attempt()
    client.put(KEYS, LazyTensor())


def test_torch_views_whose_bytes_are_not_their_values_are_refused(client: halfstep.Client) -> None:
    torch = pytest.importorskip("torch")
    numbers = torch.ones(8, dtype=torch.complex64)
    with pytest.raises(ConfigError, match="resolve_conj"):
        client.put(KEYS, numbers.conj())
    with pytest.raises(ConfigError, match="resolve_neg"):
        client.put(KEYS, torch._neg_view(torch.ones(8)))
    client.put(KEYS, numbers.conj().resolve_conj())


def test_torch_tensors_of_every_kind_are_targets_and_sources(client: halfstep.Client) -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.int64, torch.bool):
        client.get(KEYS, torch.zeros(2, 32, dtype=dtype))
        client.put(KEYS, [torch.zeros(16, dtype=dtype), torch.zeros(3, dtype=dtype)])
    with pytest.raises(ConfigError, match="not C-contiguous"):
        client.get(KEYS, torch.zeros(4, 8).t())
    with pytest.raises(ConfigError, match="meta"):
        client.get(KEYS, torch.zeros(4, device="meta"))


def test_a_tensor_is_used_where_it_is() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(2, 32, dtype=torch.bfloat16)
    region = halfstep.Region(tensor)
    assert (region.address, region.bytes) == (tensor.data_ptr(), 128)
    region.close()


# ---- who keeps memory ----------------------------------------------------------------------------------------------------


def test_a_batch_keeps_its_memory_where_it_is() -> None:
    target = bytearray(64)
    batch = batch_of(KEYS)
    batch.set_target(target)
    with pytest.raises(BufferError):
        target.extend(b"x")
    del batch
    target.extend(b"x")


def test_a_batch_keeps_a_target_that_nobody_else_has() -> None:
    target = np.zeros(64, np.uint8)
    gone = weakref.ref(target)
    batch = batch_of(KEYS)
    batch.set_target(target)
    del target
    gc.collect()
    assert gone() is not None
    del batch
    gc.collect()
    assert gone() is None


def test_a_closed_region_has_let_go() -> None:
    memory = bytearray(64)
    region = halfstep.Region(memory)
    with pytest.raises(BufferError):
        memory.append(1)
    region.close()
    memory.append(1)
    assert region.closed
    with pytest.raises(ConfigError, match="region is closed"):
        region.template([PartDescriptor(0, 32, 1, 32)])


def test_a_batch_whose_region_was_closed_before_its_submit_is_refused(client: halfstep.Client) -> None:
    region = halfstep.Region(bytearray(64))
    template = region.template([PartDescriptor(0, 32, 1, 32)])
    core = _peer.Core("127.0.0.1:1", "default", 1, 0)
    batch = _peer.Batch(OP_GET)
    batch.set_keys(core.register_layout(client.layout.canonical), KEYS, 0, 1, False)
    batch.set_rows(template.native, np.array([0, 1]), False, None)
    region.close()
    queue = _peer.Queue(Event)
    try:
        with pytest.raises(ConfigError, match="region is closed"):
            queue.submit(batch, None, core)
        assert queue.in_flight == 0
    finally:
        queue.close()
        core.close()


# ---- rows ----------------------------------------------------------------------------------------------------------------


def test_rows_need_a_template_row_numbers_and_memory_that_fits_the_use(client: halfstep.Client) -> None:
    with client.register(np.zeros((8, 2, 16), np.uint8)) as region, client.register(b"x" * 64) as frozen:
        template = region.template([PartDescriptor(0, 32, 1, 16), PartDescriptor(16, 32, 1, 16)])
        assert template.block_bytes == 32
        client.get(KEYS, Rows(template, np.array([3, 1])))
        client.put(KEYS, Rows(template, [3, 1]))
        with pytest.raises(ConfigError, match="rows"):
            client.get(KEYS, Rows(template, [1]))
        with pytest.raises(ConfigError, match=r"rows: must be whole numbers under 2\*\*63, not float64"):
            client.get(KEYS, Rows(template, np.array([1.0, 1.9])))
        with pytest.raises(ConfigError, match="rows: 9223372036854775808 is too large"):
            client.get(KEYS, Rows(template, np.array([0, 1 << 63], np.uint64)))
        with pytest.raises(ConfigError, match=r"rows: must be whole numbers under 2\*\*63, not object"):
            client.get(KEYS, Rows(template, [0, 1 << 64]))
        with pytest.raises(ConfigError, match=r"template \(NoneType\): must be a Template"):
            client.get(KEYS, Rows(None, [0, 1]))  # type: ignore[arg-type]
        read_only = frozen.template([PartDescriptor(0, 32, 1, 32)])
        client.put(KEYS, Rows(read_only, [0, 1]))
        with pytest.raises(ConfigError, match="read-only"):
            client.get(KEYS, Rows(read_only, [0, 1]))


def test_parts_may_lie_in_several_regions(client: halfstep.Client) -> None:
    with client.register(bytearray(64)) as first, client.register(bytearray(64)) as second:
        template = Template([PartDescriptor(0, 32, 1, 32, region=first), PartDescriptor(0, 32, 2, 8, 16, region=second)])
        assert template.block_bytes == 48
        assert template.regions == [first, second]
    with pytest.raises(ConfigError, match="no region"):
        Template([PartDescriptor(0, 32, 1, 32)])
    with pytest.raises(ConfigError, match="no parts"):
        Template([])


# ---- other arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"parts": []}, "0 ranges"),
        ({"parts": [range(0)]}, "names no part"),
        ({"parts": [range(5, 0, -1)]}, "names no part"),
        ({"parts": [(0, 1, 1)] * 9}, "9 ranges"),
        ({"parts": [(0, 1)]}, r"\(0, 1\) has 2 numbers; a tuple is \(first, count, step\)"),
        ({"parts": "ab"}, "parts='ab': must be a list"),
        ({"parts": 2}, "parts=2: must be a list"),
        ({"parts": [1.5]}, "parts=1.5: must be a whole number"),
        ({"parts": [(0, 1 << 33, 1)]}, "the last part that a block can have, 2559"),
        ({"parts": [2560]}, "the last part that a block can have, 2559"),
        ({"order": "random"}, "order='random'"),
        ({"order": []}, r"order=\[\]"),
        ({"priority": 256}, "priority=256"),
        ({"components": 0}, "components=0"),
        ({"components": 1.5}, "components=1.5: must be a whole number, not float"),
        ({"first_component": 1 << 32}, "first_component"),
        ({"deadline_ms": -1}, "deadline_ms=-1"),
        ({"deadline_ms": "1"}, "deadline_ms='1': must be a number"),
        ({"deadline_ms": float("nan")}, "deadline_ms=nan: must be a number"),
        ({"layout": b"bytes"}, "layout"),
    ],
)
def test_wrong_arguments_of_get_are_refused(client: halfstep.Client, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        client.get(KEYS, bytearray(64), **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"durability": "forever"}, "durability='forever'"),
        ({"parents": [0]}, "one ordinal per key"),
        ({"parents": [-1, 0.5]}, "parents: must be whole numbers"),
        ({"parents": [[-1], [0, 1]]}, "parents: "),
        ({"parents": [-3, 0]}, "-1 for a root"),
        ({"parents": [0, 2]}, "-1 for a root"),
        ({"depths": [0, 1 << 16]}, "depths"),
        ({"depths": [0.5, 1.5]}, "whole numbers"),
        ({"ttl_s": -1}, "ttl_s"),
        ({"hint": 256}, "hint"),
    ],
)
def test_wrong_arguments_of_put_are_refused(client: halfstep.Client, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        client.put(KEYS, bytes(64), **options)
    client.put(KEYS, bytes(64), parents=[-1, 0], depths=[0, 1], ttl_s=60, hint=1, durability="persist")


def test_a_hold_needs_an_owner_and_a_time(client: halfstep.Client) -> None:
    for options in ({"hold_ms": 5}, {"owner": 5}):
        with pytest.raises(ConfigError, match="a hold needs both"):
            client.match(KEYS, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="owner=0"):
        client.release(0)
    with pytest.raises(ConfigError, match="owner='me': must be a whole number"):
        client.release("me")  # type: ignore[arg-type]


def test_wrong_arguments_of_operators_calls_are_refused(client: halfstep.Client) -> None:
    with pytest.raises(ConfigError, match="quota_bytes=36893488147419103232: must be 0 to 18446744073709551615"):
        client.create_namespace("a", 1 << 65)
    with pytest.raises(ConfigError, match="is no text but a int"):
        client.delete_namespace(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cannot be deleted"):
        client.delete_namespace("default")
    with pytest.raises(ConfigError, match=r"key \(str\): must be bytes"):
        client.explain("key")  # type: ignore[arg-type]
    for components in (5, [1]):
        with pytest.raises(ConfigError, match="must be a list of ranges"):
            client.explain(b"key", components)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="seconds=0: must be over 0"):
        client.session(0)
    with pytest.raises(ConfigError, match="limit='1'"):
        next(client.list(limit="1"))  # type: ignore[arg-type]


def test_a_time_to_wait_is_a_number(client: halfstep.Client) -> None:
    with client.queue() as queue:
        ticket = queue.match(KEYS)
        for wait in (queue.wait, ticket.wait, ticket.result, client.wait_ready):
            with pytest.raises(ConfigError, match="=nan: must be a number"):
                wait(float("nan"))
        assert ticket.wait(float("inf"))
        queue.match(KEYS)
        assert len(queue.wait(float("inf"))) == 1


def test_a_block_that_cannot_be_is_refused_with_the_lengths_that_can() -> None:
    core = _peer.Core("127.0.0.1:1", "default", 1, 0)
    queue = _peer.Queue(Event)
    try:
        for layout, says in (
            (halfstep.Layout.opaque("any"), "it has 1 byte or more, in at most 2560 parts"),
            (halfstep.Layout({"name": "cut"}, [halfstep.Group(2, (16,))]), "all have 32"),
        ):
            batch = _peer.Batch(OP_PUT)
            batch.set_keys(core.register_layout(layout.canonical), [b"a"], 0, 1, False)
            batch.set_source([b""], None)
            with pytest.raises(ConfigError, match=f"block_bytes=0 of item 0: no block of its group has that length; {says}"):
                queue.submit(batch, None, core)
    finally:
        queue.close()
        core.close()


@pytest.mark.parametrize("lengths", [False, True])
def test_a_batch_with_room_for_the_answers_of_other_keys_is_refused(lengths: bool) -> None:
    core = _peer.Core("127.0.0.1:1", "default", 1, 0)
    queue = _peer.Queue(Event)
    layout = core.register_layout(halfstep.Layout.opaque("any").canonical)
    batch = _peer.Batch(OP_MATCH)
    batch.set_keys(layout, [b"a"], 0, 1, False)
    batch.set_outputs(lengths)
    batch.set_keys(layout, [b"%d" % n for n in range(1000)], 0, 1, False)
    try:
        with pytest.raises(ConfigError, match="keys or ranges were changed after its targets, sources or outputs"):
            queue.submit(batch, None, core)
        batch.set_outputs(lengths)
        queue.submit(batch, None, core)
    finally:
        queue.close()
        core.close()


def test_a_submitted_batch_cannot_be_changed(client: halfstep.Client) -> None:
    batch = batch_of(KEYS, operation=OP_PUT)
    batch.set_source(b"x" * 64, None)
    core = _peer.Core("127.0.0.1:1", "default", 1, 0)
    layout = core.register_layout(client.layout.canonical)
    batch.set_keys(layout, KEYS, 0, 1, False)
    queue = _peer.Queue(Event)
    queue.submit(batch, None, core)
    try:
        with pytest.raises(ConfigError, match="submitted"):
            batch.set_target(bytearray(64))
    finally:
        queue.close()
        core.close()


# ---- off -----------------------------------------------------------------------------------------------------------------


def test_a_client_that_is_off_answers_everything_with_a_miss_at_once(client: halfstep.Client) -> None:
    assert client.match(KEYS).prefix == 0
    assert client.match(KEYS, lengths=True).lengths is not None
    assert not client.delete(KEYS).ok.any()
    assert not client.release(7).ok.any()
    assert client.submit("get", KEYS, bytearray(4)).result(5).hits == 0
    assert client.path.startswith("off")
    with pytest.raises(halfstep.Unavailable, match="off"):
        client.stat()
    with client.queue() as queue:
        ticket = queue.get(KEYS, bytearray(4))
        assert ticket.done
        assert [event.ticket for event in queue.poll()] == [ticket]
        assert queue.poll() == []


@pytest.mark.parametrize("timeout_ms", [-1, -0.001, float("-inf"), float("nan"), "5", None])
def test_a_time_to_wait_that_is_none_is_refused(client: halfstep.Client, timeout_ms: Any) -> None:
    with pytest.raises(ConfigError, match="timeout_ms="):
        client.wait_ready(timeout_ms)


def test_waiting_for_what_is_off_is_over_at_once(client: halfstep.Client) -> None:
    client.wait_ready(3_600_000)


def test_a_limit_below_zero_is_refused(client: halfstep.Client) -> None:
    with pytest.raises(ConfigError, match="limit=-1: must be 0 to"):
        list(client.list(limit=-1))


class _Submits:
    """An array whose memory is asked for while somebody submits the batch that it is for."""

    def __init__(self, array: Any, submit: Callable[[], None]) -> None:
        self._array, self._submit = array, submit

    def __dlpack__(self, **options: Any) -> Any:
        self._submit()
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def test_a_batch_is_not_submitted_while_it_is_being_set() -> None:
    core, queue = _peer.Core("127.0.0.1:1", "default", 1, 0), _peer.Queue(Event)
    memory = np.zeros(64, np.uint8)
    regions = [_peer.Region(memory[:32], True), _peer.Region(memory[32:], True)]
    template = _peer.Template()
    template.add(regions[0], 0, 32, 1, 32, 32)
    layout = core.register_layout(halfstep.Layout({"name": "set"}, [halfstep.Group(1, (32,))]).canonical)
    batch = _peer.Batch(OP_GET)
    batch.set_keys(layout, [b"a"], 0, 1, False)
    batch.set_rows(template, np.zeros(1, np.int64), False, None)
    batch.set_outputs(True)
    refused: list[str] = []

    def submit() -> None:
        try:
            queue.submit(batch, None, core)
        except ConfigError as error:
            refused.append(str(error))

    try:
        other = _peer.Template()
        other.add(regions[1], 0, 32, 1, 32, 32)
        batch.set_rows(other, _Submits(np.zeros(1, np.int64), submit), False, None)
        assert refused == ["batch: it is being set; submit it afterwards"]
        with pytest.raises(ConfigError, match="a batch has it already"):
            other.add(regions[0], 0, 32, 1, 32, 32)
        submit()
        assert len(refused) == 1
        assert [region.uses for region in regions] == [0, 1]
    finally:
        queue.close()
        core.close()
    assert [region.uses for region in regions] == [0, 0]


def test_a_batch_of_rows_that_was_refused_is_refused_again() -> None:
    core, queue = _peer.Core("127.0.0.1:1", "default", 1, 0), _peer.Queue(Event)
    template = _peer.Template()
    template.add(_peer.Region(bytearray(32), True), 0, 32, 1, 32, 32)
    layout = core.register_layout(halfstep.Layout({"name": "again"}, [halfstep.Group(1, (32,))]).canonical)
    batch = _peer.Batch(OP_GET)
    batch.set_keys(layout, [], 0, 1, False)
    batch.set_rows(template, np.zeros(0, np.int64), False, None)
    batch.set_outputs(True)
    try:
        for _ in range(2):
            with pytest.raises(ConfigError):
                queue.submit(batch, None, core)
    finally:
        queue.close()
        core.close()
