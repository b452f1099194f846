"""What people run: the command line, the benchmark, the demo."""
