"""The stages of `experiment=acceptance`, and the verdict on each node."""
