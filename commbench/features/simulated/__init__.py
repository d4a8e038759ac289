"""The simulated world: messages, buffers and clocks of a model."""
