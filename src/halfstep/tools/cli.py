"""`halfstep`: the command line. Each command lives in its own module and is imported only when it is asked for."""

from __future__ import annotations

import errno
import importlib
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

try:
    import click
except ModuleNotFoundError:  # the client's wheel needs numpy alone
    sys.stderr.write("halfstep: the command line needs click and rich; in the checkout of Halfstep: pip install '.[cli]'\n")
    sys.exit(3)

from halfstep.errors import HalfstepError
from halfstep.tools.imports import signals_wait
from halfstep.tools.streams import flush_standard, open_standard, say

# Name -> (module, function). Importing the daemon or rich for `halfstep match` would cost more than the match.
COMMANDS = {
    "serve": ("halfstep.tools.serve", "serve"),
    "mount": ("halfstep.tools.mount", "mount"),
    "check": ("halfstep.tools.check", "check"),
    "doctor": ("halfstep.tools.doctor", "doctor"),
    "device": ("halfstep.tools.device", "device"),
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
    "plan": ("halfstep.tools.plan", "plan_command"),
    "layout": ("halfstep.tools.layouts", "layout"),
    "size": ("halfstep.tools.size", "size"),
    "compress": ("halfstep.tools.compress", "compress"),
    "calibrate": ("halfstep.tools.calibrate", "calibrate"),
    "bench": ("halfstep.tools.bench", "bench"),
    "replay": ("halfstep.tools.replay", "replay"),
    "effect": ("halfstep.tools.effect", "effect"),
    "completion": ("halfstep.tools.completion", "completion"),
}

# Exit statuses that scripts may rely on; 2 is click's for wrong usage, 1 that of a command which saw a miss.
EXIT_ERROR, EXIT_INTERRUPTED = 3, 130


class EndedCommand(Exception):
    """Ctrl-C or a refusal of the kernel on its way past click, which would end the process with 1, a miss."""


@contextmanager
def _past_click() -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, OSError) as error:
        raise EndedCommand from error


class LazyGroup(click.Group):
    """A group whose commands are imported on use. They end with a status and a line at most, never a trace."""

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

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """As click's, which prints --help and --version meanwhile."""
        with _past_click():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """As click's, but it does not hear how the command ended."""
        with _past_click():
            return super().invoke(ctx)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Runs the command line and ends the process, unless standalone_mode is off."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            open_standard()
            ended = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            status = ended if isinstance(ended, int) else 0
        except SystemExit as ending:
            status = ending.code if isinstance(ending.code, int) else 0 if ending.code is None else EXIT_ERROR
        except BaseException as error:  # of the process
            status = _told(error)
        return _end(status)


def _end(status: int) -> NoReturn:
    """What was printed is written, or the command has failed: whoever reads it would take the rest for the whole."""
    refused = flush_standard()
    if refused is not None and status != EXIT_ERROR:
        status = _told(refused)
        flush_standard()
    sys.exit(status)


def _told(error: BaseException) -> int:
    """Says what ended a command, on one line of stderr; the exit status."""
    if isinstance(error, EndedCommand):
        return _told(error.__cause__ or error)
    if isinstance(error, click.ClickException):
        with suppress(OSError, ValueError):
            error.show()
        return error.exit_code
    if isinstance(error, click.Abort):
        # A question that got no answer: Ctrl-C, or a standard input that has none.
        interrupted = isinstance(error.__context__, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt)
        say("\nhalfstep: interrupted" if interrupted else "\nhalfstep: not confirmed, so nothing was changed", err=True)
        return EXIT_INTERRUPTED if interrupted else EXIT_ERROR
    if isinstance(error, KeyboardInterrupt):
        say("halfstep: interrupted", err=True)
        return EXIT_INTERRUPTED
    # A reader that went away (`| head`) knows it.
    if not (isinstance(error, OSError) and error.errno == errno.EPIPE):
        # What was typed stands in it, line ends and a terminal's own signs, too.
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in _sentence(error))
        say(f"halfstep: {line}", err=True)
    return EXIT_ERROR


def _sentence(error: BaseException) -> str:
    if isinstance(error, HalfstepError):
        return str(error)
    if isinstance(error, OSError):
        return f"{f'{error.filename}: ' if error.filename else ''}{error.strerror or error}"
    if isinstance(error, MemoryError):
        return "out of memory; raise the limit of this process (ulimit -v, MemoryMax=) or ask for less"
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("halfstep"):
        return f"{error.name} is not installed; in the checkout of Halfstep: pip install '.[cli]'"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"an error of Halfstep itself{where}: {type(error).__name__}: {' '.join(str(error).split())}; please report it"


def _print_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from halfstep import build_info

    info = build_info()
    # A debug or sanitizer build must never be mistaken for the real thing, least of all in a benchmark.
    build = "" if info["build"] == "release" else f" ({info['build']} build)"
    say(f"halfstep {info['version']}{build}, commit {info['commit']}")
    ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "-V", "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Version and build."
)
def main() -> None:
    """Halfstep keeps the KV cache of large language models on flash: verified bytes, in time, or an honest miss.

    \b
    On a flash node:     halfstep serve
    On a host of it:     halfstep mount
    Is it all right?     halfstep check; of a stopped store: halfstep fsck
    What is wrong here?  halfstep doctor
    Which drives?        halfstep device list
    What is in it?       halfstep stat, halfstep ls
    Why is it (not)?     halfstep explain
    Who has how much?    halfstep namespace ls
    Fetch, or compute?   halfstep plan
    What takes a token?  halfstep layout show
    How large a node?    halfstep size
    How lossy may it be? halfstep calibrate
    How fast is it?      halfstep bench
    What would it hit?   halfstep replay
    What did it spare?   halfstep effect

    A daemon is named by a URL: halfstep://host:7350/namespace, or halfstep+unix:///path/to.sock. Without one, commands take
    $HALFSTEP_URL, then halfstep://127.0.0.1:7350/default.

    \b
    Exit status:
      0    done
      1    an honest miss, a failed check, or findings
      2    wrong usage
      3    an error, named on one line
      130  interrupted
    """  # noqa: D301


if __name__ == "__main__":
    main(prog_name="halfstep")
