"""A run inside its world: plan, preflight, samples, statistics, rows."""
