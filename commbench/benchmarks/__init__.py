"""The operations, a file each, as programs of steps."""
