"""From runs to numbers: means, intervals, findings."""
