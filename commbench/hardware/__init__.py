"""What this machine is and what its links can carry."""
