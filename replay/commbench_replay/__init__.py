"""Communication of a training job: read from its traces, or made by a generator; as a table, an
analysis and a workload file."""
