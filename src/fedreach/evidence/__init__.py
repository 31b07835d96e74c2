"""What a set of runs says, and how sure that is: numbers in, judgements out."""
