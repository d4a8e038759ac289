"""Programs that start ranks, a file each."""
