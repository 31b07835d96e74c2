"""How updates become one: the weighted mean, in the open or under a secure sum."""
