"""A process that runs one job after the other: ``python -m fedreach.experiments.worker``.

Jobs come in and messages go out as JSON lines on standard input and output. The process ends when its input ends, or
when nobody reads its output any more, so that no worker outlives the comparison that started it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from fedreach.errors import FedReachError
from fedreach.experiments.config import Experiment
from fedreach.experiments.run import Progress, run


def main() -> int:
    """Serve until the input ends."""
    # Whatever a user's own code prints goes to standard error, so that it cannot be taken for a message.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1, encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")

    def tell(progress: Progress) -> None:
        shown = {key: progress.row[key] for key in ("id_accuracy", "unseen_accuracy") if key in progress.row}
        send({"round": progress.round, "rounds": progress.rounds, **shown})

    try:
        for line in sys.stdin:
            job = json.loads(line)
            try:
                experiment = Experiment.model_validate(job["config"])
                result = run(
                    experiment,
                    seed=job["seed"],
                    folder=Path(job["folder"]),
                    base=Path(job["base"]),
                    method=job["method"],
                    tell=tell,
                )
                send({"ended": "finished", "result": result})
            except FedReachError as error:
                send({"ended": "failed", "error": str(error), "exit_code": error.exit_code})
            except Exception as error:  # of a user's own code: told with its place, and the other runs go on
                send({"ended": "failed", "error": _with_place(error), "exit_code": 1})
    except (KeyboardInterrupt, BrokenPipeError):
        return 130
    return 0


def _with_place(error: Exception) -> str:
    import traceback

    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} (in {Path(last.filename).name}, line {last.lineno}, {last.name})"


if __name__ == "__main__":
    sys.exit(main())
