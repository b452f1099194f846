"""`halfstep`: the command line. Each command lives in its own module and is imported only when it is asked for."""

from __future__ import annotations

import errno
import importlib
import sys
from typing import Any

try:
    import click
except ModuleNotFoundError:  # the client's wheel needs numpy alone
    sys.exit("halfstep: the command line needs click and rich; pip install 'halfstep[cli]'")

from halfstep.errors import HalfstepError
from halfstep.tools.imports import signals_wait

# Name -> (module, function). Importing the daemon or rich for `halfstep match` would cost more than the match.
COMMANDS = {
    "serve": ("halfstep.tools.serve", "serve"),
    "check": ("halfstep.tools.check", "check"),
    "fsck": ("halfstep.tools.fsck", "fsck"),
    "stat": ("halfstep.tools.stat", "stat"),
    "ls": ("halfstep.tools.blocks", "ls"),
    "explain": ("halfstep.tools.explain", "explain"),
    "put": ("halfstep.tools.blocks", "put"),
    "get": ("halfstep.tools.blocks", "get"),
    "rm": ("halfstep.tools.blocks", "rm"),
    "match": ("halfstep.tools.blocks", "match"),
    "clear": ("halfstep.tools.namespaces", "clear"),
    "namespace": ("halfstep.tools.namespaces", "namespace"),
    "bench": ("halfstep.tools.bench", "bench"),
    "replay": ("halfstep.tools.replay", "replay"),
    "completion": ("halfstep.tools.completion", "completion"),
}

# Exit statuses that scripts may rely on; 2 is click's for wrong usage, 1 that of a command which saw a miss.
EXIT_ERROR, EXIT_INTERRUPTED = 3, 130


class LazyGroup(click.Group):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's signature
        """In the order of COMMANDS: the life of a daemon, then of a block."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 -- click's signature
        """The command, imported."""
        if cmd_name not in COMMANDS:
            return None
        module, function = COMMANDS[cmd_name]
        with signals_wait():
            command: click.Command = getattr(importlib.import_module(module), function)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Every error of ours is one line and an exit status, never a trace."""
        try:
            return super().invoke(ctx)
        except HalfstepError as error:
            click.echo(f"halfstep: {error}", err=True)
            ctx.exit(EXIT_ERROR)
        except KeyboardInterrupt:
            # click's own answer is 1, which here means a miss.
            click.echo("halfstep: interrupted", err=True)
            ctx.exit(EXIT_INTERRUPTED)
        except click.Abort as refusal:
            # A question that got no answer: Ctrl-C, or a standard input that has none.
            interrupted = isinstance(refusal.__context__, KeyboardInterrupt)
            click.echo(
                "\nhalfstep: interrupted" if interrupted else "\nhalfstep: not confirmed, so nothing was changed", err=True
            )
            ctx.exit(EXIT_INTERRUPTED if interrupted else EXIT_ERROR)
        except OSError as error:
            # A reader that went away (`| head`) is no error: click ends without a word.
            if error.errno == errno.EPIPE:
                raise
            click.echo(f"halfstep: {f'{error.filename}: ' if error.filename else ''}{error.strerror or error}", err=True)
            ctx.exit(EXIT_ERROR)


def _print_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from halfstep import build_info

    info = build_info()
    # A debug or sanitizer build must never be mistaken for the real thing, least of all in a benchmark.
    build = "" if info["build"] == "release" else f" ({info['build']} build)"
    click.echo(f"halfstep {info['version']}{build}, commit {info['commit']}")
    ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Version and build.")
def main() -> None:
    r"""Halfstep keeps the KV cache of large language models on flash: verified bytes, in time, or an honest miss.

    \b
    On a flash node:     halfstep serve
    Is it all right?     halfstep check; of a stopped store: halfstep fsck
    What is in it?       halfstep stat, halfstep ls
    Why is it (not)?     halfstep explain
    Who has how much?    halfstep namespace ls
    How fast is it?      halfstep bench
    What would it hit?   halfstep replay

    A daemon is named by a URL: halfstep://host:7350/namespace, or halfstep+unix:///path/to.sock. Without one, commands take
    $HALFSTEP_URL, then halfstep://127.0.0.1:7350/default.

    \b
    Exit status: 0 done; 1 an honest miss or a failed check; 2 wrong usage; 3 an error, named on one line; 130 interrupted.
    """


if __name__ == "__main__":
    main(prog_name="halfstep")
