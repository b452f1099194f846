"""Proof that a run read from flash and reclaimed segments, by the counts of daemon, engine and kernel."""

from __future__ import annotations

from halfstep.tools.bench.device import DEVICE_SHARE_MIN, BlockDevice
from halfstep.tools.bench.report import Proof
from halfstep.tools.bench.workload import Timing

# Of the blocks that `coldmixed` asks for: gone before their get came.
_LOST_SHARE_MAX = 0.01


def why_not_cold(proof: Proof, device: BlockDevice | None) -> str:
    """Why a run may not be called cold; "" if it may."""
    return _why_not_from_flash(proof, proof.payload_bytes, proof.engine_read_bytes, device)


def _why_not_from_flash(proof: Proof, delivered: int, read_for_it: int, device: BlockDevice | None) -> str:
    if delivered == 0:
        return "nothing was read"
    if read_for_it < DEVICE_SHARE_MIN * delivered:
        return (
            f"the daemon's engine read {read_for_it} bytes for {delivered} delivered "
            f"({proof.hits_memory} hits came from memory); give a larger --cold-size"
        )
    if device is None:
        return ""  # somebody else's daemon: its own counters are all there is, and the report says so
    if proof.device_read_bytes is None:
        return "no block device below the store counts its bytes (tmpfs?); put it on a disk with --directory"
    # All that the engine read, its reclaim's reads as well, against all that the device did.
    wanted = max(proof.engine_read_bytes, delivered)
    if proof.device_read_bytes < DEVICE_SHARE_MIN * wanted:
        return (
            f"{device.name} read {proof.device_read_bytes} bytes of {wanted} that the engine read for what came: a page "
            "cache answered; put the store where O_DIRECT is to be had, with --directory"
        )
    return ""


def why_not_coldmixed(proof: Proof, timing: Timing, block_bytes: int, device: BlockDevice | None) -> str:
    """Why a run was not one of gets from flash while segments are reclaimed; "" if it was.

    What reclaim reads, to write it again, does not count for the gets, and no difference of counters tells it: it reads up to
    eight mebibytes before it writes them, and they may lie on either side of a run's begin.
    """
    if proof.reclaimed_segments == 0:
        return (
            "reclaim did not run: no segment was reclaimed during the run; give a longer --runtime, a higher --rate or a lower "
            "--rwmixread, so that puts fill segments"
        )
    if timing.reads is None:
        return "nothing was read; give a longer --runtime or a higher --rwmixread"
    reads = timing.reads.outcome
    lost = sum(count for reason, count in reads.reasons.items() if reason.startswith("miss"))
    if lost > _LOST_SHARE_MAX * reads.blocks:
        return (
            f"{lost} of {reads.blocks} blocks asked for had been reclaimed; give a smaller --cold-size, or a higher "
            "--rwmixread, so that puts do not overtake the gets"
        )
    return _why_not_from_flash(proof, reads.ok * block_bytes, proof.gets_read_bytes, device)
