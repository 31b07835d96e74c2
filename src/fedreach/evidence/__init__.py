"""What seeds can and cannot tell: spread, paired judgements, corrections for many, power, numbers of seeds."""
