"""``fedreach allocate``: from a table of clients to who sends, with which share of the band, at which frequency."""
