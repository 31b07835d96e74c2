"""``python -m papers``: run and judge a paper's tables and figures, or split the spread over seeds into its parts."""

from papers.command import main

if __name__ == "__main__":
    main()
