"""Help as a terminal of 80 columns shows it: every command of the tree, whichever there will be."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from halfstep.tools.cli import main

COLUMNS = 80


def commands_of(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command, click.Context]]:
    """(name with its parents', command, its context), the command itself first."""
    yield context.command_path, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None, name
            yield from commands_of(child, child.context_class(child, info_name=name, parent=context))


def tree() -> list[tuple[str, click.Command]]:
    """Every command and sub-command, with the context that its help is asked in."""
    root = main.context_class(main, info_name="halfstep", **main.context_settings)
    return [(path, command) for path, command, _ in commands_of(main, root)]


def help_of(path: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `PATH --help` prints, at 80 columns."""
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    return rendered(path.split()[1:])


def rendered(arguments: list[str]) -> str:
    from click.testing import CliRunner

    done = CliRunner().invoke(main, [*arguments, "--help"], prog_name="halfstep")
    assert done.exit_code == 0, done.output
    return done.output


PATHS = [path for path, _ in tree()]
COMMANDS = dict(tree())


def test_the_whole_tree_is_walked() -> None:
    assert {"halfstep", "halfstep serve", "halfstep namespace limit", "halfstep bench device"} <= set(PATHS)


@pytest.mark.parametrize("path", PATHS)
def test_help_fits_a_terminal_of_80_columns(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    too_long = [line for line in help_of(path, monkeypatch).splitlines() if len(line) > COLUMNS]
    assert too_long == []


@pytest.mark.parametrize("path", PATHS)
def test_help_shows_examples_line_by_line(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A paragraph after a line of \\b is printed as it was typed; nothing of the mark itself is."""
    shown = help_of(path, monkeypatch)
    assert "\b" not in shown
    assert r"\b" not in shown
    lines = {line.strip() for line in shown.splitlines()}
    text = COMMANDS[path].help or ""
    assert r"\b" not in text, "a raw docstring has no mark that click knows"
    for paragraph in text.split("\n\n"):
        if paragraph.lstrip().startswith("\b"):
            for line in paragraph.strip("\b \n").splitlines():
                assert line.strip() in lines, line


@pytest.mark.parametrize("path", PATHS)
def test_help_of_every_command_says_what_it_does(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = help_of(path, monkeypatch)
    assert shown.startswith(f"Usage: {path} ")
    summary = (COMMANDS[path].help or "").split()
    assert summary, "a command without a word of help"
    assert summary[0] in shown
