"""`halfstep effect`: what the tier did, from records of its clients' and daemon's counters.

records.py reads them and says what was new with each line, spans.py chooses lines by time, figures.py makes figures of what
they counted; report.py, table.py and picture.py say them; sampling.py records a daemon's counters.
"""

from halfstep.tools.effect.command import effect

__all__ = ["effect"]
