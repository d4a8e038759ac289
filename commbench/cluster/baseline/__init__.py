"""The store of healthy runs, and fresh launches that are compared with it."""
