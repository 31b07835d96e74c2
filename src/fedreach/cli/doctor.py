"""``fedreach doctor``: check this machine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import click

from fedreach.cli import options

# ---- Checks of this machine

MAX_NAMES = 4  # packages that a line names
FOR_WORK_ON_FEDREACH = {"oracles", "bench", "browser", "docs", "mutate", "dev"}


@dataclass(frozen=True)
class Diagnosis:
    """Result of one check of this machine.

    Args:
        name: Name of the checked item.
        works: Whether the item works.
        found: Finding in a few words.
        fix: How to fix the item if it does not work.
        core: Whether training is impossible without the item.
    """

    name: str
    works: bool
    found: str
    fix: str = ""
    core: bool = False


def checks(folder: Path) -> list[Diagnosis]:
    """Return the results of all checks, where `folder` is the folder for runs."""
    from fedreach.data.sets.download import data_folder

    return [
        *packages(),
        *torch(),
        compiler(),
        check_writable("run folder", folder, "another folder, with --out", core=True),
        _cache("another folder: XDG_CACHE_HOME=FOLDER"),
        data(data_folder()),
    ]


def packages() -> list[Diagnosis]:
    """Check that required and optional packages are installed; `pip check` compares their versions."""
    names_by_extra: dict[str, list[str]] = {}
    for line in metadata.requires("fedreach") or []:
        name, extra = re.match(r"[\w.-]+", line), re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if name and not (extra and extra[1] in FOR_WORK_ON_FEDREACH):
            names_by_extra.setdefault(extra[1] if extra else "", []).append(name[0])
    results = []
    for key, names in names_by_extra.items():
        missing = [name for name in names if not _is_installed(name)]
        finding = ", ".join(names) if len(names) <= MAX_NAMES else f"{len(names)} packages"
        finding = f"not installed: {', '.join(missing)}" if missing else finding
        fix = "pip install " + (f"'fedreach[{key}]'" if key else " ".join(missing))
        results.append(Diagnosis(f"extra {key}" if key else "packages", not missing, finding, fix, core=not key))
    return results


def torch() -> list[Diagnosis]:
    """Check the build of torch, its number of threads, and its GPUs."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a library that torch needs is missing
        return [
            Diagnosis("torch", False, f"cannot be imported: {error}", "pip install --force-reinstall torch", core=True)
        ]
    built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for CPUs"
    threads = f"{torch.get_num_threads()} threads of {os.cpu_count()} cores"
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    what = (
        "install a torch build for it, see pytorch.org" if not torch.version.cuda else "see whether nvidia-smi lists it"
    )
    return [
        Diagnosis("torch", True, f"{torch.__version__} built {built}, {threads}", core=True),
        Diagnosis(
            "GPU",
            bool(gpus),
            ", ".join(gpus) or "torch sees no GPU, so CPUs train",
            f"if this machine has a GPU, {what}",
        ),
    ]


def compiler() -> Diagnosis:
    """Check that the C code of the fastest engine can be compiled, if necessary, and loaded."""
    from fedreach.engines.native.library import NoLibraryError, library

    fix = "install a C compiler (Debian: apt install gcc; macOS: xcode-select --install), or name one with CC=..."
    try:
        library()
    except NoLibraryError as error:
        return Diagnosis("C engine", False, f"{error}, so a slower engine trains", fix)
    return Diagnosis("C engine", True, "compiled and loaded")


def check_writable(name: str, folder: Path, instead: str, *, core: bool = False) -> Diagnosis:
    """Check that files can be written to a folder, or, if it does not exist, to its parent folder."""
    place = folder.absolute()
    while not (place.exists() or place.is_symlink()):
        place = place.parent
    fix = f"make {place} writable, or use {instead}"
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"fedreach")
    except OSError as error:
        return Diagnosis(name, False, f"{folder}: {error.strerror}", fix, core)
    free_gb = shutil.disk_usage(place).free / 1e9
    return Diagnosis(name, True, f"{folder} is writable, {free_gb:.1f} GB free", core=core)


def data(folder: Path) -> Diagnosis:
    """Check that the data folder exists; the digits, which come with FedReach, do not need it."""
    if folder.is_dir():
        return Diagnosis("data folder", True, str(folder))
    if os.environ.get("FEDREACH_DATA"):
        return Diagnosis(
            "data folder",
            False,
            f"FEDREACH_DATA is {folder}, which is not a folder",
            f"mkdir -p {shlex.quote(str(folder))}",
        )
    return Diagnosis("data folder", True, f"{folder}, created by the first download")


def _cache(instead: str) -> Diagnosis:
    from fedreach._util.files import cache_folder

    try:
        folder = cache_folder()
    except RuntimeError as error:  # users without a home folder, as in containers
        return Diagnosis("cache folder", False, str(error), f"use {instead}")
    return check_writable("cache folder", folder, instead)


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


# ---- The command


@click.command(epilog="Examples:\n\n\b\n  fedreach doctor\n  fedreach doctor --out comparison/runs --json")
@click.option(
    "--out", type=options.path, default=Path("runs"), show_default=True, help="Check write access to this folder."
)
@options.as_json
def doctor(out: Path, as_json: bool) -> None:
    """Check this machine, and show how to fix what is missing.

    Exits with status 1 if training is impossible, else with status 0, even if other checks fail.
    """
    from fedreach._util.errors import FedReachError

    results = checks(out)
    broken = [check.name for check in results if check.core and not check.works]
    if as_json:
        options.set_json({"works": not broken, "checks": [asdict(check) for check in results]})
    else:
        for check in results:
            mark = "ok" if check.works else ("BROKEN" if check.core else "missing")
            options.echo(f"{mark:<7} {check.name:<16} {check.found}")
            if not check.works:
                options.echo(f"{'':24} fix: {check.fix}")
    if broken:
        raise FedReachError(f"FedReach does not work on this machine. Fix first: {', '.join(broken)}.")
