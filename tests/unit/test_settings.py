"""The settings of a daemon: described once, and what follows from the description in other places."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path
from typing import Any

import click
import pytest

from halfstep import _shard, _store
from halfstep.daemon.config import SETTINGS, ServeConfig, block_device_of, setting_named
from halfstep.daemon.setting import Bytes, Micros, Number, Setting, Word
from halfstep.daemon.units import BYTES_MAX, GIB, KIB, MIB, exact_bytes
from halfstep.errors import ConfigError
from halfstep.tools.serve import serve
from halfstep.tools.settings import fields_of

ROOT = Path(__file__).parents[2]
OPTIONS = {parameter.opts[0]: parameter for parameter in serve.params if isinstance(parameter, click.Option)}
NAMED = {one.option: one for one in SETTINGS}
BOUND = [one for one in SETTINGS if isinstance(one.kind, Bytes | Micros | Number)]


def tables() -> Any:
    """scripts/settings_tables.py, which writes the page."""
    spec = importlib.util.spec_from_file_location("settings_tables", ROOT / "scripts" / "settings_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def name_of(one: Setting) -> str:
    return one.option


def test_every_field_that_an_operator_may_set_is_described() -> None:
    fields = {field.name for field in dataclasses.fields(ServeConfig)}
    assert fields - {one.field for one in SETTINGS} == {"stop_grace_ms"}


def test_every_setting_is_an_option_and_every_option_a_setting() -> None:
    assert set(OPTIONS) == {f"--{one.option}" for one in SETTINGS} | {"--json"}


def test_the_page_has_the_tables_as_they_are_now() -> None:
    script = tables()
    page = script.PAGE.read_text()
    assert set(script.sections(page)) == {one.section for one in script.DESCRIBED}
    assert page == script.with_tables(page), "run python scripts/settings_tables.py"
    assert "--json" in page


def test_a_table_that_is_old_is_found() -> None:
    script = tables()
    page = script.PAGE.read_text()
    old = page.replace("| 1 to 16 | Independent slices", "| 1 to 8 | Slices")
    assert old != page
    assert script.with_tables(old) == page


@pytest.mark.parametrize("one", SETTINGS, ids=name_of)
def test_help_tells_default_and_bound(one: Setting) -> None:
    told = (OPTIONS[f"--{one.option}"].help or "").replace("`", "")
    plain = [text.replace("`", "") for text in (one.default_text, one.bound_text)]
    assert one.default is False or f"[default: {plain[0]}]" in told
    assert not plain[1] or f"[{plain[1]}]" in told


@pytest.mark.parametrize("one", SETTINGS, ids=name_of)
def test_a_default_is_within_its_bound_and_read_as_it_is_shown(one: Setting) -> None:
    one.check(one.default, 1)
    if not one.without and not isinstance(one.default, bool | tuple):
        assert one.read(one.default_text) == one.default


@pytest.mark.parametrize(
    ("option", "typed", "offered"),
    [
        ("--engine", "u", ["uring", "uring_cmd"]),
        ("--numa", "", ["auto", "off"]),
        ("--arena", "", []),
        ("--scrub", "o", ["off"]),
    ],
)
def test_a_shell_offers_the_words_of_an_option(option: str, typed: str, offered: list[str]) -> None:
    context = click.Context(serve)
    assert [item.value for item in OPTIONS[option].shell_complete(context, typed)] == offered


def test_a_shell_offers_files_for_a_path() -> None:
    (item,) = OPTIONS["--store"].shell_complete(click.Context(serve), "/var/l")
    assert (item.type, item.value) == ("file", "/var/l")


def test_what_is_left_out_or_empty_is_left_to_the_configuration() -> None:
    nothing: dict[str, Any] = {one.name: () if one.several else None for one in SETTINGS}
    assert fields_of(SETTINGS, nothing) == {}
    assert fields_of(SETTINGS, nothing | {"segment": "", "arena": ""}) == {}


def test_what_is_given_becomes_its_field() -> None:
    given: dict[str, Any] = {one.name: () if one.several else None for one in SETTINGS}
    given |= {"arena": "64MiB", "huge_pages": False, "listen": ("a:1", "b:2"), "numa": "off", "latency_goal": "500us"}
    assert fields_of(SETTINGS, given) == {
        "arena_bytes": 64 * MIB,
        "huge_pages": False,
        "listen": ("a:1", "b:2"),
        "numa": (),
        "latency_goal_us": 500,
    }


@pytest.mark.parametrize("one", BOUND, ids=name_of)
def test_bounds_are_where_they_are_said_to_be(one: Setting) -> None:
    kind: Any = one.kind
    beyond = [kind.most + 1] + [kind.least - 1] * (kind.least > 0)
    beyond = [value for value in beyond if value not in kind.words.values() and value != one.default and value <= BYTES_MAX]
    for value in (kind.least, kind.most):
        one.check(value, 1)
    for value in beyond:
        with pytest.raises(ConfigError) as refused:
            one.check(value, 1)
        said = str(refused.value)
        assert said.startswith(f"{one.name}={kind.text(value)}: must be ")
        assert kind.bound(1) in said
        assert one.remedy in said
    assert beyond or kind.most >= BYTES_MAX


def test_bounds_of_each_shard_count_the_shards() -> None:
    arena = setting_named("arena")
    arena.check(96 * MIB, 3)
    with pytest.raises(ConfigError, match=r"^arena=95 MiB: must be 96 MiB to 24 GiB for 3 shards$"):
        arena.check(95 * MIB, 3)
    with pytest.raises(ConfigError, match=r"must be 32 MiB to 8 GiB for each shard"):
        arena.check(31 * MIB, 0)
    arena.check(16 * 8192 * MIB, 0)


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("shm-ring", 3 * MIB, "a power of two from 64 KiB to 64 MiB"),
        ("segment", 3 * MIB + 1, "a multiple of 1 MiB from 2 MiB to 16 GiB"),
    ],
)
def test_what_else_a_size_has_to_be_is_said(option: str, value: int, why: str) -> None:
    with pytest.raises(ConfigError, match=f"^{option.replace('-', '_')}={exact_bytes(value)}: must be {why}"):
        setting_named(option).check(value, 1)


@pytest.mark.parametrize("one", [one for one in SETTINGS if isinstance(one.kind, Word)], ids=name_of)
def test_a_word_is_one_of_those_that_are_listed(one: Setting) -> None:
    assert isinstance(one.kind, Word)
    for word in one.kind.choices:
        assert one.read(word) == word
    with pytest.raises(ConfigError, match=f"{one.name}=elsewise: must be {one.kind.choices[0]}"):
        one.read("elsewise")


@pytest.mark.parametrize(("option", "text"), [("shards", "two"), ("queue-depth", "1.5"), ("rewrite-share", "much")])
def test_what_is_no_number_is_refused_with_the_bound(option: str, text: str) -> None:
    with pytest.raises(ConfigError, match=r"must be a (whole )?number, \d+ to \d+"):
        setting_named(option).read(text)


@pytest.mark.parametrize("text", ["nan", "1e999", "-0.1"])
def test_a_share_that_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be 0 to 1"):
        setting_named("rewrite-share").read(text)


def test_the_policies_are_those_of_the_store() -> None:
    kind: Any = setting_named("eviction").kind
    assert kind.choices == tuple(_store.policies())


def test_the_native_core_has_the_same_defaults() -> None:
    core = _shard.Config()
    same = {"eviction": "policy", "daily_writes_bytes": "rewrite_bytes_per_day", "discard_rate_bytes": "discard_bytes_per_s"}
    others = {"store", "size_bytes", "numa", "listen", "unix", "require_direct", "metrics", "spdk"}
    others.add("completions")  # a word there, and a truth value in the core
    others.add("scrub_bytes_per_s")  # a store that somebody embeds verifies nothing unasked
    for one in SETTINGS:
        if one.field in others:
            continue
        default = getattr(core, same.get(one.field, one.field))
        default = tuple(default) if isinstance(default, list) else default
        assert default == one.default, one.option
    assert core.numa_auto
    assert core.allow_buffered


@pytest.mark.parametrize("option", ["rdma", "zero-copy"])
def test_what_no_network_card_has_tried_is_off(option: str) -> None:
    assert setting_named(option).default == "off"


@dataclasses.dataclass(frozen=True)
class Core:
    """What the native core takes of a setting: `least` to `most`. below, above: the next values, which it refuses.

    below: None where there is none, or where it stands for the default.
    """

    field: str
    below: float | None
    least: float
    most: float
    above: float


CORE = {
    "arena": Core("arena_bytes", 16 * MIB - 1, 16 * MIB, 8 * GIB, 8 * GIB + 1),
    "connections": Core("connections_max", 0, 1, 65_536, 65_537),
    "latency-goal": Core("latency_goal_us", None, 0, 10_000_000, 10_000_001),
    "queue-depth": Core("queue_depth", 0, 1, 4096, 4097),
    "rewrite-share": Core("rewrite_share", -0.01, 0, 1, 1.01),
    "segment": Core("segment_bytes", MIB, 2 * MIB, 16 * GIB, 16 * GIB + MIB),
    "shards": Core("shards", None, 1, 16, 17),
    "shm-ring": Core("shm_ring_bytes", 32 * KIB, 64 * KIB, 64 * MIB, 128 * MIB),
}
# Where an operator may set less than the core takes: tests and benches of the core go further than what serves well.
NARROWER = {("arena", "least"), ("connections", "least"), ("queue-depth", "most"), ("latency-goal", "least")}


def refusal_of(folder: Path, field: str, value: float) -> str:
    """What the native core says of a small new store with this value; "" = it starts."""
    store = folder / "store.hs"
    config = _shard.Config()
    config.store_path, config.store_bytes = bytes(store), 200 * MIB
    config.listen = [b"127.0.0.1:0"]
    config.arena_bytes, config.huge_pages = 32 * MIB, False
    setattr(config, field, value)
    try:
        _shard.Server(config).stop(0)
    except _shard.StartError as refused:
        return str(refused.args[1])
    finally:
        store.unlink(missing_ok=True)
    return ""


@pytest.mark.parametrize("option", CORE)
def test_the_native_core_refuses_what_lies_beyond_its_bounds(option: str, tmp_path: Path) -> None:
    """The largest arena is not tried: it would take the memory."""
    core, name = CORE[option], setting_named(option).name
    for value in (core.below, core.above):
        if value is not None:
            said = str(value) if isinstance(value, int) else f"{value:f}"
            assert refusal_of(tmp_path, core.field, value).startswith(f"{name}={said}: must be ")
    for value in (core.least, *([core.most] if option != "arena" else [])):
        # A small store has no room for the largest segments, which is said of its size.
        assert not refusal_of(tmp_path, core.field, value).startswith(f"{name}=")


@pytest.mark.parametrize("end", ["least", "most"])
@pytest.mark.parametrize("option", CORE)
def test_bounds_are_those_of_the_native_core_or_named_as_narrower(option: str, end: str) -> None:
    bound, core = getattr(setting_named(option).kind, end), getattr(CORE[option], end)
    if (option, end) in NARROWER:
        assert bound > core if end == "least" else bound < core
    else:
        assert bound == core


def test_native_refusals_call_a_setting_by_its_option() -> None:
    fields = {one.field: one.name for one in SETTINGS if one.field != one.name}
    wrong = []
    for path in sorted((ROOT / "native").rglob("*.cc")):
        names = re.findall(r'"([a-z_]+)="', path.read_text())
        wrong += [f"{path.relative_to(ROOT)}: {name}=, for --{fields[name]}" for name in names if name in fields]
    assert wrong == []


def test_a_target_without_a_socket_is_refused_by_its_form() -> None:
    with pytest.raises(ConfigError, match=r"names no socket; write vhost-user:/run/drive\.sock"):
        ServeConfig(store=Path("vhost-user:")).validated()


@pytest.mark.parametrize("demanded", [{"engine": "uring_cmd"}, {"completions": "polled"}])
def test_what_only_an_nvme_namespace_has_is_refused_of_a_file(tmp_path: Path, demanded: dict[str, str]) -> None:
    name, word = next(iter(demanded.items()))
    with pytest.raises(ConfigError, match=f"{name}={word}: .*store.hs is no NVMe namespace; name one by its character device"):
        ServeConfig(store=tmp_path / "store.hs", **demanded).validated()  # type: ignore[arg-type]
    assert ServeConfig(store=Path("/dev/ng0n1"), size_bytes=1 << 30, **demanded).validated()  # type: ignore[arg-type]


def test_a_namespace_is_claimed_through_its_block_device() -> None:
    assert block_device_of("/dev/ng0n1") == "/dev/nvme0n1"
    assert block_device_of("/dev/ng12n34") == "/dev/nvme12n34"
    for other in ("/dev/nvme0n1", "/dev/ng0", "/var/lib/ng0n1x", "vhost-user:/run/drive.sock"):
        assert block_device_of(other) == other
