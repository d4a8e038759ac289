"""TCP sockets."""
