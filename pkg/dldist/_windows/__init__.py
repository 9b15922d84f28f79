"""Windows: memory of every rank of a group that other ranks can write, read and signal."""
