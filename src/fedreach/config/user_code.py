"""What makes a run this run: its options and the user's own code; and where in that code an error came from."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from fedreach import registry
from fedreach.config.own_files import code_digest, code_files, data_files, digest
from fedreach.config.parts import with_nested
from fedreach.config.sections import Choice, Experiment
from fedreach.errors import FedReachError, PartError


def identity(experiment: Experiment, seed: int, method: str, base: Path) -> dict[str, Any]:
    """Return what makes a run this run: its method, seed, options, the user's own code and data.

    Code that Python handed over is known by its name already, which has a digest.

    Raises:
        DataError: If a file cannot be read.
    """
    return {
        "method": method,
        "seed": seed,
        "config": experiment.model_dump(mode="json"),
        **file_digests(experiment, base),
    }


def file_digests(experiment: Experiment, base: Path) -> dict[str, dict[str, str] | None]:
    """Return the digests of the user's own ``code`` and ``data`` in the experiment; of data None where there are none.

    Of code what it means counts, see `fedreach.storage.code`.

    Raises:
        DataError: If a file cannot be read.
    """
    code, data = users_code(experiment, base), data_files(experiment, base, _parts(experiment))
    return {
        "code": {name: code_digest(path, name) for name, path in code.items()},
        "data": {name: digest(path) for name, path in data.items()} or None,
    }


def users_code(experiment: Experiment, base: Path) -> dict[str, Path]:
    """Return the files of the user's own code in the experiment, by its name there; by path those that it imports."""
    files: dict[str, Path] = {}
    for choice in _parts(experiment):
        if ":" in choice.name:
            files |= code_files(choice.name, base)
    return files


def _parts(experiment: Experiment) -> list[Choice]:
    """Return all that an experiment names, with what that is made of."""
    said = [choice for kind in registry.KINDS if (choice := experiment.choice(kind)) is not None]
    functions = experiment.model.output, experiment.local.schedule
    said += [Choice(name=name) for name in functions if isinstance(name, str) and ":" in name]
    return [choice for whole in [*said, *experiment.evaluation.metrics] for choice in with_nested(whole)]


@contextmanager
def locate_user_errors(experiment: Experiment, base: Path) -> Iterator[None]:
    """Say of an exception that passed through the user's own code where in it that was.

    Of an error that FedReach made of one, such as that of a client whose model failed, the place is said, too. Ctrl-C
    passes: nobody can tell whether a part raised it.

    Raises:
        PartError: In place of such an exception, which is its cause.
    """
    try:
        yield
    except FedReachError as error:
        place = None if isinstance(error, PartError) else _place(error.__cause__, experiment, base)
        if place is not None:
            error.args = (f"{str(error).rstrip('.')}. That was in {place}.", *error.args[1:])
        raise
    except (Exception, SystemExit) as error:
        # A StopIteration that leaves a generator becomes a RuntimeError, and stays its cause.
        for cause in (error, error.__cause__):
            if (place := _place(cause, experiment, base)) is not None:
                said = f": {cause}" if f"{cause}" else ""
                raise PartError(f"{place}: {type(cause).__name__}{said}.") from error
        raise


def _place(error: BaseException | None, experiment: Experiment, base: Path) -> str | None:
    """Return where in the user's own code an error came from; None where it came from elsewhere."""
    if error is None or isinstance(error, FedReachError):
        return None
    files = {path.resolve() for path in users_code(experiment, base).values()}
    packages = {path.parent for path in files if path.name == "__init__.py"}  # as of "sklearn.metrics:log_loss"
    places = [
        f"{Path(file).name}, line {line}, in {frame.f_code.co_name}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if _is_users(frame, file := frame.f_code.co_filename)
        or (path := Path(file).resolve()) in files
        or packages & {*path.parents}
    ]
    return places[-1] if places else None


def _is_users(frame: FrameType, file: str) -> bool:
    """Say whether code is nobody's library: a file of one's own, a script, or what was typed in."""
    module = frame.f_globals.get("__name__") or ""
    if module.partition(".")[0] == "fedreach":
        return False
    return module == "__main__" if file.startswith("<") else not registry.is_installed(file)
