"""The rows of a round are those that its pairs would have if each were recorded by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from composed import FACTS, settings_of
from visited import STARTED

from commbench.cli.run import run_one
from commbench.core.case import Planned
from commbench.hardware.link_limits import interface_limit
from commbench.measure.case import CaseVisit
from commbench.measure.conditions import Conditions
from commbench.measure.plan import plan
from commbench.measure.recorder import Recorder
from commbench.measure.row_samples import case_rows
from commbench.measure.samples import Counts, Samples
from commbench.measure.transports import Reported, TransportEvidence
from commbench.measure.visit_setup import VisitSetup
from commbench.results.fan_out import FanOut
from commbench.results.load import read_rows
from commbench.results.writer import Entry
from commbench.runtime.control import hosted_world
from commbench.runtime.heartbeat import Progress

WORDS = (
    "backend=simulated",
    "layout=2x3",
    "schedule=rounds",
    "window=4",
    "backend.model.noise=0.1",
    "backend.model.slow_pair=1-5",
    "backend.model.slow_factor=3",
    "timing=fixed",
    "timing.repetitions=20",
)


class Kept:
    """A writer that keeps what it is given, by case id."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}

    def begin(self, run: Any, folder: str) -> None: ...

    def cases(self, entries: Sequence[Entry]) -> None:
        self.entries |= {entry.row.case_id: entry for entry in entries}

    def end(self, run: Any) -> None: ...


def recorded(
    settings: Any, conditions: Conditions, cases: list[tuple[Planned, Samples]]
) -> dict[str, Entry]:
    """The rows and tables of cases, each visited once."""
    run = {"run_id": "r", "sweep_id": "s", "launches": {"planned": 1, "began": [0]}}
    recorder = Recorder(replace(settings, writers=()), run, len(cases))
    writer = Kept()
    recorder.published.writers = FanOut([writer])
    for planned, samples in cases:
        recorder.record(planned, samples, conditions, STARTED)
    recorder.end_visits(cases[0][0], conditions)
    return writer.entries


def of_ranks(samples: Samples, ranks: tuple[int, ...]) -> Samples:
    """The samples of a case of these ranks alone."""
    places = [samples.ranks.index(rank) for rank in ranks]
    blocks = tuple(replace(block, stamps=block.stamps[places]) for block in samples.blocks)
    counts = tuple(counts for counts in samples.counts if counts.rank in ranks)
    return replace(
        samples, ranks=ranks, blocks=blocks, counts=counts, series=None, first_call_s=None
    )


@pytest.mark.parametrize("benchmark", ["p2p_latency", "p2p_bandwidth"])
@pytest.mark.parametrize("pairs", ["all", "[[0,1],[2,2],[5,3]]"])
def test_a_round_has_the_rows_and_the_samples_of_its_pairs(benchmark: str, pairs: str) -> None:
    settings = settings_of(*WORDS, f"benchmark=[{benchmark}]", "sizes=[64KiB]", f"pairs={pairs}")
    world, control = hosted_world(2, 3)
    wires = (interface_limit("eth0", 1000), interface_limit("eth1", 2000))
    evidence = TransportEvidence(reported=Reported(interfaces=wires))
    conditions = Conditions({}, {}, 8, 1, 2**20, evidence, world, small_shm_nodes=frozenset({1}))
    for planned in plan(settings, world, FACTS):
        communicator = settings.backend.open(world, control, "cpu")
        setup = VisitSetup(planned, communicator, control, settings, {}, print, Progress())
        samples = CaseVisit(setup).measure()
        assert isinstance(samples, Samples)
        readings = tuple(Counts(rank, 7 * rank, {"tcp": float(rank)}) for rank in range(6))
        samples = replace(samples, counts=readings)
        # as a clock would have stamped them: the flags of a machine count
        planned = replace(planned, case=replace(planned.case, engine="python"))
        together = recorded(settings, conditions, [(planned, samples)])
        alone = [(row.planned, of_ranks(samples, row.ranks)) for row in case_rows(planned)]
        apart = recorded(settings, conditions, alone)
        assert together.keys() == apart.keys() and len(apart) == len(planned.case.pairs)
        for case_id, (row, *tables) in apart.items():
            seen, *seen_tables = together[case_id]
            assert replace(seen, visits_s=0) == replace(row, visits_s=0)
            for own, shared in zip(tables, seen_tables, strict=True):
                assert own.keys() == shared.keys()
                assert all(np.array_equal(own[name], shared[name]) for name in own)


def test_a_round_of_gloo_has_the_times_of_its_pairs(tmp_path: Path) -> None:
    words = ("backend=gloo", "layout=1x4", "benchmark=p2p_latency", "pairs=all", "sizes=[8]")
    run = run_one(*words, "schedule=rounds", "timing=fixed", f"output={tmp_path}")
    cases = read_rows([run], "cases").query("status == 'ok'")
    assert len(cases) == 12, "gloo sends no message to the same rank"
    assert cases.skew_s.gt(0).all()
    samples = read_rows([run], "samples").query("phase == 'measure'")
    for row in cases.itertuples():
        assert row.pair == f"{row.source}-{row.destination}"
        own = samples[samples.case_id == row.case_id]
        assert {*own["rank"]} == {row.source, row.destination}
        round_trips = own[own["rank"] == row.source]
        assert round_trips.elapsed_ns.median() * 1e-9 / 2 == pytest.approx(row.median_s)
