"""``python -m fedreach.cli``: the command."""

from __future__ import annotations

from fedreach.cli import main

if __name__ == "__main__":
    main()
