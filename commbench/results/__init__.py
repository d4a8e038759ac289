"""What a run leaves in its folder: columns, flags, facts, files, and reading them back."""
