"""`halfstep completion SHELL`: the line that teaches a shell our commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from halfstep.tools.streams import say


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash:  halfstep completion bash > \\
             ~/.local/share/bash-completion/completions/halfstep
    zsh:   halfstep completion zsh > "${fpath[1]}/_halfstep"
    fish:  halfstep completion fish > ~/.config/fish/completions/halfstep.fish
    """  # noqa: D301
    from halfstep.tools.cli import main

    made = get_completion_class(shell)
    assert made is not None, f"click knows {shell}"
    say(made(main, {}, "halfstep", "_HALFSTEP_COMPLETE").source())
