"""The configuration: composed by Hydra, checked once, frozen."""
