"""One operation a file: which buffers, which steps, what must come out, and its bus factor."""
