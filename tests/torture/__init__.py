"""Long runs against a live daemon. Each is a command (`python -m tests.torture.kills --help`), a short run of it a test."""
