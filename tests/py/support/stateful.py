"""The extent of hypothesis in stateful tests.

By default a few seconds with the same examples every time; with DLDIST_TEST_EXAMPLES, that number
of random examples.
"""

import os

from hypothesis import HealthCheck, Phase, settings

EXAMPLES = int(os.environ.get("DLDIST_TEST_EXAMPLES", "0"))


def depth(examples, steps):
    return settings(
        max_examples=EXAMPLES or examples,
        stateful_step_count=steps,
        derandomize=not EXAMPLES,
        # No shrinking by default: a call that hangs would hang again in every attempt.
        phases=[Phase.generate, Phase.shrink] if EXAMPLES else [Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=bool(EXAMPLES),
    )
