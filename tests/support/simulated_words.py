"""The command line of a quick noisy run in the simulated world, stored as parquet only."""

from __future__ import annotations

NOISY_RUN = (
    "backend=simulated",
    "writer=parquet",
    "sizes=[8,1KiB]",
    "backend.model.noise=0.02",
    "timing=fixed",
    "timing.repetitions=40",
    "timing.warmup_repetitions=2",
    "timing.warmup_s=0",
)
