import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import halfstep
from halfstep.tools import cli
from halfstep.tools.imports import signals_wait

# What Cython makes of a module's start: an exception there is nobody's.
_DROPS_EXCEPTIONS = """
import os, signal
import click

try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass
except KeyboardInterrupt:
    pass

@click.command()
def command():
    click.echo("it ran")
"""


def test_ctrl_c_while_a_command_is_imported_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "drops_exceptions.py").write_text(_DROPS_EXCEPTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(cli.COMMANDS, "dropping", ("drops_exceptions", "command"))
    done = CliRunner().invoke(cli.main, ["dropping"])
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "halfstep: interrupted\n")


# numpy.random drops a Ctrl-C when it is imported; what is asked for would be refused right afterwards.
_NUMPY_DROPS_IT = """
import os, signal, sys
from halfstep.tools.cli import main

class Dropping:
    def find_spec(self, name, path, target=None):
        if name == "numpy.random":
            try:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(1000):
                    pass
            except KeyboardInterrupt:
                pass

assert "numpy.random" not in sys.modules
sys.meta_path.insert(0, Dropping())
main(sys.argv[1:], prog_name="halfstep")
"""


@pytest.mark.parametrize("words", [["--rw", "nothing"], ["device", "--bs", "1"], ["wire", "--bs", "x"]])
def test_ctrl_c_while_a_benchmark_is_imported_ends_it(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", _NUMPY_DROPS_IT, "bench", *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "halfstep: interrupted\n")


def test_a_signal_that_is_ignored_hides_no_other() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, signal.SIG_IGN), signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with signals_wait():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_counts_at_the_end_of_an_import_and_none_is_held_back_afterwards(number: signal.Signals) -> None:
    heard: list[int] = []
    before = signal.signal(number, lambda number, _frame: heard.append(number))
    try:
        with signals_wait():
            os.kill(os.getpid(), number)
            assert heard == []
        assert heard == [number]
        os.kill(os.getpid(), number)
        assert heard == [number, number]
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("module", ["measure", "device_limit"])
def test_nothing_that_drops_exceptions_is_imported_later(module: str) -> None:
    # numpy imports it at its first use otherwise, long after a daemon was started.
    found = f"import sys, halfstep.tools.bench.{module}; print('numpy.random' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", found], capture_output=True, text=True, check=True).stdout == "True\n"


# The first call of each kind, with nobody to ask: an engine's scheduler has no time for imports.
_FIRST_CALLS = """
import sys
import numpy as np
import halfstep
from halfstep.tier import Kind, KVLayout

layout = KVLayout("model", "1", "bfloat16", 16, (Kind("full", (0, 1), 2, (64,)),))
client = halfstep.connect("halfstep://127.0.0.1:1", deadline_ms=200, match_deadline_ms=50)
tier = client.tier(layout, follow_default=False)
memory = tier.memory([[layer] for layer in np.zeros((2, 8, 2, 16, 32), np.uint16)])
prefix = tier.prefix_of([b"one", b"two"])
before = set(sys.modules)
for pending in (prefix.begin_match(hold_ms=100), prefix.begin_get(memory, rows=[3, 1]), prefix.begin_put(memory, rows=[3, 1])):
    pending.result()
prefix.expect().end()
tier.poll()
client.close()
print(*sorted(set(sys.modules) - before))
"""


def test_the_first_calls_of_an_engine_import_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", _FIRST_CALLS], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr[-2000:]


_LOADED = """
import importlib, sys
for module in sys.argv[1].split():
    importlib.import_module(module)
print(*(name for name in ("numpy", "halfstep.client") if name in sys.modules))
import halfstep
assert {"connect", "Client", "__version__"} <= set(dir(halfstep))
assert halfstep.connect is halfstep.client.connect
print(*(name for name in ("numpy", "halfstep.client") if name in sys.modules))
"""


@pytest.mark.parametrize("modules", ["halfstep", "halfstep.daemon.serve halfstep.tools.serve", "halfstep.tools.cli"])
def test_the_client_and_numpy_are_loaded_when_they_are_asked_for(modules: str) -> None:
    done = subprocess.run([sys.executable, "-c", _LOADED, modules], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["", "numpy halfstep.client"]


def test_the_package_has_no_names_but_its_own() -> None:
    with pytest.raises(AttributeError, match="module 'halfstep' has no attribute 'conect'"):
        getattr(halfstep, "conect")  # noqa: B009
