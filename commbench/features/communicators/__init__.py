"""FEATURE: the time until a communicator can be used: communicator_init, communicator_split."""
