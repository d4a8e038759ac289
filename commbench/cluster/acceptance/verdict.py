"""What an acceptance says about a node: an answer for each stage, and the worst of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from commbench.core.states import STAGES, Stage
from commbench.stats.verdict import Gate, worst

StageName = Literal["machine"] | Stage
STAGE_NAMES: tuple[StageName, ...] = ("machine", *STAGES)


@dataclass(frozen=True)
class StageResult:
    """What a stage says about a node, None where it does not apply; `lines` are its evidence, or
    why it says nothing."""

    answer: Gate | None
    lines: tuple[str, ...] = ()

    @classmethod
    def of(cls, faults: Sequence[str] = (), doubts: Sequence[str] = ()) -> StageResult:
        """PASS where nothing is wrong, and nothing that was to be measured is missing."""
        if faults:
            return cls("FAIL", tuple(faults))
        return cls("UNDECIDED", tuple(doubts)) if doubts else cls("PASS")


@dataclass(frozen=True)
class NodeVerdict:
    name: str
    stages: Mapping[StageName, StageResult]

    @property
    def answer(self) -> Gate:
        """The worst of its stages."""
        return worst(each.answer for each in self.stages.values() if each.answer is not None)
