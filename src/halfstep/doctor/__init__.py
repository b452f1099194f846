"""`halfstep doctor`: what is wrong with this host, with a daemon and with the path to it; reasons and remedies.

A check is a function of a Host, which is the one door to the machine, and of a Case, which is what is asked. It yields findings
of its rules, or a sentence about what is well. What it may not look at is skipped with the reason, and never counts as well.
Layers: this package knows the daemon's settings and the client; the command line (tools.doctor) knows this package.
"""
