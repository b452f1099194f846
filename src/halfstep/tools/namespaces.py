"""`halfstep namespace ls, create, limit, delete` and `halfstep clear`: tenants and their limits; dropping a layout's blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from halfstep.client.coding import NONE, floor_text, floor_units
from halfstep.daemon.units import parse_bytes
from halfstep.errors import ConfigError
from halfstep.tools.options import connected, json_option, print_json, print_table, url_option
from halfstep.tools.streams import say

if TYPE_CHECKING:
    from halfstep import Client, Namespace

_LAYOUT_ID_BYTES = 16


def _bytes(_ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A size as `halfstep serve --size` takes it: 4096, 64MB, 10GiB."""
    try:
        return None if value is None else parse_bytes(value, param.name or "size")
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None


_quota = click.option("--quota", metavar="SIZE", callback=_bytes, help="Bytes of all its blocks at most; 0 = the store's size.")
_pins = click.option(
    "--pin-budget", metavar="SIZE", callback=_bytes, help="Bytes of blocks that may be pinned across restarts; 0 = none."
)
_ttl = click.option(
    "--ttl", "ttl_s", type=click.IntRange(min=0), help="Seconds to live of blocks that are put without a time; 0 = for ever."
)
_sliding = click.option(
    "--sliding/--fixed", default=None, help="Whether --ttl counts from a block's last use, or from its put (the default)."
)
_policy = click.option(
    "--policy",
    metavar="NAME",
    help="Coding of clients that name none: exact, high, balanced, compact, off; none = as they are.",
)
_floor = click.option(
    "--floor", metavar="NAME|STEP", help="The lossiest that may be put: a policy, or a step; none = anything."
)
_name = click.argument("name")


@click.group()
def namespace() -> None:
    """Tenants: who has how much. Changing them takes a connection from the daemon's own host."""


@namespace.command("ls")
@url_option
@json_option
def list_namespaces(url: str, as_json: bool) -> None:
    """List namespaces with their limits and what they use."""
    with connected(url) as client:
        spaces = client.admin.namespaces()
    if as_json:
        print_json([space._asdict() for space in spaces])
        return
    print_table(
        [
            "namespace",
            ("used", "right"),
            ("quota", "right"),
            ("pinned", "right"),
            ("pin budget", "right"),
            ("ttl", "right"),
            "policy",
            "floor",
        ],
        [
            (
                space.name,
                f"{space.used_bytes:,}",
                f"{space.quota_bytes:,}" if space.quota_bytes else "none",
                f"{space.pinned_bytes:,}",
                f"{space.pin_budget_bytes:,}",
                _ttl_text(space),
                space.policy,
                space.floor,
            )
            for space in spaces
        ],
    )


@namespace.command()
@_name
@_quota
@_pins
@_ttl
@_sliding
@_policy
@_floor
@url_option
@json_option
def create(
    name: str,
    quota: int | None,
    pin_budget: int | None,
    ttl_s: int | None,
    sliding: bool | None,
    policy: str | None,
    floor: str | None,
    url: str,
    as_json: bool,
) -> None:
    """Make the namespace NAME. One that is there stays as it is: to ask for other limits is an error."""
    if sliding and not ttl_s:
        raise click.UsageError("--sliding: nothing ends without a TTL; give --ttl SECONDS, at least 1, with it")
    with connected(url) as client:
        client.admin.create_namespace(
            name,
            quota or 0,
            pin_budget_bytes=pin_budget or 0,
            default_ttl_s=ttl_s or 0,
            sliding_ttl=bool(sliding),
            policy=policy,
            floor=floor,
        )
        _refuse_other_limits(client.admin.namespaces(), name, quota, pin_budget, ttl_s, sliding, policy, floor)
        _tell(client.admin.namespaces(), name, as_json=as_json)


@namespace.command()
@_name
@_quota
@_pins
@_ttl
@_sliding
@_policy
@_floor
@url_option
@json_option
def limit(
    name: str,
    quota: int | None,
    pin_budget: int | None,
    ttl_s: int | None,
    sliding: bool | None,
    policy: str | None,
    floor: str | None,
    url: str,
    as_json: bool,
) -> None:
    """Change the limits of the namespace NAME; those that are not named stay.

    Over its new quota it loses its oldest blocks, soon. Over its new pin budget it keeps its pins and takes no more.
    """
    if all(one is None for one in (quota, pin_budget, ttl_s, sliding, policy, floor)):
        raise click.UsageError("nothing to change: give --quota, --pin-budget, --ttl, --sliding, --fixed, --policy or --floor")
    with connected(url) as client:
        client.admin.limit_namespace(
            name,
            quota_bytes=quota,
            pin_budget_bytes=pin_budget,
            default_ttl_s=ttl_s,
            sliding_ttl=sliding,
            policy=policy,
            floor=floor,
        )
        _tell(client.admin.namespaces(), name, as_json=as_json)


@namespace.command()
@_name
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@url_option
@json_option
def delete(name: str, yes: bool, url: str, as_json: bool) -> None:
    """Remove the namespace NAME and all of its blocks, for good."""
    if not yes:
        click.confirm(f"Drop the namespace {name!r} and all of its blocks, for good?", abort=True, err=True)
    with connected(url) as client:
        client.admin.delete_namespace(name)
    if as_json:
        print_json({"namespace": name, "deleted": True})
    else:
        say(f"{name}: deleted")


def _refuse_other_limits(
    spaces: Iterable[Namespace],
    name: str,
    quota: int | None,
    pin_budget: int | None,
    ttl_s: int | None,
    sliding: bool | None,
    policy: str | None,
    floor: str | None,
) -> None:
    for space in spaces:
        if space.name != name:
            continue
        limits = (
            ("quota", quota, space.quota_bytes),
            ("pin-budget", pin_budget, space.pin_budget_bytes),
            ("ttl", ttl_s, space.default_ttl_s),
            ("policy", policy, space.policy),
            ("floor", None if floor is None else floor_text(floor_units(floor)), space.floor),
        )
        for option, asked, there in limits:
            if asked is not None and asked != there:
                raise ConfigError(
                    f"{option}={asked}: namespace {name!r} was there already with {there}, and keeps it; "
                    f"change it with `halfstep namespace limit {name} --{option} {asked}`"
                )
        if sliding is not None and sliding != space.sliding_ttl:
            asked_word, there_word = ("sliding", "fixed") if sliding else ("fixed", "sliding")
            raise ConfigError(
                f"{asked_word}: namespace {name!r} was there already with a {there_word} ttl, and keeps it; "
                f"change it with `halfstep namespace limit {name} --{asked_word}`"
            )


def _ttl_text(space: Namespace) -> str:
    if not space.default_ttl_s:
        return "none"
    return f"{space.default_ttl_s} s{' from the last use' if space.sliding_ttl else ''}"


def _tell(spaces: Iterable[Namespace], name: str, *, as_json: bool) -> None:
    for space in spaces:
        if space.name != name:
            continue
        if as_json:
            print_json(space._asdict())
        else:
            quota = f"{space.quota_bytes:,} bytes" if space.quota_bytes else "none"
            say(f"{name}: quota {quota}, pin budget {space.pin_budget_bytes:,} bytes, default ttl {_ttl_text(space)}")
            if space.policy != NONE or space.floor != NONE:
                say(f"{name}: policy {space.policy}, floor {space.floor}")


@click.command()
@click.argument("layout_id")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@url_option
@json_option
def clear(layout_id: str, yes: bool, url: str, as_json: bool) -> None:
    """Drop all blocks of a layout from the URL's namespace, at once and for good.

    LAYOUT_ID is its 32 hexadecimal digits, or as many of the first ones as tell it apart among the blocks that `ls` shows.
    Clients that use the layout go on with an empty one. Exit status 1 when no block has a layout that begins so.
    """
    if not re.fullmatch(r"[0-9a-fA-F]{4,32}", layout_id):
        raise ConfigError(f"layout id {layout_id!r}: is 4 to 32 hexadecimal digits, as `halfstep ls` shows them")
    with connected(url) as client:
        found = _layouts(client, layout_id.lower())
        if not found:
            say(f"{layout_id}: miss (absent)", err=True)
            raise SystemExit(1)
        if len(found) > 1:
            raise ConfigError(f"layout id {layout_id!r}: {len(found)} layouts begin so: {', '.join(sorted(found))}; give more")
        whole = found.pop()
        if not yes:
            click.confirm(f"Drop all blocks of layout {whole} from {client.namespace!r}, for good?", abort=True, err=True)
        client.admin.clear(bytes.fromhex(whole))
    if as_json:
        print_json({"layout_id": whole, "cleared": True})
    else:
        say(f"{whole}: cleared")


def _layouts(client: Client, prefix: str) -> set[str]:
    """Layout ids that begin so: a whole one as it is, others among those that have blocks."""
    if len(prefix) == 2 * _LAYOUT_ID_BYTES:
        return {prefix}
    return {entry.layout_id.hex() for entry in client.admin.list() if entry.layout_id.hex().startswith(prefix)}
