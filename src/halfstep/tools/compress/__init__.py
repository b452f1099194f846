"""`halfstep compress`: what the codecs make of real K and V, out of a file or out of a running daemon.

command.py has the options and the tables, stored.py samples a namespace, plot.py draws.
"""

from halfstep.tools.compress.command import compress

__all__ = ["compress"]
