"""A daemon's lines on streams that do not take them: lost, told of later, never an error and never a wait."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfstep.daemon import log as log_module
from halfstep.daemon.log import Log


@pytest.fixture
def pipe() -> Iterator[tuple[int, io.TextIOWrapper]]:
    """A reader's descriptor, and a writer's stream."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        yield reader, stream
    os.close(reader)


def test_lines_are_written_as_they_are_said(pipe: tuple[int, io.TextIOWrapper]) -> None:
    reader, stream = pipe
    log = Log(stream)
    log.say("one")
    log.say("two\nthree")
    assert os.read(reader, 4096) == b"one\ntwo\nthree\n"
    assert log.lost == 0


def test_a_reader_that_went_away_loses_lines_and_nothing_else() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        log = Log(stream)
        log.say("one")
        log.say("two")
        assert log.lost == 2


def test_a_full_disk_loses_lines_and_the_next_one_that_fits_says_how_many(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with Path("/dev/full").open("w", encoding="utf-8") as stream:
        log = Log(stream)
        log.say("one")
        log.say("two")
        assert log.lost == 2
        # As when somebody made room: the same descriptor takes lines again.
        with target.open("w", encoding="utf-8") as roomy:
            os.dup2(roomy.fileno(), stream.fileno())
        log.say("three")
        assert log.lost == 0
    assert target.read_text() == "(lost before this line: 2; No space left on device)\nthree\n"


def test_a_reader_that_does_not_read_is_waited_for_once(
    pipe: tuple[int, io.TextIOWrapper], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, stream = pipe
    waits: list[int] = []

    class Poll:
        """A pipe that is full until its reader has read."""

        full = True

        def register(self, number: int, events: int) -> None:
            assert number == stream.fileno()

        def poll(self, patience_ms: int) -> list[tuple[int, int]]:
            waits.append(patience_ms)
            return [] if Poll.full else [(stream.fileno(), 0)]

    monkeypatch.setattr(log_module.select, "poll", Poll)
    log = Log(stream)
    for text in ("one", "two", "three"):
        log.say(text)
    assert log.lost == 3
    assert waits[0] > 0
    assert waits[1:] == [0, 0]
    Poll.full = False
    log.say("four")
    assert os.read(reader, 4096) == b"(lost before this line: 3; nobody reads)\nfour\n"


def test_a_full_pipe_is_no_place_to_wait_in(pipe: tuple[int, io.TextIOWrapper]) -> None:
    reader, stream = pipe
    os.set_blocking(stream.fileno(), False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(stream.fileno(), bytes(4096))
    os.set_blocking(stream.fileno(), True)
    log = Log(stream)
    log.say("one")
    assert log.lost == 1
    os.read(reader, 1 << 20)
    log.say("two")
    assert os.read(reader, 4096).endswith(b"two\n")


def test_what_the_encoding_cannot_say_is_escaped() -> None:
    for encoding, said in (
        ("ascii", b"/a/\\xfc\\udcff\n"),
        ("utf-8", b"/a/\xc3\xbc\\udcff\n"),
        ("latin-1", b"/a/\xfc\\udcff\n"),
    ):
        reader, writer = os.pipe()
        with os.fdopen(writer, "w", encoding=encoding) as stream:
            Log(stream).say("/a/ü\udcff")
        assert os.read(reader, 4096) == said
        os.close(reader)


def test_no_stream_and_a_closed_one_take_lines_in_silence() -> None:
    Log(None).say("one")
    closed = io.StringIO()
    closed.close()
    Log(closed).say("one")
    with Path(os.devnull).open("w") as stream:
        log = Log(stream)
    log.say("one")
    assert log.lost == 1


def test_a_stream_that_is_no_file_takes_lines_as_text() -> None:
    stream = io.StringIO()
    Log(stream).say("one")
    assert stream.getvalue() == "one\n"
