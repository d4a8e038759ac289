"""Messages from every rank to every other one at once, from a buffer for each or from one."""
