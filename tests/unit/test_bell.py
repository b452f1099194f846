"""The bell of an event loop: once it is closed, its number may be another's, which nobody may read or write for it."""

from __future__ import annotations

import os

from halfstep.client.aio import _Bell


def test_what_has_the_number_of_a_closed_bell_is_neither_read_nor_rung() -> None:
    bell = _Bell(os.eventfd(0))
    number = bell.descriptor
    bell.ring()
    bell.close()
    other = os.eventfd(0, os.EFD_NONBLOCK)
    os.dup2(other, number)
    try:
        os.eventfd_write(number, 5)
        bell.hush()
        bell.ring()
        assert os.eventfd_read(number) == 5
    finally:
        os.close(number)
        if other != number:
            os.close(other)


def test_a_bell_rings_until_it_is_heard() -> None:
    bell = _Bell(os.eventfd(0))
    bell.ring()
    bell.ring()
    assert os.eventfd_read(bell.descriptor) == 2
    bell.hush()  # nobody has rung since: it returns all the same
    bell.close()
