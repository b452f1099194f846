"""Drives: which there are, what is on one, and what the daemon would do with it. The native half is native/io."""
