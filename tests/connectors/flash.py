"""What is on a daemon's flash, behind its back."""

from __future__ import annotations

from pathlib import Path


def flip(store: Path, page: bytes) -> None:
    """One bit of the page with those bytes."""
    found = 0
    with store.open("r+b") as file:
        while data := file.read(64 << 20):
            at = data.find(page)
            while at >= 0:
                place = file.tell() - len(data) + at
                if place % 4096 == 0:
                    file.seek(place + 100)
                    file.write(bytes([page[100] ^ 1]))
                    file.seek(place - at + len(data))
                    found += 1
                at = data.find(page, at + 1)
    assert found, "the block is not on flash"
