"""An experiment file: what it may say, how it is read and checked, and the parts made from it."""
