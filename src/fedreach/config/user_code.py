"""What makes a run this run: its options and the user's own code; and where in that code an error came from."""

import hashlib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedreach import registry
from fedreach.config.parts import with_nested
from fedreach.config.sections import Experiment
from fedreach.errors import FedReachError, PartError


def identity(experiment: Experiment, seed: int, method: str, base: Path) -> dict[str, Any]:
    """Return what makes a run this run: its method, seed, options and the user's own code.

    Code that Python handed over is known by its name already, which has a digest.
    """
    return {
        "method": method,
        "seed": seed,
        "config": experiment.model_dump(mode="json"),
        "code": {
            name: hashlib.sha256(path.read_bytes()).hexdigest()
            for name, path in users_files(experiment, base).items()
            if path.suffix != ".pkl"
        },
    }


def users_files(experiment: Experiment, base: Path) -> dict[str, Path]:
    """Return each name of the user's own code in the experiment, with its file."""
    said = [choice for kind in registry.KINDS if (choice := experiment.choice(kind)) is not None]
    said += experiment.evaluation.metrics
    named = [choice.name for whole in said for choice in with_nested(whole) if ":" in choice.name]
    files = {name: registry.code_file(name, base) for name in named}
    return {name: path for name, path in files.items() if path is not None and path.is_file()}


@contextmanager
def locate_user_errors(experiment: Experiment, base: Path) -> Iterator[None]:
    """Say of an exception that passed through the user's own code where in it that was.

    Raises:
        PartError: In place of such an exception, which is its cause.
    """
    try:
        yield
    except FedReachError:
        raise
    except (Exception, SystemExit) as error:
        files = set(users_files(experiment, base).values())
        packages = {path.parent for path in files if path.name == "__init__.py"}  # as of "sklearn.metrics:log_loss"
        paths = [(frame, Path(frame.filename).resolve()) for frame in traceback.extract_tb(error.__traceback__)]
        frames = [frame for frame, path in paths if path in files or packages & {*path.parents}]
        if not frames:
            raise
        last = frames[-1]
        raise PartError(
            f"{Path(last.filename).name}, line {last.lineno}, in {last.name}: {type(error).__name__}: {error}."
        ) from error
