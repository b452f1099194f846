"""README's own lines, as a reader types them: found in it, and run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.integration.machines import on

PATIENCE_S = 60


def lines_of(readme: str, title: str) -> str:
    """The first shell block of a section."""
    found = re.search(rf"^## {title}\n.*?^```sh\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def snippet_of(readme: str) -> str:
    """The one block of Python."""
    (found,) = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    text: str = found
    return text


def served(command: list[str], environment: dict[str, str], folder: Path) -> subprocess.Popen[str]:
    """Starts a daemon and returns when it listens; whoever has it ends it."""
    one = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder)
    assert one.stdout is not None
    if not any("listening" in line for line in one.stdout):
        one.communicate(timeout=PATIENCE_S)
        raise AssertionError(f"the daemon ended with {one.returncode} before it listened: {command[-1]}")
    return one


def ended(one: subprocess.Popen[str]) -> int:
    """Ends a daemon as systemd does; its exit status."""
    one.terminate()
    one.communicate(timeout=PATIENCE_S)
    return one.returncode


def try_two_machines(readme: str, names: dict[str, str], folder: Path, halfstep: str, environment: dict[str, str]) -> None:
    """The lines of *Two machines* in two namespaces, by address. halfstep: what stands for that word, first on a line."""
    of_node, of_host = lines_of(readme, "Two machines").split("# on the inference host\n")
    (serve,) = (line for line in of_node.splitlines() if line.startswith("halfstep serve"))
    assert "/dev/nvme1n1" in serve, "the drive, of which a file takes the place here"
    serve = serve.replace("/dev/nvme1n1", f"{folder}/store.hs --size 256MiB --unix none")
    serve = re.sub(r"^halfstep ", f"exec {halfstep} ", serve)
    daemon = served(on(names["10.0.0.5"], serve), environment, folder)
    try:
        asked = on(names["10.0.0.8"], re.sub(r"^halfstep ", f"{halfstep} ", of_host, flags=re.MULTILINE))
        done = subprocess.run(
            asked, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment, cwd=folder
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "10.0.0.5" in done.stdout
    finally:
        status = ended(daemon)
    assert status == 0
