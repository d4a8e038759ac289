"""Computation beside communication: what an operation hides of it, and what each costs."""
