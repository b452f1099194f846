"""Machines that this one has not: a guest with RDMA devices, for tests that need them. docs/lab-machine.md explains it."""
