"""Room for numpy, which is imported here first: under a limit of address space it would end the process without a word of ours.

OpenBLAS takes memory for each core as numpy is imported, and exits or raises SIGINT where that fails. So a process with room
for none of its threads gets an ImportError that names the limit, and one with too little for all cores gets one thread.
"""

from __future__ import annotations

import importlib
import mmap
import os
import resource
import sys

# numpy 2 with one thread of OpenBLAS, this package, and one client with its thread: 101 MiB measured. Each further thread.
ONE_THREAD_BYTES = 104 << 20
THREAD_BYTES = 40 << 20
# Whoever has set one of these knows what he wants.
THREADS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")


def has_room(count: int) -> bool:
    """Whether so many bytes of address space are left; nothing of them is touched, or kept."""
    try:
        mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ).close()
    except OSError:
        return False
    return True


def import_numpy() -> None:
    """Errors: ImportError, where the limit of address space leaves no room for it."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if "numpy" in sys.modules or limit == resource.RLIM_INFINITY:
        return
    if not has_room(ONE_THREAD_BYTES):
        raise ImportError(
            f"halfstep: address space is limited to {limit >> 20} MiB (RLIMIT_AS, ulimit -v), of which numpy and a client need "
            f"{ONE_THREAD_BYTES >> 20} MiB more than is in use: raise the limit"
        )
    cores = len(os.sched_getaffinity(0))
    if any(name in os.environ for name in THREADS) or has_room(ONE_THREAD_BYTES + (cores - 1) * THREAD_BYTES):
        return
    os.environ[THREADS[0]] = "1"
    try:
        importlib.import_module("numpy")  # which looks at its environment once
    finally:
        del os.environ[THREADS[0]]


import_numpy()
