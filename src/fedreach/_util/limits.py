"""Limits of memory and processes, checked before either is taken.

Estimates count the largest arrays alone, so that nothing that fits is rejected.
"""

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from fedreach._util.errors import ConfigError, FedReachError

PROCESS_BYTES = 2**22  # least memory of a forked process: its page tables, and the pages that it writes to
NEGLIGIBLE_BYTES = 2**26  # any process takes this much, and reading the limits takes milliseconds
UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


def memory_bytes() -> int | None:
    """Return how many bytes of memory this process may have; None if unknown.

    This is the smallest of three limits: memory and swap of the machine, the control groups of this process, and the
    rest of ``ulimit -v``.
    """
    return min(_memory_limits(), default=None)


def process_limit() -> int | None:
    """Return how many processes ``ulimit -u``, the control groups and the system allow; None if unknown."""
    return min(_process_limits(), default=None)


def check_memory(what: str, needed: int, advice: str, error: type[FedReachError] = ConfigError) -> None:
    """Raise an error if something needs more memory than this process may have.

    Args:
        what: Subject of the message, with the sizes that determine the need.
        needed: Lower bound of the need in bytes.
        advice: What to do, for the message.
        error: Type of the error: DataError if the data cause the need. Default: ConfigError.

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
    """Raise an error for more processes than the system allows or memory holds, before one starts.

    Args:
        name: Option that sets the number, for the message.
        count: Number of processes.
        process_bytes: Memory per process in bytes. Default: `PROCESS_BYTES`.

    Raises:
        ConfigError: With the number and the limit.
    """
    memory = memory_bytes()
    limits = [(process_limit(), "the system allows"), (memory and max(1, memory // process_bytes), "memory holds")]
    limit, who = min(((maximum, who) for maximum, who in limits if maximum is not None), default=(count, ""))
    if count > limit:
        raise ConfigError(f"{name} must be at most {limit}, as many processes as {who}; got {count}. Lower it.")


def in_words(size: int) -> str:
    """Return a number of bytes with its unit.

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
    """Return the size of this process's address space in bytes; 0 if unknown."""
    pages = _text("/proc/self/statm").split()
    return int(pages[0]) * os.sysconf("SC_PAGE_SIZE") if pages else 0


def _process_limits() -> Iterator[int]:
    yield from _numbers("/proc/sys/kernel/pid_max")
    yield from _numbers("/proc/sys/kernel/threads-max")
    yield from _group_limits("pids.max", "pids.max", "pids")
    yield from _user_limit("RLIMIT_NPROC")


def _memory_of_the_machine() -> Iterator[int]:
    """Yield the memory of a machine without /proc, such as macOS."""
    try:
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return


def _group_limits(unified: str, before: str, controller: str) -> Iterator[int]:
    """Yield the limits of this process's control groups and of their parents.

    Args:
        unified: File with the limit in version 2.
        before: File with the limit in version 1.
        controller: Hierarchy of version 1.
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
        for folder in (group, *group.parents):  # in a container, parents of its own group are hidden
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
    """Yield the number in a file, if it holds one; "max" is not a number."""
    text = _text(path).strip()
    if text.isdecimal():
        yield int(text)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
