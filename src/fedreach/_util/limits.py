"""What this machine has, and the refusal of what would take more memory or processes, before they are taken.

Estimates are of the largest arrays alone, so that nothing is refused that would fit; what little they pass over is left
to the system.
"""

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from fedreach._util.errors import ConfigError, FedReachError

PROCESS_BYTES = 2**22  # what a forked process takes at least: its tables of pages, and pages that it writes to
NEGLIGIBLE_BYTES = 2**26  # which any process of ours takes: asking for the limits takes milliseconds
UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


def memory_bytes() -> int | None:
    """Return how many bytes of memory this process may have at most; None where nobody says.

    The least of what the machine has, with the space it swaps to, what the control groups of this process are given,
    and what is left of ``ulimit -v``.
    """
    return min(_memory_limits(), default=None)


def most_processes() -> int | None:
    """Return how many processes there may be, by ``ulimit -u``, the control groups and the system; None: unknown."""
    return min(_process_limits(), default=None)


def check_memory(what: str, needed: int, advice: str, error: type[FedReachError] = ConfigError) -> None:
    """Refuse what needs more memory than there is, before it is asked for.

    Args:
        what: The sentence's subject, with the sizes that it comes from.
        needed: Bytes, at least.
        advice: What to do.
        error: Kind of the refusal: DataError where data ask for it.

    Example:
        >>> check_memory("a table of 3 clients x 2 classes", 48, "Lower the number of clients.")
        >>> check_memory("a table of 10^9 x 10^9", 8 * 10**18, "Lower the number of clients.")
        Traceback (most recent call last):
        fedreach.ConfigError: a table of 10^9 x 10^9 needs at least 8 EB of memory; this process may have ...
    """
    if needed <= NEGLIGIBLE_BYTES:
        return
    limit = memory_bytes()
    if limit is not None and needed > limit:
        raise error(
            f"{what} needs at least {in_words(needed)} of memory; this process may have {in_words(limit)}. {advice}"
        )


def check_processes(name: str, count: int, process_bytes: int = PROCESS_BYTES) -> None:
    """Refuse more processes than there may be, or than memory holds at `each` bytes a process, before one is started.

    Raises:
        ConfigError: With the number and the limit.
    """
    memory = memory_bytes()
    limits = [(most_processes(), "the system allows"), (memory and max(1, memory // process_bytes), "memory holds")]
    limit, who = min(((maximum, who) for maximum, who in limits if maximum is not None), default=(count, ""))
    if count > limit:
        raise ConfigError(f"{name} must be at most {limit}, as many processes as {who}; got {count}. Lower it.")


def in_words(size: int) -> str:
    """Return a number of bytes for people.

    Example:
        >>> in_words(25_500_000_000), in_words(999), in_words(10**30)
        ('25.5 GB', '999 bytes', '1e+12 EB')
    """
    power = min(len(UNITS) - 1, (len(str(abs(size))) - 1) // 3)
    return f"{size / 1000**power if size < 10**300 else math.inf:.3g} {UNITS[power]}"


def _memory_limits() -> Iterator[int]:
    system = {line.split(":")[0]: line.split()[1] for line in _text("/proc/meminfo").splitlines() if ":" in line}
    if "MemTotal" in system:
        yield 1024 * (int(system["MemTotal"]) + int(system.get("SwapTotal", 0)))
    else:
        yield from _memory_of_the_machine()
    yield from _group_limits("memory.max", "memory.limit_in_bytes", "memory")
    for limit in _user_limit("RLIMIT_AS"):  # of addresses: libraries alone take gigabytes of them
        yield max(0, limit - _addressed_bytes())


def _addressed_bytes() -> int:
    """Return how many bytes of addresses this process has; 0 where nobody says."""
    pages = _text("/proc/self/statm").split()
    return int(pages[0]) * os.sysconf("SC_PAGE_SIZE") if pages else 0


def _process_limits() -> Iterator[int]:
    yield from _numbers("/proc/sys/kernel/pid_max")
    yield from _numbers("/proc/sys/kernel/threads-max")
    yield from _group_limits("pids.max", "pids.max", "pids")
    yield from _user_limit("RLIMIT_NPROC")


def _memory_of_the_machine() -> Iterator[int]:
    """Yield what the machine has where there is no /proc, as on macOS."""
    try:
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return


def _group_limits(unified: str, before: str, controller: str) -> Iterator[int]:
    """Yield what the control groups of this process, and those that they lie in, may have.

    Args:
        unified: File of a group of version 2.
        before: The same of version 1, where
        controller: Names the hierarchy.
    """
    for line in _text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, file = Path("/sys/fs/cgroup"), unified
        elif controller in controllers.split(","):
            root, file = Path("/sys/fs/cgroup") / controller, before
        else:
            continue
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):  # in a container, groups above its own are not to be seen
            if folder == root or root in folder.parents:
                yield from _numbers(str(folder / file))


def _user_limit(name: str) -> Iterator[int]:
    if sys.platform == "win32":
        return
    import resource

    limit = resource.getrlimit(getattr(resource, name))[0]
    if limit != resource.RLIM_INFINITY:
        yield limit


def _numbers(path: str) -> Iterator[int]:
    """Yield the number in a file, if there is one; "max" is none."""
    text = _text(path).strip()
    if text.isdecimal():
        yield int(text)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
