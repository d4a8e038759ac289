"""Costs besides the steady rate: the first call and the ramp after it."""
