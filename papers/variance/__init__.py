"""Where the spread over seeds comes from: a nested design of runs, and what its numbers say."""
