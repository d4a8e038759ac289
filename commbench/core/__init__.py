"""Values and protocols that every other package uses."""
