"""Where the spread of a comparison comes from: the runs of a nested design become tables, sentences and a figure."""
