"""torch's own analyser on folders of dumps, run as a program because it is slow to import and keeps
state.

    python trace_torch.py FOLDER ...      prints a line of JSON for each
"""

import json
import logging
import subprocess
import sys

# torch's verdicts, with the corresponding kinds of dldist.
KINDS = {
    "COLLECTIVE_TYPE_MISMATCH": {"wrong_op", "wrong_order"},
    "SIZE_OR_SYNTAX_MISMATCH": {"wrong_size", "wrong_order", "wrong_root"},
    "COLLECTIVE_DTYPE_MISMATCH": {"wrong_dtype"},
    "COLLECTIVE_STATE_MISMATCH": {"slow_rank", "failed"},
    "MISSING": {"missing_rank"},
    # It does not distinguish calls that all ranks made alike by completion.
    "FULLY_MATCHED": {"slow_rank", "stuck", "failed"},
}


def verdicts(folders, timeout=100):
    """Return torch's verdict on each folder."""
    run = subprocess.run(
        [sys.executable, __file__, *map(str, folders)], capture_output=True, text=True, timeout=timeout, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert len(found) == len(folders), run.stdout + run.stderr
    return found


def check_agrees(dldist_verdict, torch_verdict):
    """Check that class, collective and the ranks on each side agree.

    torch compares with the rank whose file comes first, so it may name the correct ranks.
    """
    assert dldist_verdict.kind in KINDS[torch_verdict["state"]], (dldist_verdict, torch_verdict)
    if torch_verdict["state"] == "FULLY_MATCHED":
        return
    assert (dldist_verdict.group, dldist_verdict.seq) == (torch_verdict["group"], torch_verdict["seq"])
    assert torch_verdict["ranks"] in (dldist_verdict.culprits, dldist_verdict.others), (dldist_verdict, torch_verdict)


def of_folder(folder):
    from torch.distributed.flight_recorder.components import builder, config_manager, loader

    words = Words()
    logger = logging.getLogger("Flight Recorder")
    for name in list(logging.root.manager.loggerDict):
        if "flight" in name.lower() or "torch" in name.lower():
            logger = logging.getLogger(name)
            logger.handlers = [words]
            logger.propagate = False
    options = config_manager.JobConfig().parse_args([folder, "--mismatch_cap", "100"])
    details, version = loader.read_dir(options)
    database = builder.build_db(details, options, version)
    for collective in database.collectives:
        where = {"group": collective.group_id, "seq": collective.collective_seq_id, "op": collective.collective_name}
        if collective.mismatch_collectives:
            states = {other.type_of_mismatch.state.name for other in collective.mismatch_collectives.values()}
            return {**where, "state": sorted(states)[0], "ranks": sorted(collective.mismatch_collectives), "words": words.lines}
        if collective.missing_ranks:
            return {**where, "state": "MISSING", "ranks": sorted(collective.missing_ranks), "words": words.lines}
    last = database.collectives[-1] if database.collectives else None
    return {
        "group": last and last.group_id,
        "seq": last and last.collective_seq_id,
        "op": last and last.collective_name,
        "state": "FULLY_MATCHED",
        "ranks": [],
        "words": words.lines,
    }


class Words(logging.Handler):
    """A handler that collects torch's log lines."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(json.dumps(of_folder(path)), flush=True)
