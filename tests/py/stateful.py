"""How far hypothesis goes in stateful tests: as a part of all tests the same way every time and for seconds; with DLDIST_TEST_EXAMPLES,
so many examples, others every time."""

import os

from hypothesis import HealthCheck, Phase, settings

EXAMPLES = int(os.environ.get("DLDIST_TEST_EXAMPLES", "0"))


def depth(examples, steps):
    return settings(
        max_examples=EXAMPLES or examples,
        stateful_step_count=steps,
        derandomize=not EXAMPLES,
        # A call that does not come back is waited for again in every try to make the example smaller.
        phases=[Phase.generate, Phase.shrink] if EXAMPLES else [Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=bool(EXAMPLES),
    )
