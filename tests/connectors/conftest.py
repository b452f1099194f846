"""Engines of their own environments (`make connectors` makes them), driven from here over pipes."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
from tests.connectors.nurseries import nursery
from tests.integration.conftest import daemon, own_daemon, shared_daemon  # noqa: F401  fixtures

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

    def __init__(
        self,
        log: Path,
        program: str,
        *arguments: str,
        engine: str,
        imports: dict[str, str] | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        """imports: variables that have to be there when the engine is imported; env: others."""
        self.log = log
        forks = nursery(engine, interpreter(engine), imports or {})
        theirs, asking = os.pipe()
        reading, writing = os.pipe()
        self._asking, self._answers = os.fdopen(asking, "w"), os.fdopen(reading)
        try:
            with log.open("ab") as file:
                self.process = forks.fork(program, arguments, env or {}, [theirs, writing, file.fileno()])
        finally:
            for one in (theirs, writing):
                os.close(one)
        said = self._read()
        # Of its blocks; without groups.
        self.layout_fields: dict[str, str] = said["layout"]
        # Its file of host memory, in /dev/shm; "" = it has none.
        self.rows: str = said.get("rows", "")

    def generate(self, prompt: list[int], tokens: int = 24, **more: str | int) -> dict[str, Any]:
        """Its answer: tokens, cached, counts. more: salt, lora, image, see the programs."""
        return self._ask({"prompt": prompt, "tokens": tokens} | more)

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

    def reset(self, *, connector: bool = False) -> None:
        """It forgets its own caches. connector: and what its connector has stored, as after new weights."""
        assert self._ask({"reset": True} | ({"connector": True} if connector else {}))["reset"]

    def end(self) -> None:
        """As an operator ends it."""
        self._asking.close()
        code = self.process.wait(120)
        self._answers.close()
        self.process.close()
        assert code == 0, self.log.read_text()[-4000:]

    def kill(self) -> None:
        """As the power does."""
        self.process.kill()
        self.process.wait()
        self._asking.close()
        self._answers.close()
        self.process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if not self._asking.closed:
            self.end() if kind is None else self.kill()

    def _ask(self, what: dict[str, Any]) -> dict[str, Any]:
        self._asking.write(json.dumps(what) + "\n")
        self._asking.flush()
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
