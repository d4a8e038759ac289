"""A suite every few hours, and what has changed: `commbench watch`."""
