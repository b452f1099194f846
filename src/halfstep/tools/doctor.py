"""`halfstep doctor`: what is wrong with this host, with a daemon and with the path to it, and what to do."""

from __future__ import annotations

import os
import sys
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from halfstep.daemon.config import setting_named
from halfstep.errors import ConfigError, HalfstepError
from halfstep.tools.options import URL_VARIABLE, connected, json_option, print_json, print_table
from halfstep.tools.streams import say

if TYPE_CHECKING:
    from halfstep.doctor.case import Answer, Case
    from halfstep.doctor.examine import Report
    from halfstep.doctor.finding import Finding
    from halfstep.doctor.host import Host

EXIT_FOUND = 1
COLUMNS = 80
# How long the daemon has for its numbers: one that hangs is a finding, and nobody waits half a minute for it.
ASK_MS = 5000
# Options of `serve` that checks go by.
SETTINGS = ("store", "arena", "rdma")


@click.command()
@click.argument("url", required=False)
@click.option("-u", "--url", "url_named", metavar="URL", help="The same as URL.")
@click.option("--store", metavar="PATH", help="Where the store is, or is to be: file, directory or block device.")
@click.option("--arena", metavar="BYTES", help="The arena that is to be, such as 4GiB.")
@click.option("--rdma", metavar="WORD", help="auto or off: whether RDMA is wanted.")
@click.option("--gpu", is_flag=True, help="Look at GPUs, too, and at what GPUDirect needs.")
@click.option("--ignore", metavar="ID", multiple=True, help="A finding that does not count. May be given again.")
@json_option
def doctor(
    url: str | None,
    url_named: str | None,
    store: str | None,
    arena: str | None,
    rdma: str | None,
    gpu: bool,
    ignore: tuple[str, ...],
    as_json: bool,
) -> None:
    """Look at this host, at the daemon behind URL and at the path to it; say what is wrong, why, and the remedy.

    It goes by the settings of the daemon that runs here, else of the systemd unit, else by the defaults; --store, --arena and
    --rdma replace them. Without URL, and without $HALFSTEP_URL, it asks the daemon of this host. It changes nothing.

    Run it as the daemon's user or as root: what this user may not see is listed as skipped. docs/doctor.md lists all findings.

    Exit status: 0 nothing found; 1 findings; 2 wrong usage; 3 an error.
    """
    from halfstep.doctor.examine import all_rules, examine
    from halfstep.doctor.host import Host

    if url is not None and url_named is not None:
        raise click.UsageError("the URL is given twice: as an argument and with --url")
    known = {rule.id for _, rule in all_rules()}
    if unknown := sorted(set(ignore) - known):
        raise click.UsageError(f"--ignore {unknown[0]}: there is no such finding; docs/doctor.md lists them")
    given = {"store": store, "arena": arena, "rdma": rdma}
    host = Host()
    case = _case(host, url or url_named, {name: text for name, text in given.items() if text is not None}, gpu=gpu)
    report = examine(host, case, frozenset(ignore))
    if as_json:
        print_json({**_about(host, case), **report.as_json()})
    else:
        _print(host, case, report)
    if report.findings:
        sys.exit(EXIT_FOUND)


def _case(host: Host, url: str | None, given: dict[str, str], *, gpu: bool) -> Case:
    """Errors: ConfigError, of an option or a URL that cannot be."""
    from halfstep.client.url import Endpoint
    from halfstep.doctor.case import case_of, url_of

    words = []
    for option, text in given.items():
        setting = setting_named(option)
        if not text:
            raise ConfigError(f"{option}='': is empty; give a value, or leave it out")
        setting.read(text)
        words.append(f"--{option}={text}")
    named = url or os.environ.get(URL_VARIABLE) or None
    found = case_of(host, words, Endpoint.parse(named).first_address if named else None, gpu=gpu)
    asked = named or url_of(host, found)
    return (
        found
        if asked is None
        else found.with_answer(replace(_ask(asked, Endpoint.parse(asked).first_address), by_user=named is not None))
    )


def _ask(url: str, address: str) -> Answer:
    from halfstep.client.entries import totals_of
    from halfstep.doctor.case import Answer

    try:
        with connected(url, call_ms=ASK_MS) as client:
            shards = client.admin.stat_by_shard()
            return Answer(url, address, "", client.path, totals_of(shards.values()), len(shards), client.facts())
    except HalfstepError as error:
        return Answer(url, address, str(error))


def _about(host: Host, case: Case) -> dict[str, object]:
    """What the report is of."""
    from halfstep import build_info

    build = build_info()
    about: dict[str, object] = {
        "host": host.kernel.name(),
        "kernel": host.kernel.release(),
        "version": build["version"],
        "commit": build["commit"],
        "settings": case.source,
        "store": str(case.config.store),
        "daemon_pid": case.daemon.pid if case.daemon is not None else None,
        "url": case.answer.url if case.answer is not None else None,
    }
    return about


def _print(host: Host, case: Case, report: Report) -> None:
    about = _about(host, case)
    say(f"host      {about['host']}, Linux {about['kernel']}; halfstep {about['version']}, commit {about['commit']}")
    say(f"settings  of {about['settings']}")
    say(f"store     {about['store']}")
    say(f"daemon    {about['url'] or 'none was asked'}")
    if report.passed:
        say("\nLooked at, and well:")
        print_table(["check", "seen"], [(one.check, seen) for one, seen in report.passed])
    if report.skipped:
        say("Not looked at:")
        # What has one reason stands on one line.
        together: dict[str, list[str]] = {}
        for one in report.skipped:
            together.setdefault(one.why_skipped, []).append(one.check)
        print_table(["why", "checks"], [(why, ", ".join(checks)) for why, checks in together.items()])
    if ignored := sorted({finding.id for one in report.outcomes for finding in one.findings} & report.ignored):
        say(f"Ignored: {', '.join(ignored)}\n")
    looked = f"{_counted(len(report.looked), 'check')} found nothing, {len(report.skipped)} did not look"
    if not report.findings:
        say(f"No findings; {looked}.")
        return
    say("Findings:")
    print_table(
        ["finding", "severity", "found"], [(finding.id, finding.severity, finding.value) for _, finding in report.findings]
    )
    for _, finding in report.findings:
        _print_finding(finding)
    errors = sum(finding.severity == "error" for _, finding in report.findings)
    say(f"{_counted(errors, 'error')}, {_counted(len(report.findings) - errors, 'warning')}; {looked}.")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _print_finding(finding: Finding) -> None:
    say(f"{finding.id}")
    fill = textwrap.TextWrapper(COLUMNS, initial_indent="  ", subsequent_indent=" " * 10, break_on_hyphens=False).fill
    for title, text in (("should", finding.bound), ("why", finding.reason)):
        say(fill(f"{title:<8}{text}"))
    # On one line, however long: it holds what is to be copied.
    say(f"  {'remedy':<8}{finding.remedy}\n")
