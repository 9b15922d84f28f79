"""Windows: memory of each rank of a group that other ranks can write, read and signal."""
