"""`halfstep calibrate`: options to a calibration; its table, JSON, picture and file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from halfstep.errors import ConfigError
from halfstep.tools.options import json_option, print_json, print_table
from halfstep.tools.streams import say

if TYPE_CHECKING:
    from halfstep.compress.calibration import Calibration, Progress


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--text", type=click.Path(path_type=Path), help="Text such as your users send, or an .npy of token ids.")
@click.option("--verify-text", type=click.Path(path_type=Path), help="To verify on.  [default: every second window of --text]")
@click.option("--kl", type=float, metavar="X", help="What the answers may lose, in nats a token.  [default: 0.001]")
@click.option(
    "--agreement", type=float, metavar="Y", help="Instead: the share of tokens whose first choice stays, such as 0.98."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The policy's file, which ends with .toml.")
@click.option("--windows", type=click.IntRange(4, 4096), default=16, show_default=True, help="To solve for; as many to verify.")
@click.option("--prefix", type=click.IntRange(1), default=384, show_default=True, help="Tokens of a window that are stored.")
@click.option("--suffix", type=click.IntRange(1), default=128, show_default=True, help="Tokens of a window that are answered.")
@click.option(
    "--block-tokens", type=click.IntRange(1), default=16, show_default=True, help="Of the blocks that will be stored."
)
@click.option("--picture", type=click.Path(path_type=Path), help="Draw step and loss of each layer into a .png or .svg file.")
@json_option
def calibrate(
    model: str,
    text: Path | None,
    verify_text: Path | None,
    kl: float | None,
    agreement: float | None,
    output: Path | None,
    windows: int,
    prefix: int,
    suffix: int,
    block_tokens: int,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Find the policy with the fewest bits whose loss a model's answers can bear.

    MODEL is a folder of transformers, or MODULE:NAME or FILE.py:NAME of a callable (docs/compression.md). It is run on short
    windows of text, twice for each layer's K and V, and once more with all of them on windows that were not solved for.

    \b
    A policy for a model, and its use
      halfstep calibrate ./model --text chats.txt --kl 1e-3 -o model.toml
      connect(url, policy="model.toml")
    """  # noqa: D301
    from halfstep.compress.calibration import Goal
    from halfstep.compress.calibration import calibrate as solve
    from halfstep.compress.policy import written
    from halfstep.compress.probe import Terms
    from halfstep.tools.calibrate.models import subject_of, windows_of
    from halfstep.tools.picture import check_picture

    goal = Goal(kl=1e-3 if kl is None and agreement is None else kl, agreement=agreement)
    if text is None:
        raise ConfigError(
            "text: none was named; give --text FILE, some 100 KB such as your users send, or an .npy of token ids"
        )
    if picture is not None:
        check_picture(picture, "picture")
    if output is not None and (output.suffix != ".toml" or not output.parent.is_dir()):
        raise ConfigError(f"output={output}: must end with .toml, in a folder that is there")
    subject = subject_of(model, suffix)
    solved, verified = windows_of(subject, text, verify_text, prefix + suffix, windows)
    with _progress() as progress:
        told = solve(
            subject.model,
            solved,
            verified,
            prefix=prefix,
            goal=goal,
            terms=Terms(subject.element, block_tokens),
            batch=subject.batch,
            progress=progress,
        )
    policy = told.policy(output.stem if output else "calibrated", model)
    if output is not None:
        try:
            output.write_text(written(policy))
        except OSError as error:
            raise ConfigError(f"output={output}: {error.strerror or error}") from None
    if picture is not None:
        from halfstep.tools.calibrate.plot import plot

        plot(told, model, picture)
    if as_json:
        print_json(_document(told, policy.hash, output))
        return
    _print(told)
    say(f"written to {output}" if output else "not written; name a file with -o")


@contextmanager
def _progress() -> Iterator[Progress]:
    """Runs of the model on stderr, at a terminal."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("runs of the model"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print(told: Calibration) -> None:
    right = [(name, "right") for name in ("step", "bits", "kl", "error", "law")]
    print_table(
        ["layer", "plane", "codec", *right],
        [
            (
                unit.layer,
                unit.plane,
                unit.choice.codec + (" (breaks the law)" if unit.fragile else ""),
                f"{unit.choice.step:g}" if unit.choice.lossy else "",
                f"{unit.coded.bits:.2f}",
                f"{unit.kl:.1e}",
                f"{unit.coded.relative_error:.3f}",
                "" if unit.law is None else f"{unit.law:.2f}",
            )
            for unit in told.units
        ],
    )
    say(f"{told.bits:.2f} bits a value, {told.ratio:.2f} times smaller; {told.runs} runs of the model")
    say(f"predicted: KL {told.kl:.2e}, agreement {told.agreement:.4f}")
    say(f"on other windows: KL {told.verified.kl:.2e}, agreement {told.verified.agreement:.4f}")
    if told.outcome == "tightened":
        say("the first solution missed the goal on the other windows, and was solved again for less")
    if told.outcome == "exact":
        say("no lossy policy kept the goal on the other windows: all is exact; give more text, or a looser goal")


def _document(told: Calibration, policy_hash: str, output: Path | None) -> dict[str, object]:
    return {
        "goal": {"kl": told.goal.kl, "agreement": told.goal.agreement},
        "outcome": told.outcome,
        "block_tokens": told.terms.block_tokens,
        "predicted": {"kl": told.kl, "agreement": told.agreement},
        "verified": {"kl": told.verified.kl, "agreement": told.verified.agreement, "tokens": told.verified.tokens},
        "bits": told.bits,
        "ratio": told.ratio,
        "runs": told.runs,
        "policy_hash": policy_hash,
        "output": None if output is None else str(output),
        "units": [
            {
                "layer": unit.layer,
                "plane": unit.plane,
                "codec": unit.choice.codec,
                "step": unit.choice.step,
                "bits": unit.coded.bits,
                "kl": unit.kl,
                "probe_kl": unit.probe_kl,
                "law": unit.law,
                "fragile": unit.fragile,
                "error": unit.coded.error,
                "relative_error": unit.coded.relative_error,
            }
            for unit in told.units
        ],
    }
