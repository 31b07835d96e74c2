"""The best clients and what they get, with a proven gap."""
