"""The operations as programs of steps, one per file; copies within a rank share one."""
