"""Weakly held objects, gone through while others add and let go."""

from __future__ import annotations

import gc
import threading

from halfstep.client.living import Living


class Thing:
    """Something that can be held weakly."""


def test_what_nobody_else_holds_leaves() -> None:
    living: Living[Thing] = Living()
    kept, dropped, told_off = Thing(), Thing(), Thing()
    for thing in (kept, dropped, told_off, kept):
        living.add(thing)
    assert set(living) == {kept, dropped, told_off}
    living.discard(told_off)
    living.discard(Thing())
    del dropped
    gc.collect()
    assert list(living) == [kept]
    assert len(living._references) == 1


def test_it_may_be_changed_by_who_goes_through_it() -> None:
    living: Living[Thing] = Living()
    first, second = Thing(), Thing()
    living.add(first)
    seen = []
    for thing in living:
        living.add(second)
        living.discard(first)
        seen.append(thing)
    assert seen == [first]
    assert list(living) == [second]


def test_threads_may_add_and_drop_while_others_go_through_it() -> None:
    living: Living[Thing] = Living()
    kept = [Thing() for _ in range(100)]
    for thing in kept:
        living.add(thing)
    stop = threading.Event()

    def add_and_drop() -> None:
        while not stop.is_set():
            things = [Thing() for _ in range(20)]
            for thing in things:
                living.add(thing)

    threads = [threading.Thread(target=add_and_drop) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2000):
            assert len({*living}.intersection(kept)) == 100
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert set(living) == set(kept)
