"""Laws that every part of a kind must keep, a user's too."""
