"""The libraries of most runs, a folder each; those of fewer lie in `features`. Other code asks a
backend what it can, and never for its name."""
