"""Windows: memory of every rank of a group that the other ranks write to, read from and signal by."""
