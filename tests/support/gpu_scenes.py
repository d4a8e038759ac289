"""Cases on GPUs of every benchmark that sends something, for programs that are run on host
memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from composed import every_benchmark
from hypothesis import strategies as st
from sample_cases import GPU_CASE

from commbench.core.case import Benchmark
from commbench.core.variables import Case

# the others copy within a rank, or write to sockets
OTHERS = {"staging", "stream_threads"}
SENDING = [each for each in every_benchmark().values() if OTHERS.isdisjoint(each.axes)]


@st.composite
def gpu_scenes(draw: st.DrawFn, staging: str, dtypes: Sequence[str]) -> tuple[Benchmark, Case, int]:
    """A benchmark, a case on GPUs that it takes, and the size of its world."""
    benchmark = draw(st.sampled_from(SENDING))
    size = draw(st.integers(max(benchmark.min_ranks, 1), 4))
    count = draw(st.integers(1, 40)) if benchmark.blocks(size) else 0
    values: dict[str, Any] = {
        "pair": (
            st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)).map(
                lambda pair: f"{pair[0]}-{pair[1]}"
            )
        ),
        "window": st.integers(1, 4),
        "in_place": st.booleans(),
        "reduction": st.sampled_from(("sum", "prod", "min", "max")),
        "root": st.integers(0, size - 1),
    }
    chosen = {name: draw(values[name]) if name in benchmark.axes else None for name in values}
    if "pairs" in benchmark.axes:
        chosen["pair"] = {1: "0-0", 4: "0-2 1-3"}.get(size, "0-1")
    case = replace(
        GPU_CASE, benchmark=benchmark.name, dtype=draw(st.sampled_from(dtypes)), layout=f"1x{size}",
        message_bytes=4 * count, elements=count, staging=staging, **chosen,
    )  # fmt: skip
    return benchmark, case, size
