"""Sends the points of a parallel sweep as job arrays, by submitit: `python -m dynamo_mlperf.slurm.point_array SPEC`.

SPEC is JSON: `folder` (submitit's own), `options` (of sbatch, by long name; true for one without value), `at_once` and
`chunks` (lists of argument vectors, one a job). One JSON object a line comes out: `{"jobs": [IDS]}` for each array that
Slurm has taken, `{"refused": TEXT}` for one that it has not, which ends the program with 1.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dynamo_mlperf.process.become import become

NO_SIGNAL = "B:CONT@1"
"""In place of submitit's warning, which would end our engines: a signal that does nothing, to the batch shell alone."""


def main(spec_file: str) -> int:
    """Send one array after another."""
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    spec = json.loads(Path(spec_file).read_text())
    for chunk in spec["chunks"]:
        try:
            executor = submitit.SlurmExecutor(folder=spec["folder"])
            options = dict(spec["options"])
            name = options.pop("job-name")  # else submitit's own name would stand behind it, and the last one holds
            executor.update_parameters(
                job_name=name,
                array_parallelism=spec["at_once"],
                use_srun=False,
                stderr_to_stdout=True,
                time=None,  # what the options say, else the partition's own
                wckey=None,
                additional_parameters={"signal": NO_SIGNAL, **options},
            )
            jobs = executor.map_array(become, chunk)
        except (FailedJobError, FailedSubmissionError, RuntimeError, OSError) as problem:
            _say({"refused": str(problem)})
            return 1
        _say({"jobs": [job.job_id for job in jobs]})
    return 0


def _say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
