"""Whether a run is as fast as healthy ones: `commbench accept`."""
