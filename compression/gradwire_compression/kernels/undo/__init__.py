"""Taking back an encode whose result is thrown away."""
