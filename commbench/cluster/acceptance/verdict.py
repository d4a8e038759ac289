"""What an acceptance says about a node: an outcome for each stage, and the worst of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from commbench.core.states import STAGES, Stage

StageOutcome = Literal["FAIL", "NOT MEASURED", "PASS", "-"]  # the worst first; -: does not apply
STAGE_OUTCOMES: tuple[StageOutcome, ...] = get_args(StageOutcome)
StageName = Literal["machine"] | Stage
STAGE_NAMES: tuple[StageName, ...] = ("machine", *STAGES)


@dataclass(frozen=True)
class StageResult:
    """What a stage says about a node; `lines` are its evidence, or why it says nothing."""

    outcome: StageOutcome
    lines: tuple[str, ...] = ()

    @classmethod
    def of(cls, faults: Sequence[str] = (), doubts: Sequence[str] = ()) -> StageResult:
        """PASS where nothing is wrong, and nothing that was to be measured is missing."""
        if faults:
            return cls("FAIL", tuple(faults))
        return cls("NOT MEASURED", tuple(doubts)) if doubts else cls("PASS")

    @property
    def place(self) -> int:
        """0 is the worst."""
        return STAGE_OUTCOMES.index(self.outcome)


@dataclass(frozen=True)
class NodeVerdict:
    name: str
    stages: Mapping[StageName, StageResult]

    @property
    def outcome(self) -> StageOutcome:
        """The worst of its stages."""
        worst = min(self.stages.values(), key=lambda result: result.place).outcome
        return "NOT MEASURED" if worst == "-" else worst
