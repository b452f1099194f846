"""`halfstep mount`: the options of a mount's settings, to a MountConfig."""

from __future__ import annotations

from typing import Any

import click

from halfstep.client.url import Endpoint, namespace_fault
from halfstep.daemon.mount_config import MOUNT_SETTINGS, MountConfig
from halfstep.errors import ConfigError
from halfstep.tools.options import json_option
from halfstep.tools.settings import fields_of, setting_options


@click.command()
@click.argument("url")
@setting_options(MOUNT_SETTINGS)
@json_option
def mount(url: str, as_json: bool, **given: Any) -> None:
    """Serve the blocks of the daemon at URL to this host, with one copy in memory, until SIGTERM or Ctrl-C.

    Engines name the mount's socket, halfstep+unix:///path/to.sock, instead of the daemon. A block that one of them has put or
    got comes from memory for the next. While the daemon is away, what is in memory is served, and the rest is a miss.
    """
    from halfstep.daemon.mount import run

    upstream = Endpoint.parse(url)
    if upstream.transport != "auto":
        raise ConfigError(f"url {url!r}: transport={upstream.transport}: a mount chooses it by itself; leave it out")
    fields = fields_of(MOUNT_SETTINGS, given)
    for name in fields.get("namespaces", ()):
        if problem := namespace_fault(name):
            raise ConfigError(f"namespace={name!r}: {problem}")
    namespaces = dict.fromkeys((upstream.namespace, *fields.pop("namespaces", ())))
    raise SystemExit(run(MountConfig(upstream=upstream.address, namespaces=tuple(namespaces), **fields), as_json=as_json))
