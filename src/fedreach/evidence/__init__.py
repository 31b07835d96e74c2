"""What seeds can and cannot tell: judgements of differences, power, numbers of seeds, where spread comes from."""
