"""Names of other tools' programs as commands: `commbench osu_bw layout=2x1` is a run with the
program's operation, sizes and columns."""

from __future__ import annotations

from .nccl_tests import NCCL_TESTS_PROGRAMS
from .osu import OSU_PROGRAMS

OF_OSU = ("backend=mpi", "cache=warm", "timing=quick", "writer=osu")
MESSAGES = ("dtype=int8", "sizes=1..4MiB")
WINDOWS = (*MESSAGES, "window=64", "buffers=shared")
OF_NCCL_TESTS = ("backend=nccl", "sizes=8..8GiB", "timer=throughput", "writer=nccl_tests")
# by benchmark; the other collectives of OSU have the sizes of COLLECTIVES
SIZES_OF_OSU = {
    "barrier": (),
    "broadcast": ("sizes=1..1MiB",),
    "p2p_latency": MESSAGES,
    "p2p_bandwidth": WINDOWS,
    "p2p_bibandwidth": WINDOWS,
    "p2p_multi_pair": WINDOWS,
}
COLLECTIVES = ("sizes=4..1MiB", "in_place=false")


def short_forms() -> dict[str, tuple[str, ...]]:
    """Program -> the overrides of a run that measures the same."""
    of_osu = {
        program.name: (
            f"benchmark={benchmark}",
            *SIZES_OF_OSU.get(benchmark, COLLECTIVES),
            *(["sizes_per=rank"] if program.size == "block" else []),
            *OF_OSU,
        )
        for benchmark, program in OSU_PROGRAMS.items()
    }
    of_nccl_tests = {
        program: (f"benchmark={benchmark}", *OF_NCCL_TESTS)
        for benchmark, program in NCCL_TESTS_PROGRAMS.items()
    }
    return of_osu | of_nccl_tests
