"""Cases of group_workers.py for groups over NCCL: over the stubs (test_nccl_operations.py) and on
a GPU (tests/gpu)."""

import group_workers as cases

COUNTS = [0, 1, 5, 1000]
DTYPES = [*cases.INT_CODES, *cases.FLOAT_CODES, "?", *cases.NUMPY_DTYPES]
CASES = [
    cases.uneven, cases.coalesced, cases.coalescing, cases.strided, cases.transposed, cases.overlapping, cases.premultiplied,
    cases.ring, cases.empty_message, cases.batches, cases.large_batch, cases.async_forms, cases.many_works,
    cases.splits, cases.in_threads, cases.failing_works,
]  # fmt: skip
