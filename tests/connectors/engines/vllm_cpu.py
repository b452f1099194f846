"""vLLM's tiered offloading on a machine without a GPU: its own worker copies between a GPU and the host and refuses a CPU.

Everything but the copy is vLLM's. Source: vLLM 0.32, v1/kv_offload/cpu/gpu_worker.py for what a worker has to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CopyWorker(OffloadingWorker):
    """Copies pages at once: a job is over when it was submitted."""

    def __init__(self, caches: Any, blocks_per_chunk: int, region: SharedOffloadRegion) -> None:
        self._caches, self._blocks_per_chunk, self._region = caches, blocks_per_chunk, region
        self._host = [region.create_next_worker_view(t.page_size_bytes * blocks_per_chunk) for t in caches.tensors]
        self._over: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """From the engine's blocks to rows."""
        return self._copy(job_id, src_spec, dst_spec, to_host=True)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False) -> bool:
        """From rows to the engine's blocks."""
        return self._copy(job_id, dst_spec, src_spec, to_host=False)

    def get_finished(self) -> list[TransferResult]:
        """What is over since the last call."""
        over, self._over = self._over, []
        return over

    def wait(self, job_ids: Any) -> None:
        """Nothing to wait for."""

    def shutdown(self) -> None:
        """Views first: the region cannot be unmapped before."""
        self._host.clear()
        self._region.cleanup()

    def _copy(self, job_id: int, blocks: Any, rows: Any, *, to_host: bool) -> bool:
        moved = 0
        for group, block, row, part in self._places(blocks, rows):
            for reference in self._caches.group_data_refs[group]:
                cache = self._caches.tensors[reference.tensor_idx]
                page, size = cache.page_size_bytes, reference.page_size_bytes
                device = cache.tensor.view(torch.int8).view(-1, page)[block, :size]
                host = self._host[reference.tensor_idx][row, part * page : part * page + size]
                (host if to_host else device).copy_(device if to_host else host)
                moved += size
        self._over.append(TransferResult(job_id, True, moved, 1e-6))
        return True

    def _places(self, blocks: Any, rows: Any) -> Iterator[tuple[int, int, int, int]]:
        """(group, engine's block, row, which block of the row), group by group; a chunk may begin in its middle."""
        first_block = first_row = 0
        for group, (count, index) in enumerate(zip(blocks.group_sizes, blocks.block_indices, strict=True)):
            if count == 0:
                continue
            skipped = index % self._blocks_per_chunk
            for at in range(count):
                row, part = divmod(skipped + at, self._blocks_per_chunk)
                yield group, int(blocks.block_ids[first_block + at]), int(rows.block_ids[first_row + row]), part
            first_block += count
            first_row += -(-(skipped + count) // self._blocks_per_chunk)


class CpuTieringSpec(TieringOffloadingSpec):
    """vLLM's, with the worker above."""

    def get_worker(self, kv_caches: Any) -> CopyWorker:
        """The one of this process."""
        if self._worker is None:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = CopyWorker(kv_caches, self.blocks_per_chunk, region)
        return self._worker
