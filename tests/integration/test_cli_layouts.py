"""`halfstep layout`: what a model's KV cache takes, from its config.json, without a daemon."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from tests.integration.commands import Run, error_of

pytestmark = pytest.mark.integration

CONFIGS = Path(__file__).parents[1] / "unit" / "configs"
CONFIG_NAMES = {path.stem for path in CONFIGS.iterdir()}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("llama-3-70b", "a token  327,680 bytes (320.0 KiB)"),
        ("llama-3.1-405b", "a token  516,096 bytes (504.0 KiB)"),
        ("deepseek-v3", "a token  70,272 bytes (68.6 KiB)"),
    ],
)
def test_layout_show_tells_bytes_and_capacity(run: Run, nobody: str, name: str, told: str) -> None:
    done = run("layout", "show", CONFIGS / f"{name}.json", url=nobody)
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode().splitlines()
    assert lines[0] == f"{name}: bfloat16, blocks of 16 tokens"
    assert told in lines
    assert not any(line.startswith("layout ") for line in lines), "an id without a revision would name other blocks"


def test_layout_show_takes_a_folder_and_tells_programs_all(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "the-model"
    folder.mkdir()
    (folder / "config.json").write_bytes((CONFIGS / "deepseek-v4-flash.json").read_bytes())
    told = json.loads(run("layout", "show", folder, "--json", "--block-tokens", "256", "--revision", "r1").stdout)
    assert (told["model"], told["dtype"], told["block_tokens"]) == ("the-model", "bfloat16", 256)
    assert [kind["name"] for kind in told["kinds"]] == ["sliding", "compressed-4", "indexer-4", "compressed-128"]
    assert told["token_bytes"] == sum(kind["token_bytes"] for kind in told["kinds"]) == 50_261
    assert told["block_bytes"] == 256 * told["token_bytes"]
    assert told["tokens_per_tib"] == (1 << 40) // told["block_bytes"] * 256
    assert told["remarks"]
    assert len(bytes.fromhex(told["layout_id"])) == 16
    other = json.loads(run("layout", "show", folder, "--json", "--block-tokens", "256", "--revision", "r2").stdout)
    assert other["layout_id"] != told["layout_id"]
    assert "layout_id" not in json.loads(run("layout", "show", folder, "--json").stdout)


def test_layout_show_reads_a_pipe_once(run: Run, tmp_path: Path) -> None:
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=[(CONFIGS / "llama-3-70b.json").read_bytes()], daemon=True)
    writer.start()
    assert json.loads(run("layout", "show", pipe, "--json").stdout)["token_bytes"] == 327_680


def test_layout_show_cuts_cells(run: Run) -> None:
    arguments = ("layout", "show", CONFIGS / "llama-3-70b.json", "--grid-heads", "8", "--grid-layers", "2", "--dtype", "fp8")
    (kind,) = json.loads(run(*arguments, "--json").stdout)["kinds"]
    assert (kind["cells"], kind["cell_parts"], kind["planes"]) == (16, 80, [128, 128])
    assert kind["block_bytes"] == 16 * kind["cell_bytes"] == 2_621_440
    assert "fp8_e4m3, blocks of 16 tokens, 8 head x 2 layer cells" in run(*arguments).stdout.decode()


@pytest.mark.parametrize(
    ("text", "arguments", "told"),
    [
        (None, (), "No such file or directory"),
        ("", (), "is no JSON"),
        ("{", (), "is no JSON"),
        ("\x00", (), "is no JSON"),
        ("[" * 100_000, (), "is no JSON"),
        ("[]", (), "holds a list, not an object"),
        ("{}", (), "model_type: is missing"),
        ('{"model_type": "rwkv"}', (), "model_type='rwkv': not covered"),
        ("llama-3-70b", ("--grid-heads", "3"), "8 heads, which do not fall into 3 equal cells"),
        ("llama-3-70b", ("--grid-layers", "0"), "both must be at least 1"),
        ("llama-3-70b", ("--block-tokens", "0"), "block_tokens=0: must be at least 1"),
        ("llama-3-70b", ("--block-tokens", "1000000"), "a block has at most"),
        ("llama-3-70b", ("--dtype", "int4"), "dtype='int4': must be one of"),
        ("llama-3-70b", ("--model", ""), "model='': must be said"),
        ("llama-3-70b", ("--revision", ""), "weights_revision='': must be said"),
        ("gpt-oss-120b", (), "dtype, torch_dtype: neither is there; give the cache's dtype"),
    ],
)
def test_layout_show_names_what_is_wrong(
    run: Run, tmp_path: Path, text: str | None, arguments: tuple[str, ...], told: str
) -> None:
    path = tmp_path / "config.json"
    if text in CONFIG_NAMES:
        path = CONFIGS / f"{text}.json"
    elif text is not None:
        path.write_text(text)
    assert told in error_of(run("layout", "show", path, *arguments))


def test_layout_show_reads_no_file_without_end(run: Run) -> None:
    assert "which no config.json has" in error_of(run("layout", "show", "/dev/zero"))
    assert run("layout", "show").returncode == 2
