"""`halfstep bench`: speed, the machine's limit beside it, and a check of every block.

plan.py says what is measured, measure.py runs it; driver.py (clones.py: in several processes) and workload.py keep batches at a
client, content.py says what their bytes are; loopback.py and device.py measure what plain sockets and plain reads do beside
that. Both limits alone: limits_command.py, device_limit.py (with fio.py) and wire_limit.py.
"""

from halfstep.tools.bench.command import bench

__all__ = ["bench"]
