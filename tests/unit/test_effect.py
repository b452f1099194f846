"""`halfstep effect` and wrong input: each is an error with its remedy, or is said. And how records are written."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from halfstep import record
from halfstep.client.recorder import Recorder
from halfstep.errors import ConfigError
from halfstep.record import Line, RecordFile, decoded, encoded
from halfstep.tools.cli import main
from halfstep.tools.effect.figures import DAEMON_COUNTERS
from halfstep.tools.effect.records import read
from halfstep.tools.effect.sampling import Sampler
from halfstep.tools.effect.spans import duration_of, time_of

NOON_S = 1_772_452_800.0  # 2 March 2026, 12:00 UTC


def line(time_s: float = NOON_S, first: bool = True, process: str = "p", **counters: float) -> Line:
    return Line("client", process, time_s, first, "default", "on", counters)


def write(folder: Path, *lines: Line, name: str = "client-p", tail: bytes = b"") -> Path:
    path = folder / f"{name}.jsonl"
    path.write_bytes(b"".join(map(encoded, lines)) + tail)
    return path


def refused(folder: Path, *arguments: str) -> str:
    """The one line that the error is."""
    done = CliRunner().invoke(main, ["effect", "--records", str(folder), *arguments])
    assert (done.exit_code, done.stdout) == (3, ""), done.output
    assert done.stderr.startswith("halfstep: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


# ---- wrong input ----


def test_an_empty_folder_says_how_to_fill_it(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no record\n")
    said = refused(tmp_path)
    assert f"set HALFSTEP_RECORD={tmp_path} in the environment of engines" in said


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert f"records={tmp_path}/none: there is no such folder" in refused(tmp_path / "none")


def test_no_folder_at_all_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(record.VARIABLE, raising=False)
    done = CliRunner().invoke(main, ["effect"])
    assert (done.exit_code, "name one with --records, or in $HALFSTEP_RECORD" in done.stderr) == (3, True)


def test_a_torn_last_line_is_left_out_and_said(tmp_path: Path) -> None:
    whole = encoded(line(NOON_S + 1, first=False, lookups=9))
    write(tmp_path, line(lookups=5), tail=whole[:-1])
    done = CliRunner().invoke(main, ["effect", "--records", str(tmp_path), "--json"])
    told = json.loads(done.stdout)
    assert told["spans"]["span"]["all"]["lookups"] == 5, "a line without its end may lack digits, too"
    assert "client-p.jsonl: its last line is torn" in told["remarks"][-1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"halfstep_record":1,"sour\n', "is no JSON; only a file's last line may be torn"),
        (b"[1]\n", 'has no "halfstep_record"; move files that are no records'),
        (b"\xff\xfe\n", "is no JSON"),
        (encoded(line()).replace(b'record":1', b'record":2'), "halfstep_record=2: this build reads 1"),
        (encoded(line()).replace(b'"first"', b'"colour":"red","first"'), "field 'colour' is unknown; version 1 has source"),
        (encoded(line()).replace(b'"first":true,', b""), "field 'first' is missing; remove the line"),
        (encoded(line()).replace(b'"on"', b"7"), "mode='7': must be a text"),
        (encoded(line()).replace(b"client", b"cloud"), "source='cloud': must be client or daemon"),
        (encoded(line(lookups=1)).replace(b'"lookups":1', b'"lookups":-1'), "must be numbers of 0 or more, by name"),
        (encoded(line(lookups=1)).replace(b'"lookups":1', b'"lookups":NaN'), "must be numbers of 0 or more, by name"),
        (encoded(line(lookups=1)).replace(b'"lookups":1', b'"lookups":true'), "must be numbers of 0 or more, by name"),
        (encoded(line(lookups=1)).replace(b'"lookups":1', b'"lookups":1e308'), "by name, up to 1e18"),
        (
            encoded(line(7)).replace(b'"time_s":7', b'"time_s":1' + b"0" * 400),
            "must be seconds since 1970, before the year 9999",
        ),
        (encoded(line(7)).replace(b'"time_s":7', b'"time_s":1e300'), "must be seconds since 1970, before the year 9999"),
        (encoded(line(7)).replace(b'"time_s":7', b'"time_s":1e12'), "must be seconds since 1970, before the year 9999"),
    ],
)
def test_a_line_that_is_none_is_named_with_its_place(tmp_path: Path, text: bytes, why: str) -> None:
    path = write(tmp_path, line())
    path.write_bytes(path.read_bytes() + text + encoded(line(NOON_S + 9, first=False)))
    said = refused(tmp_path)
    assert f"{path}:2: " in said
    assert why in said


def test_a_span_without_data_says_where_there_is_some(tmp_path: Path) -> None:
    write(tmp_path, line())
    said = refused(tmp_path, "--from", "2026-03-02T13:00+00:00", "--to", "2026-03-02T14:00+00:00")
    assert f"no line of {tmp_path} lies between them" in said
    assert "they reach from 2026-03-02T" in said
    assert "baseline-from=" in refused(tmp_path, "--baseline-from", "2026-03-01", "--baseline-to", "2026-03-02T01:00+00:00")


def test_a_reversed_span_says_what_to_do(tmp_path: Path) -> None:
    write(tmp_path, line())
    for option, name in (("", ""), ("baseline-", "baseline-")):
        later, sooner = "2026-03-02T14:00+00:00", "2026-03-02T11:00+00:00"
        said = refused(tmp_path, f"--{option}from", later, f"--{option}to", sooner)
        assert said.startswith(f"halfstep: {name}from=2026-03-02T")
        assert "is not before" in said
        assert "its start first" in said


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--from", "yesterday"), "from='yesterday': not a time; write 2026-11-27T02:00"),
        (("--to", "-2w"), "to='-2w': not a time"),
        (("--to", "-99999999999d"), "to='-99999999999d': not a time"),
        (("--from", "-" + "9" * 400 + "d"), "9': not a time"),
        (("--step", "0s"), "step='0s': not a length of time"),
        (("--step", "9" * 400 + "d"), "must be at most 10000d"),
        (("--from", "2026-03-02T11:00+00:00", "--step", "1s"), "at most 1000 are shown: make it longer"),
        (("--prefill-rate", "0"), "prefill-rate=0: must be over 0"),
        (("--prefill-rate", "nan"), "prefill-rate=nan: must be over 0"),
        (("--namespace", "other"), "namespace='other': nothing was counted for it; default are there"),
        (("--baseline", "/proc/none"), "baseline=/proc/none: there is no such folder"),
        (("--picture", "effect.txt"), "picture=effect.txt: must end in .png or .svg"),
    ],
)
def test_a_wrong_option_is_refused_by_name(tmp_path: Path, arguments: tuple[str, ...], why: str) -> None:
    write(tmp_path, line())
    assert why in refused(tmp_path, *arguments)


def test_options_before_record_are_not_lost_without_a_word(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["effect", "--records", str(tmp_path), "record"])
    assert (done.exit_code, "--records: is not of `record`" in done.stderr) == (2, True)


def test_times_are_read_as_people_write_them() -> None:
    assert time_of("2026-03-02T12:00+00:00", 0, "from") == NOON_S
    assert time_of("2026-03-02T12:00Z", 0, "from") == NOON_S
    assert time_of("-1.5h", NOON_S, "from") == NOON_S - 5400
    assert time_of("now", NOON_S, "to") == NOON_S
    assert duration_of("2d", "step") == 172_800


# ---- what a restart makes of counters ----


def test_a_counter_that_fell_counts_anew(tmp_path: Path) -> None:
    values = [10, 25, 5, 8]  # 10, then 15 more, then 5 and 3 of the new count
    write(tmp_path, *(line(NOON_S + at, first=at == 0, lookups=value) for at, value in enumerate(values)))
    records = read(tmp_path)
    assert [one.more["lookups"] for one in records.increments] == [10, 15, 5, 3]
    assert "process p: 1 times a counter fell" in records.remarks[0]


def test_a_process_whose_first_lines_are_gone_counts_from_the_oldest(tmp_path: Path) -> None:
    write(tmp_path, line(first=False, lookups=100), line(NOON_S + 1, first=False, lookups=107))
    records = read(tmp_path)
    assert [one.more.get("lookups") for one in records.increments] == [None, 7]
    assert "process p: its first lines are gone" in records.remarks[0]


def test_processes_do_not_count_from_one_another(tmp_path: Path) -> None:
    write(tmp_path, line(lookups=100))
    write(tmp_path, line(NOON_S + 1, process="q", lookups=3), name="client-q")
    assert [one.more["lookups"] for one in read(tmp_path).increments] == [100, 3]


def daemon_line(time_s: float, first: bool = False, **counters: float) -> Line:
    return Line("daemon", "boot", NOON_S + time_s, first, "", "", counters)


def test_two_recorders_of_a_daemon_count_its_restart_once(tmp_path: Path) -> None:
    """Both saw it begin anew; the second one asked when 2 more had come."""
    write(tmp_path, daemon_line(0, first=True, gets=10), daemon_line(60, gets=30), name="daemon-a")
    write(tmp_path, daemon_line(5, first=True, gets=12), daemon_line(65, gets=31), name="daemon-b")
    assert sum(one.more["gets"] for one in read(tmp_path).increments) == 31


def test_a_recorder_that_came_later_takes_nothing_from_another(tmp_path: Path) -> None:
    """One that met the new boot as it is asks before one that saw the daemon begin anew."""
    write(tmp_path, daemon_line(0, gets=10), name="daemon-b")
    write(tmp_path, daemon_line(5, first=True, gets=12), name="daemon-a")
    assert sum(one.more["gets"] for one in read(tmp_path).increments) == 12


def test_recorders_whose_clocks_differ_count_a_daemon_once(tmp_path: Path) -> None:
    write(tmp_path, daemon_line(0, gets=1000), daemon_line(60, gets=1100), name="daemon-a")
    write(tmp_path, daemon_line(1, gets=990), daemon_line(61, gets=1090), daemon_line(121, gets=1200), name="daemon-b")
    records = read(tmp_path)
    assert [one.more.get("gets") for one in records.increments] == [None, 0, 100, 0, 100]
    assert records.remarks == []


def test_a_sample_beside_a_restart_is_of_one_boot(tmp_path: Path) -> None:
    """The daemon ends when it has told what it counted, and is there again before it is asked for its boot."""
    told = iter([(1000, b"\1"), (1010, b"\2"), (3, b"\2")])
    state: dict[str, Any] = {}

    def stat() -> dict[str, int]:
        count, state["boot"] = next(told)
        return {DAEMON_COUNTERS[0]: count}

    client: Any = SimpleNamespace(admin=SimpleNamespace(stat=stat), facts=lambda: SimpleNamespace(boot_id=state["boot"]))
    sampler = Sampler(client, tmp_path, clock=lambda: NOON_S)
    sampler.sample()
    sampler.sample()
    assert [one.more.get(DAEMON_COUNTERS[0]) for one in read(tmp_path).increments] == [None, 3]


# ---- how records are written ----


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf, 2e18, "many"])
def test_what_would_spoil_a_record_is_not_counted(tmp_path: Path, wrong: Any) -> None:
    recorder = Recorder(tmp_path, interval_s=0)
    tally = recorder.tally("default", "on")
    with pytest.raises(ConfigError, match=r"^mine=.*: must be a number of 0 to 1e\+18"):
        tally.add(lookups=1, mine=wrong)
    tally.add(lookups=2)
    recorder.write()
    assert read(tmp_path).increments[0].more["lookups"] == 2


def test_numbers_of_numpy_are_recorded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, interval_s=0)
    tally = recorder.tally("default", "on")
    counts: Any = {"mine": np.int64(3), "half": np.float32(0.5)}
    tally.add(**counts)
    recorder.write()
    assert {name: read(tmp_path).increments[0].more[name] for name in counts} == {"mine": 3, "half": 0.5}


def test_a_line_comes_back_as_it_was() -> None:
    one = Line("daemon", "ab", NOON_S, False, "a \u2028 name", "", {'x{as="used"}': 1.5, "lookups": 3})
    assert encoded(one).count(b"\n") == 1
    assert decoded(encoded(one)[:-1], "here") == one


def test_a_record_is_bounded_and_its_turn_loses_no_count(tmp_path: Path) -> None:
    now = [NOON_S]
    recorder = Recorder(tmp_path, clock=lambda: now[0], interval_s=0, bytes_max=4000)
    tally = recorder.tally("default", "on")
    for _ in range(100):
        tally.add(lookups=1)
        now[0] += 1
        recorder.write()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2
    assert all(0 < path.stat().st_size <= 4000 for path in files)
    records = read(tmp_path)
    assert sum(one.more.get("lookups", 0) for one in records.increments) == len(records.increments) - 1
    assert records.last_s == NOON_S + 100


def test_what_did_not_move_is_written_seldom(tmp_path: Path) -> None:
    now = [NOON_S]
    recorder = Recorder(tmp_path, clock=lambda: now[0], interval_s=0)
    tally = recorder.tally("default", "on")
    recorder.write()
    assert list(tmp_path.iterdir()) == [], "who has counted nothing makes no file"
    tally.add(lookups=1)
    for _ in range(11):
        recorder.write()
        now[0] += 60
    # At once, and after ten minutes.
    assert [one.more["lookups"] for one in read(tmp_path).increments] == [1, 0]


def test_a_clock_that_was_set_back_leaves_the_lines_in_their_order(tmp_path: Path) -> None:
    now = [NOON_S]
    recorder = Recorder(tmp_path, clock=lambda: now[0], interval_s=0)
    for at in (0, -3600, 60):
        now[0] = NOON_S + at
        recorder.tally("default", "on").add(lookups=1)
        recorder.write()
    records = read(tmp_path)
    assert [(one.time_s, one.more["lookups"]) for one in records.increments] == [(NOON_S, 1), (NOON_S, 1), (NOON_S + 60, 1)]
    assert records.remarks == []


def test_a_full_disk_leaves_whole_lines_and_says_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(tmp_path, interval_s=0)
    tally = recorder.tally("default", "on")
    tally.add(lookups=1)
    recorder.write()
    whole = os.write
    room = [20]

    def write_some(descriptor: int, data: bytes) -> int:
        if room[0] == 0:
            raise OSError(28, "No space left on device")
        room[0], some = 0, data[: room[0]]
        return whole(descriptor, some)

    with monkeypatch.context() as full, caplog.at_level(logging.WARNING, "halfstep"):
        full.setattr(os, "write", write_some)
        for _ in range(3):
            tally.add(lookups=1)
            recorder.write()
    assert [one.getMessage().count("No space left on device") for one in caplog.records] == [1]
    recorder.write()
    records = read(tmp_path)
    assert ([one.more["lookups"] for one in records.increments], records.remarks) == ([1, 3], [])


def test_who_writes_while_another_does_leaves_it_to_him(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, interval_s=0)
    recorder.tally("default", "on").add(lookups=1)
    with recorder._lock:
        thread = threading.Thread(target=recorder.write)
        thread.start()
        thread.join(60)
        assert not thread.is_alive(), "it did not wait"
    assert list(tmp_path.iterdir()) == []
    recorder.write()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_child_has_a_record_of_its_own(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, interval_s=0)
    tally = recorder.tally("default", "on")
    tally.add(lookups=5)
    child = os.fork()
    if child == 0:
        tally.add(lookups=2)
        recorder.write()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    recorder.write()
    assert sorted(one.more["lookups"] for one in read(tmp_path).increments) == [2, 5]


def test_a_variable_that_names_no_folder_is_an_error_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import halfstep

    monkeypatch.setenv(record.VARIABLE, str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"HALFSTEP_RECORD=.*none: there is no such folder; make it"):
        halfstep.connect("halfstep://127.0.0.1:1")


def test_a_folder_that_has_gone_stops_no_other_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import halfstep

    folder = tmp_path / "days"
    folder.mkdir()
    monkeypatch.setenv(record.VARIABLE, str(folder))
    with halfstep.connect("halfstep://127.0.0.1:1") as first:
        folder.rmdir()
        with caplog.at_level(logging.WARNING), halfstep.connect("halfstep://127.0.0.1:1") as second:
            assert second.tally is first.tally
            assert second.tally is not None
            second.tally.add(mine=1)
    assert "what clients count is not recorded" in caplog.text


def test_a_process_that_changes_its_directory_goes_on_with_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "days").mkdir()
    monkeypatch.chdir(tmp_path)
    recorder = Recorder(record.checked_folder("days"), interval_s=0)
    monkeypatch.chdir("/")
    recorder.tally("default", "on").add(lookups=1)
    recorder.write()
    assert len(read(tmp_path / "days").increments) == 1


def test_a_folder_whose_name_is_too_long_is_named(tmp_path: Path) -> None:
    assert "File name too long; let this user read it, or name another one" in refused(tmp_path / ("a" * 300))


def test_a_file_is_made_by_its_first_line_alone(tmp_path: Path) -> None:
    made: Any = RecordFile(tmp_path, "client-x")
    assert list(tmp_path.iterdir()) == []
    made.append(encoded(line()))
    assert read(tmp_path).increments[0].time_s == NOON_S
