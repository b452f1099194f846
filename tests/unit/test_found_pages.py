"""What waits behind other pages is known, and forgotten when nobody comes for it."""

from __future__ import annotations

from halfstep.connectors.found_pages import FoundPages


def pages(first: int, last: int) -> list[bytes]:
    return [b"page %d" % number for number in range(first, last)]


def test_what_is_found_behind_others_waits_and_the_next_in_the_line_does_not() -> None:
    line = FoundPages(30)
    assert line.found(pages(0, 4)) == [], "they are read at once"
    assert line.found(pages(4, 8)) == pages(4, 8)
    with line.reading(pages(0, 4)):
        assert line.found(pages(8, 9)) == pages(8, 9)
        with line.reading(pages(4, 9)):
            assert line.found(pages(20, 21)) == pages(20, 21), "others are being read"
    with line.reading(pages(20, 21)):
        pass
    assert line.found(pages(30, 31)) == [], "the line is empty, and nobody reads"


def test_a_page_that_is_found_twice_is_expected_once() -> None:
    line = FoundPages(30)
    line.found(pages(0, 1))
    assert line.found(pages(0, 3)) == pages(1, 3)
    assert line.found(pages(0, 3)) == []


def test_pages_that_nobody_reads_hold_nothing_up() -> None:
    now_s = [100.0]
    line = FoundPages(30, lambda: now_s[0])
    line.found(pages(0, 4))
    now_s[0] += 29
    assert line.found(pages(4, 5)) == pages(4, 5)
    now_s[0] += 2
    assert line.found(pages(6, 7)) == pages(6, 7), "one is waited for still"
    now_s[0] += 30
    assert line.found(pages(8, 9)) == []
    assert line.found([]) == []
