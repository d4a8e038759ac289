"""A run that ends early: what its error says, and what is saved and recorded."""

from __future__ import annotations

import signal
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

import pytest
from composed import FACTS, settings_of

from commbench.core.case import World
from commbench.core.errors import Missing, StoreLost, WorldBroken
from commbench.measure.case import CaseVisit
from commbench.measure.conditions import Conditions
from commbench.measure.early_end import EarlyEnd, VisitInFlight
from commbench.measure.plan import plan
from commbench.measure.recorder import Recorder
from commbench.measure.transports import TransportEvidence
from commbench.measure.visit_setup import VisitSetup
from commbench.results.fan_out import FanOut
from commbench.results.row import Row
from commbench.runtime.control import hosted_world
from commbench.runtime.exit_protocol import ENDS, read_ends
from commbench.runtime.heartbeat import Heartbeat, Progress

WORLD = World(0, 2, ((0, 1),), (0,))


class Ending:
    """A rank of a run of one case, which is in flight."""

    def __init__(self, rank: int = 0, *words: str) -> None:
        own = ("benchmark=all_reduce", "layout=1x2", "sizes=[8]")
        settings = replace(settings_of("backend=simulated", *own, *words), writers=())
        world, control = hosted_world(1, 2)
        (planned,) = plan(settings, world, FACTS)
        self.case_id = planned.case.case_id
        self.run: dict[str, Any] = {
            "run_id": "r",
            "sweep_id": "s",
            "launches": {"planned": 1, "began": [0], "spent_s": 0.0},
        }
        self.recorder = Recorder(settings, self.run, 1)
        self.recorder.published.writers = FanOut([])
        self.early_end = EarlyEnd(
            replace(WORLD, rank=rank), self.recorder, self.run, has_parent=True
        )
        communicator = settings.backend.open(world, control)
        progress = Progress()
        setup = VisitSetup(planned, communicator, control, settings, {}, self.save, progress)
        conditions = Conditions({}, {}, 8, 1, 2**20, TransportEvidence(), WORLD)
        started = datetime.now(timezone.utc)
        self.early_end.in_flight = VisitInFlight(CaseVisit(setup), started, conditions)

    def save(self, _: object) -> None:
        raise AssertionError("nothing has been measured")

    @property
    def row(self) -> Row | None:
        return self.recorder.published.rows.get(self.case_id)


class Watched:
    """A heartbeat that has seen rank 1 end."""

    def dead_here(self) -> list[int]:
        return [1]

    def describe(self, ranks: Any) -> str:
        return f"last seen: {ranks}"

    def describe_lost(self, ranks: Any) -> str:
        return f"rank {ranks[0]} has ended" if ranks else ""

    def stacks(self) -> dict[str, list[str]]:
        return {"rank 0": ["main"]}

    def wait_for_first_rank(self, timeout_s: float) -> None:
        pass


def after_error(ending: Ending, error: Exception) -> WorldBroken:
    try:
        raise error
    except Exception as raised:
        return ending.early_end.save_after_error(raised)


def test_an_error_breaks_the_case_in_flight_and_is_recorded_with_its_stack() -> None:
    ending = Ending()
    broken = after_error(ending, ValueError("no such buffer"))
    assert str(broken).startswith("rank 0") and str(broken).endswith("ValueError: no such buffer")
    assert ending.row is not None
    assert (ending.row.status, ending.row.reason) == ("failed", str(broken))
    assert (ending.run["status"], ending.run["exit_status"]) == ("broken", 3)
    assert ending.run["reason"] == str(broken)
    assert ending.run["stacks"]["rank 0"][-1] == "ValueError: no such buffer"


def test_another_rank_records_nothing_and_leaves_its_name_to_the_command_line() -> None:
    ending = Ending(rank=1)
    assert str(after_error(ending, ValueError("no such buffer"))) == "ValueError: no such buffer"
    assert ending.row is None and "status" not in ending.run


@pytest.mark.parametrize(
    "error", [StoreLost(0, "start", 1.0, "closed"), WorldBroken("rank 1 is lost")]
)
def test_an_error_that_ends_the_world_stays_as_it_is(error: WorldBroken) -> None:
    assert after_error(Ending(), error) is error


def test_rank_0_says_where_missing_ranks_were_last_seen() -> None:
    ending = Ending()
    ending.early_end.heartbeat = cast(Heartbeat, Watched())
    broken = after_error(ending, Missing((1,), "start of a case", 1.0))
    assert isinstance(broken, Missing) and "last seen: (1,)" in str(broken)


def test_a_users_signal_interrupts_the_run_and_leaves_the_case_in_flight_unrecorded() -> None:
    ending = Ending()
    assert ending.early_end.find_lost_ranks(signal.SIGINT)
    ending.early_end.save_after_signal(130)
    assert ending.row is None
    assert (ending.run["status"], ending.run["exit_status"]) == ("interrupted", 130)
    assert ending.run["reason"] is None


def test_a_launchers_signal_after_a_rank_has_ended_breaks_the_case_in_flight(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(ENDS, str(tmp_path / "ends"))
    ending = Ending()
    ending.early_end.heartbeat = cast(Heartbeat, Watched())
    assert not ending.early_end.find_lost_ranks(signal.SIGTERM)
    ending.early_end.save_after_signal(143)
    assert ending.row is not None and ending.row.reason == "rank 1 has ended"
    assert ending.run["reason"] == "rank 1 has ended"
    assert [end.reason for end in read_ends(tmp_path / "ends")] == ["rank 1 has ended"]
    assert ending.run["stacks"] == {"rank 0": ["main"]}


def test_a_signal_while_only_the_library_is_closed_changes_nothing() -> None:
    ending = Ending()
    ending.early_end.closing_status = 0
    ending.early_end.save_after_signal(143)
    assert ending.row is None and "status" not in ending.run
