"""Performance guidelines: what holds on any machine, and which of it a run violates."""
