"""`halfstep replay`: hits and writes of a store of a given size under recorded traffic.

trace.py reads the requests, plan.py says what is to be replayed, run.py replays them: over the real store (flash.py), over
the policy of its memory alone (dram.py) and over yardsticks of one block's grain (reference.py, reuse.py); report.py and
plot.py say what came out.
"""

from halfstep.tools.replay.command import replay

__all__ = ["replay"]
