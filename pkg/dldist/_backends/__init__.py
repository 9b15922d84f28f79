"""Backends of process groups: the base classes, dispatch by device, the CPU, NCCL, third-party libraries, and a fake."""
