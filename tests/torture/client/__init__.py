"""Processes of the client under load that something enters from the side: `python -m tests.torture.client`."""
