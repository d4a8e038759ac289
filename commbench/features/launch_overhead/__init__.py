"""What it costs to launch a call from the host, beside its replay in a graph."""
