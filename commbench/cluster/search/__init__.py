"""Which node is slow, in rounds of pairs: `commbench locate`, `pairs=search`."""
