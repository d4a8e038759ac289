"""How long it takes to open a communicator, and to split one."""
