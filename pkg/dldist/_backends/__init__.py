"""Backends of process groups: base classes, dispatch by device, CPU, NCCL, third-party, fake."""
