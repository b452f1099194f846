"""`halfstep calibrate`: asks a model what a coarser cache costs its answers, and writes a policy.

command.py has the options and the table, models.py finds the model and its text.
"""

from halfstep.tools.calibrate.command import calibrate

__all__ = ["calibrate"]
