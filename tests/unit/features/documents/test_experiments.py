"""The experiments measure what their documents did."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from commbench.config.compose import ConfigComposer
from commbench.config.experiments import RequestedJobs, requested_jobs
from commbench.config.settings import Job
from commbench.core.layout import Layout
from commbench.measure.plan import plan
from commbench.measure.plan_facts import PlanFacts
from commbench.runtime.control import hosted_world

OSU = [2**power for power in range(23)]  # 1 B to 4 MiB


@pytest.fixture
def composer() -> Iterator[ConfigComposer]:
    with ConfigComposer() as opened:
        yield opened


def ask(composer: ConfigComposer, name: str) -> RequestedJobs:
    return requested_jobs(composer, [f"experiment={name}"], multirun=False)


@functools.cache
def jobs_of(name: str) -> tuple[Job, ...]:
    """An experiment as its file says, composed once for all tests that ask about it."""
    with ConfigComposer() as composer:
        return ask(composer, name).jobs


@pytest.mark.parametrize("backend", ["mpi", "nccl"])
def test_allreduce_is_that_of_the_post(backend: str) -> None:
    jobs = jobs_of("mlbench_allreduce")
    chosen = [job.settings for job in jobs if job.settings.backend.name == backend]
    assert {settings.layouts for settings in chosen} == {
        (Layout(8, 1),),
        (Layout(4, 2),),
        (Layout(2, 4),),
        (Layout(1, 8),),
    }
    assert {settings.sizes[0] for settings in chosen} == {
        tuple(4 * 10**power for power in range(1, 10))
    }
    assert {
        (settings.timing.repetitions, settings.device, settings.dtypes) for settings in chosen
    } == {(100, "cuda", ("float32",))}
    assert {job.settings.backend.name for job in jobs} == {"mpi", "nccl"}


def test_p2p_is_that_of_the_post(composer: ConfigComposer) -> None:
    jobs = [job.settings for job in ask(composer, "mlbench_p2p").jobs]
    points = {(settings.layouts[0], settings.device, settings.cuda_ipc) for settings in jobs}
    nodes = Layout(2, 1)
    node = Layout(1, 2)
    assert points == {
        (nodes, "cpu", "auto"),
        (nodes, "cuda", "auto"),
        (node, "cuda", "on"),
        (node, "cuda", "off"),
    }


def test_streams_are_those_of_the_note(composer: ConfigComposer) -> None:
    jobs = [job.settings for job in ask(composer, "ec2_streams").jobs]
    tcp = [settings for settings in jobs if settings.backend.name == "tcp"]
    mpi = [settings for settings in jobs if settings.backend.name == "mpi"]
    driven = [(each.axes["streams"], each.axes["stream_threads"]) for each in tcp]
    assert driven == [((1, 4, 36), ("one", "each"))], "iperf3, iperf2"
    assert {each.benchmarks[0].name for each in tcp} == {"stream"}
    links = {dict(settings.env).get("OMPI_MCA_btl_tcp_links"): settings for settings in mpi}
    assert set(links) == {"1", "36", None}
    assert (
        links[None].layouts == (Layout(2, 72),)
        and links[None].benchmarks[0].name == "p2p_multi_pair"
    )
    assert all(
        list(settings.sizes[0]) == OSU and settings.axes["window"] == (64,) for settings in mpi
    )


@pytest.mark.long
def test_the_soak_has_52_write_buffers(composer: ConfigComposer) -> None:
    jobs = [job.settings for job in ask(composer, "openbsd_soak").jobs]
    short = [
        settings
        for settings in jobs
        if settings.timing.duration_s == 2 and settings.backend.buffer_bytes is None
    ]  # type: ignore[attr-defined]
    kib = sorted(size // 1024 for settings in short for size in settings.sizes[0])
    assert kib == [*range(5, 33), *range(40, 129, 8), *range(160, 513, 32)]
    (long,) = [settings for settings in jobs if settings.timing.duration_s == 1000]
    assert (long.timing.interval_s, long.pairs, long.layouts) == (0.1, "all", (Layout(4, 1),))


def test_the_quiz_has_20_ranks_and_5_ints(composer: ConfigComposer) -> None:
    (job,) = ask(composer, "exchange_quiz").jobs
    assert job.settings.layouts == (Layout(1, 20),)
    assert (job.settings.dtypes, job.settings.sizes) == (("int32",), ((20,),))
    assert job.settings.axes["buffers"] == ("own", "shared")


@pytest.mark.parametrize("layout", ["32x36", "8x44"])
def test_gather_on_all_nodes_of_the_slides_has_no_skip(layout: str) -> None:
    """Its sizes are of each rank: 64 B in total could not be divided among 352."""
    chosen = Layout.parse(layout)
    candidates = [
        job.settings for job in jobs_of("mvapich_cloud") if chosen in job.settings.layouts
    ]
    assert {candidate.backend.name for candidate in candidates} == {"mpi"} and candidates
    gather = tuple(
        benchmark for benchmark in candidates[0].benchmarks if benchmark.name == "gather"
    )
    settings = replace(candidates[0], layouts=(chosen,), benchmarks=gather)
    jobs = plan(
        settings, hosted_world(chosen.nodes, chosen.ranks_per_node)[0], PlanFacts(2**40, 2**20, 64)
    )
    assert [job.skip for job in jobs] == [None] * 10
    assert sorted(job.case.elements for job in jobs) == [4**power for power in range(10)], (
        "float32 of each rank"
    )
