"""Engines of their own environments (`make connectors` makes them), driven from here over pipes."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
from tests.integration.conftest import daemon, shared_daemon  # noqa: F401  fixtures

ROOT = Path(__file__).resolve().parents[2]
HOMES = Path(os.environ.get("HALFSTEP_CONNECTORS", ROOT / "build" / "connectors"))
ENGINES = Path(__file__).resolve().parent / "engines"
VOCABULARY = 512


def interpreter(engine: str) -> str:
    """Of an engine's environment; the test is skipped where there is none."""
    path = HOMES / engine / "bin" / "python"
    if not path.exists():
        pytest.skip(f"{path} is not there; `make connectors` makes it")
    return str(path)


class Engine:
    """One engine process. It ends with its stdin."""

    def __init__(self, log: Path, program: str, *arguments: str, engine: str, env: dict[str, str] | None = None) -> None:
        self.log = log
        reading, writing = os.pipe()
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [interpreter(engine), str(ENGINES / program), *arguments],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                pass_fds=[writing],
                text=True,
                env=os.environ | {"ANSWERS": str(writing)} | (env or {}),
            )
        os.close(writing)
        self._answers = os.fdopen(reading)
        # Of its blocks; without groups.
        self.layout_fields: dict[str, str] = self._read()["layout"]

    def generate(self, prompt: list[int], tokens: int = 24) -> dict[str, Any]:
        """Its answer: tokens, cached, counts."""
        return self._ask({"prompt": prompt, "tokens": tokens})

    def watched(self, prompt: list[int], tokens: int = 24) -> dict[str, Any]:
        """As generate, with `steps`: what each step of the engine's called of ours, by module."""
        return self._ask({"prompt": prompt, "tokens": tokens, "watch": True})

    def generate_all(self, prompts: list[list[int]], tokens: int = 24) -> dict[str, Any]:
        """Answers to prompts that come at once."""
        return self._ask({"prompts": prompts, "tokens": tokens})

    def agreement(self, prompt: list[int], told: list[int]) -> float:
        """Of what another one answered, the share that is the likeliest token here, where all before it is given."""
        share: float = self._ask({"prompt": prompt, "judge": told})["agreement"]
        return share

    def digests(self) -> dict[str, str]:
        """Of the full blocks of the request that ended last, by their keys."""
        found: dict[str, str] = self._ask({"digests": True})["digests"]
        return found

    def pace(self, times: float) -> None:
        """What it computes from now on counts as so many times as long, so that no machine is too quick or too slow."""
        assert self._ask({"pace": times})["pace"] == times

    def reset(self) -> None:
        """It forgets its own caches."""
        assert self._ask({"reset": True})["reset"]

    def end(self) -> None:
        """As an operator ends it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(120) == 0, self.log.read_text()[-4000:]
        self._answers.close()

    def kill(self) -> None:
        """As the power does."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        self._answers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self.process.poll() is None:
            self.end() if kind is None else self.kill()

    def _ask(self, what: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            self.kill()
            raise AssertionError(f"the engine ended:\n{self.log.read_text()[-6000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@pytest.fixture(scope="session")
def models() -> Path:
    """The folder of tiny models."""
    folder = HOMES / "models"
    if not folder.exists():
        pytest.skip(f"{folder} is not there; `make connectors` makes it")
    return folder


@pytest.fixture
def prompts() -> Callable[..., list[list[int]]]:
    """prompts(seed, tails): token ids that share their first 300."""

    def make(seed: int, tails: tuple[int, ...] = (5, 40, 141)) -> list[list[int]]:
        draw = random.Random(seed)
        shared = [draw.randrange(3, VOCABULARY) for _ in range(300)]
        return [shared + [draw.randrange(3, VOCABULARY) for _ in range(tail)] for tail in tails]

    return make
