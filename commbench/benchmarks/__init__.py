"""The operations, one per file, as programs of steps."""
