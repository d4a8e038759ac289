"""`commbench doctor`: what this machine has, and which backends can run."""
