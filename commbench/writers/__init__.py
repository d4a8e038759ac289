"""Output formats, a file each, and how files reach the disk."""
