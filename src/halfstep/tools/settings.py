"""A daemon's settings (daemon.config) as options of the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from halfstep.daemon.setting import Setting, Switch, Word

F = TypeVar("F", bound=Callable[..., Any])


class SettingType(click.ParamType):  # type: ignore[type-arg]  # before click 8.3 it takes none
    """Texts as they were typed: the setting reads them, and refuses them in its own words."""

    def __init__(self, setting: Setting) -> None:
        self.name = setting.kind.unit.lower()
        self.setting = setting

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        """As it is."""
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """The words that there are; files for a path."""
        if self.setting.kind.unit == "PATH":
            return [CompletionItem(incomplete, type="file")]
        words = (*(self.setting.kind.choices if isinstance(self.setting.kind, Word) else ()), *self.setting.kind.words)
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def plain(markdown: str) -> str:
    """Without the marks of code and emphasis."""
    return markdown.replace("`", "").replace("*", "")


def setting_option(setting: Setting) -> Callable[[F], F]:
    """`--name UNIT`, with default and bound in its help. What is left out is None, or () of what may be given again."""
    about = [f"default: {setting.default_text}"] if not isinstance(setting.kind, Switch) or setting.default else []
    about += [setting.bound_text] if setting.bound_text else []
    text = plain("  ".join([setting.help, *(f"[{one}]" for one in about)]))
    if isinstance(setting.kind, Switch):
        named = f"--{setting.option}" + (f"/--{setting.kind.off}" if setting.kind.off else "")
        return click.option(named, setting.name, is_flag=True, default=None, help=text)
    return click.option(
        f"--{setting.option}",
        setting.name,
        type=SettingType(setting),
        multiple=setting.several,
        metavar=setting.kind.unit,
        help=text,
    )


def setting_options(settings: Sequence[Setting]) -> Callable[[F], F]:
    """All of them, in this order."""

    def with_options(function: F) -> F:
        for one in reversed(settings):
            function = setting_option(one)(function)
        return function

    return with_options


def fields_of(settings: Sequence[Setting], given: dict[str, Any]) -> dict[str, Any]:
    """Fields of the configuration for what was given by these options; an empty text is left out. Errors: ConfigError."""
    fields: dict[str, Any] = {}
    for one in settings:
        value = given[one.name]
        if value is None or value in ("", ()):
            continue
        if isinstance(value, tuple):
            fields[one.field] = tuple(one.read(text) for text in value)
        else:
            fields[one.field] = value if isinstance(value, bool) else one.read(value)
    return fields
