"""A client of the wire protocol in plain Python, and a small daemon (daemon.py), written from docs/wire-protocol.md alone.

It shares no code with the library: a mistake that both ends of the library share shows here. It checks what the page promises
of a server's frames and raises WireFault where a server breaks it. It is for tests: one thread, no retries, no pooling.
"""
