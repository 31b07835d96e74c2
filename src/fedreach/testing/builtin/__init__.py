"""Laws of the built-in parts: golden numbers and what theory says of each."""
