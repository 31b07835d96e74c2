"""Where a user's cache lies: of data sets that were downloaded and of what was compiled."""

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """Return FedReach's folder in the user's cache, which need not exist.

    That is ``$XDG_CACHE_HOME/fedreach`` where the variable holds an absolute path, ``~/Library/Caches/fedreach`` on a
    Mac, ``%LOCALAPPDATA%/fedreach/Cache`` on Windows, and ``~/.cache/fedreach`` elsewhere.

    Raises:
        RuntimeError: If the user has no home, as in some containers.

    References:
        XDG Base Directory Specification, version 0.8: a relative path in the variable is to be ignored.
    """
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "fedreach" / "Cache"
    given = Path(os.environ.get("XDG_CACHE_HOME") or "")
    if given.is_absolute():
        return given / "fedreach"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "fedreach"
