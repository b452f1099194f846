"""Memory of a real GPU as target and source. Without a CUDA device, or a torch that sees it, all of it is skipped.

What a driver may do, and the one of test_client_gpu.py does not: refuse a copy, order streams, capture graphs, be late.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import halfstep
from halfstep import ConfigError
from halfstep.tier import Kind, KVLayout

from .conftest import Daemon

try:
    ctypes.CDLL("libcuda.so.1")
except OSError as error:
    pytest.skip(f"no CUDA driver: {error}", allow_module_level=True)
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip(f"torch {torch.__version__} sees no CUDA device", allow_module_level=True)

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("default")]

DEVICE = torch.device("cuda:0")
KIB, MIB = 1 << 10, 1 << 20
PART_BYTES = 256 * KIB  # of an opaque block
LONG_MS = 60_000
# About a second of a stream's time: long beside all else here, short beside the deadlines.
BUSY_CYCLES = 1_500_000_000


def keys_of(count: int, name: str = "block") -> list[bytes]:
    return [f"{name} {number}".encode() for number in range(count)]


def random_bytes(*shape: int, seed: int = 1) -> Any:
    """On the device."""
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, np.uint8)).to(DEVICE)


def zeros(*shape: int) -> Any:
    made = torch.zeros(shape, dtype=torch.uint8, device=DEVICE)
    torch.cuda.synchronize()
    return made


def all_ok(result: Any) -> None:
    assert result.ok.all(), result.reason(int(np.argmin(result.ok)))


def put(client: halfstep.Client, keys: list[bytes], source: Any, **options: Any) -> None:
    """Until the store has taken all of it: it may write slowly."""
    until = time.monotonic() + 60
    while True:
        result = client.put(keys, source, **options)
        if result.ok.all():
            return
        reason = result.reason(int(np.argmin(result.ok)))
        assert reason.startswith("throttled"), reason
        assert time.monotonic() < until, reason
        time.sleep(0.05)


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """With memory for what the tests put at once, which is more than elsewhere."""
    started = Daemon(tmp_path_factory.mktemp("daemon"), "4GiB", arena="1GiB")
    try:
        started.start()
        yield started
    finally:
        started.close()


@pytest.fixture(autouse=True)
def _nothing_failed(request: pytest.FixtureRequest) -> Iterator[None]:
    """No copy failed, no slot is kept, and the kernel for small pieces was taken by the driver."""
    client = request.getfixturevalue("client") if "client" in request.fixturenames else None
    yield
    if client is not None:
        gpu = client.facts().gpu
        assert (gpu.error, gpu.failures, gpu.slots_used) == ("", 0, 0), gpu


# ---- Both ways ----


def test_whole_tensors_go_out_and_come_back(client: halfstep.Client) -> None:
    """More than one slab of pinned memory: 40 MiB."""
    source, keys = random_bytes(40, MIB), keys_of(40)
    put(client, keys, source)
    target = zeros(42, MIB)
    all_ok(client.get(keys, target[1:41]))
    assert torch.equal(target[1:41], source)
    assert not target[0].any()
    assert not target[41].any()
    host = np.zeros((40, MIB), np.uint8)
    all_ok(client.get(keys, host))
    assert (host == source.cpu().numpy()).all()
    gpu = client.facts().gpu
    assert gpu.devices.startswith(f"cuda:0 ({torch.cuda.get_device_name(0)}"), gpu
    assert (gpu.bytes_to_device, gpu.bytes_to_host) == (source.nbytes, source.nbytes), gpu


def test_lists_of_tensors_of_odd_lengths(client: halfstep.Client) -> None:
    """Each its own allocation, at addresses and of lengths that are multiples of nothing."""
    lengths = [1, 2, 3, 5, 15, 16, 17, 255, 4096, 32_767, 32_768, 32_769, PART_BYTES - 1, PART_BYTES + 1, MIB]
    whole = [random_bytes(length + 8, seed=length) for length in lengths]
    sources = [one[at % 8 : at % 8 + length] for at, (one, length) in enumerate(zip(whole, lengths, strict=True))]
    keys = keys_of(len(lengths))
    put(client, keys, sources)
    room = [zeros(length + 8) for length in lengths]
    targets = [one[(at + 3) % 8 :][:length] for at, (one, length) in enumerate(zip(room, lengths, strict=True))]
    all_ok(client.get(keys, targets))
    for target, source, of in zip(targets, sources, room, strict=True):
        assert torch.equal(target, source)
        assert int((of != 0).sum()) == int((source != 0).sum()), "bytes beside the target changed"


@pytest.mark.parametrize("piece_bytes", [1024, 4096, 16 * KIB, 32 * KIB, 64 * KIB, 6 * KIB + 4])
def test_parts_in_pieces_of_registered_memory(client: halfstep.Client, piece_bytes: int) -> None:
    """As an engine's pages: each part of a row is many pieces, twice their length apart."""
    count = PART_BYTES // piece_bytes
    block_bytes = 2 * count * piece_bytes if count * piece_bytes == PART_BYTES else count * piece_bytes
    parts = block_bytes // (count * piece_bytes)
    source, keys = random_bytes(8, block_bytes), keys_of(8)
    put(client, keys, source)
    pool = zeros(10, parts * count, 2, piece_bytes)
    with client.register(pool) as region:
        row_bytes = parts * count * 2 * piece_bytes
        template = region.template(
            [
                halfstep.PartDescriptor(part * count * 2 * piece_bytes, row_bytes, count, piece_bytes, 2 * piece_bytes)
                for part in range(parts)
            ]
        )
        all_ok(client.get(keys, halfstep.Rows(template, [9, 0, 2, 1, 4, 3, 6, 5])))
        got = pool[[9, 0, 2, 1, 4, 3, 6, 5], :, 0].reshape(8, block_bytes)
        assert torch.equal(got, source)
        assert not pool[:, :, 1].any()
        assert not pool[[7, 8]].any()
        again = keys_of(8, "again")
        put(client, again, halfstep.Rows(template, [9, 0, 2, 1, 4, 3, 6, 5]))
    host = np.zeros((8, block_bytes), np.uint8)
    all_ok(client.get(again, host))
    assert (host == source.cpu().numpy()).all()


def test_a_prefetch_is_a_get_that_nobody_waits_for(client: halfstep.Client) -> None:
    source, keys = random_bytes(16, MIB), keys_of(16)
    put(client, keys, source)
    target = zeros(16, MIB)
    with client.queue() as queue:
        ticket = queue.get(keys, target, deadline_ms=LONG_MS)
        all_ok(ticket.result(60))
    assert torch.equal(target, source)


def test_pinned_memory_is_memory_of_the_host(client: halfstep.Client) -> None:
    source, keys = random_bytes(2, MIB), keys_of(2)
    put(client, keys, source.cpu().pin_memory())
    target = torch.zeros((2, MIB), dtype=torch.uint8, pin_memory=True)
    all_ok(client.get(keys, target))
    assert torch.equal(target, source.cpu())


# ---- Streams, captures, threads ----


def test_a_batch_comes_after_what_its_stream_has_under_way(client: halfstep.Client) -> None:
    stored, keys = random_bytes(4, MIB), keys_of(4)
    put(client, keys, stored)
    target, source = zeros(4, MIB), zeros(4, MIB)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY_CYCLES)
        target.fill_(7)
        source.copy_(stored)
    with client.queue() as queue:
        getting = queue.get(keys, target, stream=stream, deadline_ms=LONG_MS)
        putting = queue.put(keys_of(4, "late"), source, stream=stream.cuda_stream, deadline_ms=LONG_MS)
        host = np.zeros((4, MIB), np.uint8)
        all_ok(client.get(keys, host))  # another one goes ahead of them
        all_ok(getting.result(60))
        all_ok(putting.result(60))
    assert stream.query()
    assert torch.equal(target, stored)
    all_ok(client.get(keys_of(4, "late"), target))
    assert torch.equal(target, stored)


def test_a_deadline_ends_what_waits_for_a_stream(client: halfstep.Client) -> None:
    keys = keys_of(4)
    put(client, keys, random_bytes(4, MIB))
    target = zeros(4, MIB)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY_CYCLES)
    result = client.get(keys, target, stream=stream, deadline_ms=20)
    assert result.reason(0) == "late (deadline)"
    stream.synchronize()
    assert not target.any()


@pytest.mark.parametrize("ended_by", ["cancel", "deadline", "close"])
def test_nothing_lands_after_the_end(client: halfstep.Client, ended_by: str) -> None:
    """Some way into a get of 48 MiB, each time further; the guards beside the target never change."""
    source, keys = random_bytes(48, MIB), keys_of(48)
    put(client, keys, source)
    room = zeros(50, MIB)
    cut = 0
    for round_number in range(30):
        room.zero_()
        torch.cuda.synchronize()
        region = client.register(room[1:49])
        template = region.template([halfstep.PartDescriptor(PART_BYTES * part, MIB, 1, PART_BYTES) for part in range(4)])
        with client.queue() as queue:
            deadline_ms = 1 + round_number if ended_by == "deadline" else LONG_MS
            ticket = queue.get(keys, halfstep.Rows(template, list(range(48))), deadline_ms=deadline_ms)
            ticket.wait(round_number / 1000)
            if ended_by == "cancel":
                ticket.cancel()
            elif ended_by == "close":
                region.close()
            result = ticket.result(60)
        seen = room.clone()
        torch.cuda.synchronize()
        torch.cuda._sleep(BUSY_CYCLES // 100)
        torch.cuda.synchronize()
        assert torch.equal(room, seen)
        assert not room[0].any()
        assert not room[49].any()
        for item in np.flatnonzero(result.ok):
            assert torch.equal(room[1 + item], source[item])
        cut += not result.ok.all()
        region.close()
    assert cut > 0


def test_a_capture_elsewhere_in_the_process_stays_whole(client: halfstep.Client) -> None:
    source, keys = random_bytes(8, MIB), keys_of(8)
    target, counted = zeros(8, MIB), torch.zeros(1024, device=DEVICE)
    put(client, keys, source)
    capturing, over = threading.Event(), threading.Event()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()

    def capture() -> None:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="global"):
            counted.add_(1)
            capturing.set()
            assert over.wait(60)
            counted.add_(1)

    with ThreadPoolExecutor(1) as pool:
        captured = pool.submit(capture)
        assert capturing.wait(60)
        try:
            with pytest.raises(ConfigError, match="captured into a graph"):
                client.get(keys, target, stream=stream)
            for _ in range(5):
                all_ok(client.get(keys, target, stream=-1))
                put(client, keys, source, stream=-1)
        finally:
            over.set()
        captured.result(60)
    assert torch.equal(target, source)
    graph.replay()
    graph.replay()
    torch.cuda.synchronize()
    assert (counted == 4).all()


def test_many_threads_with_streams_of_their_own(client: halfstep.Client) -> None:
    def work(number: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for round_number in range(6):
                keys = keys_of(12, f"thread {number} round {round_number}")
                source = torch.randint(0, 256, (12, 512 * KIB), dtype=torch.uint8, device=DEVICE)
                target = torch.zeros_like(source)
                put(client, keys, source, stream=stream, deadline_ms=LONG_MS)
                all_ok(client.get(keys, target, stream=stream, deadline_ms=LONG_MS))
                assert torch.equal(target, source)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


# ---- What is built on it ----


def tokens_first(blocks: int, heads: int, tokens: int, values: int) -> Any:
    """Pages as an engine keeps them: each head's tokens are pieces, 128 bytes for 64 values of bf16."""
    return torch.zeros((blocks, tokens, heads, values), dtype=torch.bfloat16, device=DEVICE).permute(0, 2, 1, 3)


def heads_first(blocks: int, heads: int, tokens: int, values: int) -> Any:
    return torch.zeros((blocks, heads, tokens, values), dtype=torch.bfloat16, device=DEVICE)


@pytest.mark.parametrize("made", [tokens_first, heads_first])
def test_planes_of_a_tier(client: halfstep.Client, made: Callable[..., Any], request: pytest.FixtureRequest) -> None:
    layers, heads, tokens, values, blocks = 3, 4, 16, 64, 40
    kind = Kind("full", tuple(range(layers)), heads, (2 * values, 2 * values))
    layout = KVLayout(model=request.node.name, weights_revision="1", dtype="bfloat16", block_tokens=tokens, kinds=(kind,))
    pools = [[made(blocks + 2, heads, tokens, values).normal_() for _ in range(2)] for _ in range(layers)]
    into = [[made(blocks + 2, heads, tokens, values) for _ in range(2)] for _ in range(layers)]
    rows = np.random.default_rng(1).permutation(blocks + 2)[:blocks]
    stream = torch.cuda.current_stream()
    tier = client.tier(layout)
    prefix = tier.prefix(np.arange(blocks * tokens))
    with tier.memory(pools) as memory, tier.memory(into) as other:
        stored = prefix.put(memory, rows=rows, stream=stream)
        assert (stored.stored, stored.reason) == (blocks, "")
        loading = prefix.begin_get(other, rows=rows[::-1].copy(), stream=stream, order="layer")
        assert loading.whole_result().blocks == blocks
    for layer in range(layers):
        for pool, got in zip(pools[layer], into[layer], strict=True):
            assert torch.equal(got[rows[::-1].copy()].view(torch.int16), pool[rows].view(torch.int16))
            left = sorted(set(range(blocks + 2)) - set(rows.tolist()))
            assert not got[left].any()
    tier.close()


def test_planes_are_of_one_device(client: halfstep.Client, request: pytest.FixtureRequest) -> None:
    kind = Kind("full", (0,), 1, (128, 128))
    layout = KVLayout(model=request.node.name, weights_revision="1", dtype="bfloat16", block_tokens=16, kinds=(kind,))
    tier = client.tier(layout)
    with pytest.raises(ConfigError, match="all planes must be on one device"):
        tier.memory([[heads_first(2, 1, 16, 64), heads_first(2, 1, 16, 64).cpu()]])
    tier.close()


@pytest.mark.parametrize("codec", ["", "bfx"])
def test_a_model_goes_on_with_the_same_tokens(daemon: Any, codec: str) -> None:
    """Computed and saved, restored by another client, and with the tier off."""
    transformers = pytest.importorskip("transformers")
    from halfstep.connectors.transformers import PromptCache

    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to(DEVICE)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 1.5 / parameter.shape[-1] ** 0.5)
    model.eval()
    model.generation_config.eos_token_id = None
    ids = torch.randint(3, 1000, (1, 1500), generator=torch.Generator().manual_seed(1)).to(DEVICE)

    def generate(mode: str) -> Any:
        terms: dict[str, Any] = {"deadline_ms": LONG_MS, "match_deadline_ms": LONG_MS, "mode": mode}
        with halfstep.connect(daemon.url, codecs=(codec,) if codec else (), **terms) as client:
            # Opaque to the tier what model it is: a salt of this run.
            store = PromptCache(client, model, salt=f"{codec} {id(daemon)}".encode(), codec=codec)
            made = store.generate(ids, max_new_tokens=30, do_sample=False)
            return made.output[0, 1500:].tolist(), made.restored, made.saved

    cold, nothing, saved = generate("on")
    assert nothing.hit_blocks == 0
    assert saved.stored >= 1499 // 16, saved
    warm, restored, _ = generate("on")
    assert (restored.hit_blocks, restored.reason) == (1499 // 16, ""), restored.reason
    assert restored.cache.layers[0].keys.device == DEVICE
    without, missed, _ = generate("off")
    assert missed.hit_blocks == 0
    assert cold == warm == without
    assert len(set(cold)) > 5, "tokens that hardly vary would hide a wrong cache"


def test_units_that_a_device_coded_are_those_of_the_host(client: halfstep.Client) -> None:
    """Coded on the device, stored as opaque blocks, read into its memory and decoded there."""
    from halfstep import compress
    from halfstep.compress import torch as on_device

    values = torch.randn((16, 64 * KIB), device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(1)).to(torch.bfloat16)
    stored = [unit for unit in on_device.encode(values).to_host() if unit is not None]
    assert len(stored) == 16
    for unit, part in zip(stored, values.cpu(), strict=True):
        assert bytes(unit) == compress.encode(part.view(torch.uint8).numpy(), element="bf16")
    lengths = [len(unit) for unit in stored]
    keys = keys_of(16)
    put(client, keys, [np.frombuffer(bytes(unit), np.uint8) for unit in stored])
    data = zeros(16, max(lengths))
    all_ok(client.get(keys, [row[:length] for row, length in zip(data, lengths, strict=True)]))
    units = on_device.Units(data, torch.tensor(lengths, device=DEVICE), values[0].nbytes)
    raw, good = on_device.decode(units)
    assert good.all()
    assert torch.equal(raw.reshape(-1).view(torch.uint8), values.reshape(-1).view(torch.uint8))
