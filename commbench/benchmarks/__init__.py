"""The operations as programs of steps, one per file; the copies within a rank share one."""
