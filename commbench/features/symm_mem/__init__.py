"""torch's symmetric memory: collectives that reach into the memory of the other GPUs themselves."""
