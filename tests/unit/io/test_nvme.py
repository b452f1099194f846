"""What a drive answers, as it is understood: by hand from the NVMe base specification's offsets."""

from __future__ import annotations

import errno
import os
import random
import struct
from pathlib import Path

import pytest

from halfstep.io import nvme
from halfstep.io.devices import Tree
from halfstep.io.probe import probe


def controller(**fields: int) -> bytes:
    told = bytearray(4096)
    told[4:24], told[24:64], told[64:72] = b"S1".ljust(20), b"LAB\x00DRIVE".ljust(40), b"1.0".ljust(8)
    told[77] = fields.get("transfer", 7)
    struct.pack_into("<I", told, 96, fields.get("attributes", 0))
    struct.pack_into("<H", told, 520, fields.get("optional", 0))
    told[525] = fields.get("cache", 0)
    return bytes(told)


def namespace(in_use: int, *formats: tuple[int, int, int]) -> bytes:
    told = bytearray(4096)
    told[:8], told[25], told[26] = (1 << 30).to_bytes(8, "little"), len(formats) - 1, in_use
    for number, (metadata, shift, performance) in enumerate(formats):
        struct.pack_into("<HBB", told, 128 + 4 * number, metadata, shift, performance)
    return bytes(told)


def test_a_controller_is_understood() -> None:
    one = nvme.identity_of(controller(attributes=1 << 19, optional=4, cache=1))
    assert (one.model, one.serial, one.firmware) == ("LAB?DRIVE", "S1", "1.0")
    assert one.transfer_pages_max == 128
    assert (one.volatile_cache, one.deallocates, one.placement) == (True, True, True)
    plain = nvme.identity_of(controller(transfer=0))
    assert (plain.transfer_pages_max, plain.volatile_cache, plain.deallocates, plain.placement) == (0, False, False, False)


def test_a_better_format_is_one_of_4096_bytes_that_the_drive_says_is_faster() -> None:
    assert nvme.namespace_of(namespace(0, (0, 9, 2), (8, 12, 0), (0, 12, 1))).better == nvme.Format(2, 4096, 0, 1)
    assert nvme.namespace_of(namespace(0, (0, 9, 0), (0, 12, 0))).better is None
    assert nvme.namespace_of(namespace(1, (0, 9, 2), (0, 12, 0))).better is None


def test_no_answer_of_a_drive_is_believed_as_a_length() -> None:
    dice = random.Random(31)
    for _ in range(2000):
        told = dice.randbytes(4096)
        identity, space = nvme.identity_of(told), nvme.namespace_of(told)
        assert 0 <= identity.transfer_pages_max < 1 << 32
        assert all(one.data_bytes < 1 << 32 for one in space.formats)
        assert identity.model.isprintable()
        assert nvme.health_of(told[:512]).used_percent <= 255


def test_a_file_takes_no_admin_command(tmp_path: Path) -> None:
    place = tmp_path / "no-drive"
    place.write_bytes(bytes(4096))
    with pytest.raises(OSError, match=os.strerror(errno.ENOTTY)):
        nvme.admin(str(place), nvme.IDENTIFY, 0, 1, 0, 4096)


def test_a_new_path_is_what_a_store_may_be_made_at(tmp_path: Path) -> None:
    found = probe(str(tmp_path / "new"), Tree())
    assert (found.kind, found.why_not_code, found.backing) == ("new file", "not_found", {})
