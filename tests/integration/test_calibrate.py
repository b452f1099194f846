"""`halfstep calibrate` of a small model of transformers that lies in a folder: its policy codes that model's own cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halfstep.compress.policy import policy_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.integration

PATIENCE_S = 120


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "halfstep.tools.cli", "calibrate", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two layers with random weights, and token ids."""
    config = transformers.Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(3)
    model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.copy_(torch.randn_like(parameter) * (1.5 / parameter.shape[-1] ** 0.5))
    made = tmp_path_factory.mktemp("model")
    model.save_pretrained(made)
    np.save(made / "ids.npy", np.random.default_rng(1).integers(3, 64, 16 * 80))
    return made


def test_a_model_in_a_folder_gets_a_policy_that_is_read_again(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "mine.toml"
    done = command(
        *(folder, "--text", folder / "ids.npy", "--kl", "1e-2", "--windows", "8", "--prefix", "64", "--suffix", "16"),
        *("-o", output, "--json"),
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [(unit["layer"], unit["plane"]) for unit in told["units"]] == [(0, "k"), (0, "v"), (1, "k"), (1, "v")]
    assert told["outcome"] in ("held", "tightened")
    assert told["verified"]["kl"] <= 1e-2
    assert told["predicted"]["kl"] / 2 <= told["verified"]["kl"] <= told["predicted"]["kl"] * 2
    assert told["bits"] < 9
    policy = policy_of(str(output))
    assert (policy.name, policy.hash) == ("mine", told["policy_hash"])
    for unit in told["units"]:
        assert policy.choice(unit["layer"], unit["plane"], layers=2).step == pytest.approx(unit["step"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("{folder}",), "text: none was named; give --text FILE"),
        (("{folder}", "--text", "{folder}/ids.npy", "--prefix", "500"), "has 2 windows of 628 tokens; must be at least 4"),
        (("nothing", "--text", "x"), "model='nothing': must be a folder of transformers, or MODULE:NAME"),
        (("json:nothing", "--text", "x"), "model='json:nothing': module 'json' has no attribute 'nothing'"),
        (("{folder}", "--text", "x", "--kl", "7"), "kl=7: must be 1e-07 to 1 nats a token"),
        (("{folder}", "--text", "x", "--kl", "1", "-o", "p.txt"), "output=p.txt: must end with .toml"),
    ],
)
def test_what_cannot_be_done_is_one_line_with_a_remedy(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    done = command(*(one.format(folder=folder) for one in arguments))
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
