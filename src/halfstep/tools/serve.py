"""`halfstep serve`: the options of a daemon's settings, to a ServeConfig."""

from __future__ import annotations

from typing import Any

import click

from halfstep.daemon.config import SETTINGS, ServeConfig, store_path
from halfstep.tools.options import json_option
from halfstep.tools.settings import fields_of, setting_options


@click.command()
@setting_options(SETTINGS)
@json_option
def serve(as_json: bool, **given: Any) -> None:
    """Serve a store in the foreground until SIGTERM or Ctrl-C.

    Without arguments: a store in your state directory, made at the first start, on 127.0.0.1:7350 and a unix socket. The first
    lines say what is really in force. With --json they are one JSON object on one line.
    """
    from halfstep.daemon.serve import run

    config = ServeConfig(**{**fields_of(SETTINGS, given), "store": store_path(given["store"])})
    raise SystemExit(run(config, as_json=as_json))
