"""What several selection policies are made of."""
