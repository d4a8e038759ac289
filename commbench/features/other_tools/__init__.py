"""Results of other tools as runs like any other: `commbench import FILE...`."""
