"""``python -m fedreach.cli``: the command."""

from fedreach.cli import main

if __name__ == "__main__":
    main()
