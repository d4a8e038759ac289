"""Which backend (engine, layout, ...) is faster at which size, and where that changes."""
