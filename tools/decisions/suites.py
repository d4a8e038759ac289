"""Suites with a planted change, and how the gate and the watch decide on them; no machine is
measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from commbench.cluster.gate import Answer, GateCase, GateRules, suite_answers
from commbench.cluster.healthy_launches import HealthyLaunch
from commbench.cluster.watch_changes import (
    CaseHistory,
    WatchRule,
    changed_since,
    first_look,
    verdict_after_fresh,
)
from commbench.cluster.watch_runs import QUARANTINE_TURNS
from commbench.cluster.watch_state import KnownChange
from commbench.core.states import Row
from commbench.core.variables import NAMES

CASES = 20  # of a suite of the gate
WATCHED = 4  # of a suite of the watch
HEALTHY_TURNS = 8  # before a change
ROW: Row = {
    **dict.fromkeys(NAMES),
    "benchmark": "all_reduce",
    "layout": "1x2",
    "message_bytes": 8,
    "case_id": "case",
    "status": "ok",
}
Noise = Callable[[np.random.Generator, int], np.ndarray]  # logs with mean 0, standard deviation 1
NOISES: Mapping[str, Noise] = {
    "normal": lambda rng, count: rng.normal(size=count),
    "exponential": lambda rng, count: rng.exponential(size=count) - 1,
    "heavy-tailed (t3)": lambda rng, count: rng.standard_t(3, size=count) / math.sqrt(3),
}


def launches(
    rng: np.random.Generator, noise: Noise, spread: float, count: int, loss: float = 0.0
) -> list[float]:
    return list(np.exp(spread * noise(rng, count)) * (1 + loss))


def _healthy(medians_s: Sequence[float]) -> list[HealthyLaunch]:
    return [HealthyLaunch(float(median_s), "run", "host", "day") for median_s in medians_s]


# ---------------------------------------------------------------- the gate


@dataclass(frozen=True)
class GateTrial:
    """A suite of which the first `slow` cases take longer by `loss`. `again`: how many fresh
    launches decide on what is suspect."""

    healthy: int
    new: int
    spread: float
    loss: float = 0.0
    slow: int = 1
    again: int = 0
    noise: str = "normal"


def gate_answers(trial: GateTrial, rng: np.random.Generator) -> list[Answer]:
    """The answer on each case of a suite."""
    noise = NOISES[trial.noise]
    losses = [trial.loss if number < trial.slow else 0.0 for number in range(CASES)]
    healthy = [launches(rng, noise, trial.spread, trial.healthy) for _ in losses]
    new = [launches(rng, noise, trial.spread, trial.new, loss) for loss in losses]
    answers = _answers(healthy, new)
    suspects = [number for number, answer in enumerate(answers) if answer == "SUSPECT"]
    if trial.again and suspects:
        fresh = [launches(rng, noise, trial.spread, trial.again, losses[each]) for each in suspects]
        decided = _answers([healthy[each] for each in suspects], fresh)
        for number, answer in zip(suspects, decided, strict=True):
            answers[number] = answer
    return answers


def _answers(healthy: Sequence[Sequence[float]], new: Sequence[Sequence[float]]) -> list[Answer]:
    cases = [_gate_case(*sides) for sides in zip(healthy, new, strict=True)]
    return [each.answer for each in suite_answers(cases, GateRules())]


def _gate_case(healthy: Sequence[float], new: Sequence[float]) -> GateCase:
    return GateCase(ROW, [ROW], _healthy(healthy), _healthy(new), False, True)


# ---------------------------------------------------------------- the watch


@dataclass
class WatchedStore:
    """A store of a suite as turns fill it: what is healthy, what is kept aside, known changes."""

    rng: np.random.Generator
    spread: float
    rule: WatchRule = field(default_factory=lambda: WatchRule(WATCHED, 0.02))
    fresh: int = 3
    turn: int = 0
    healthy: list[list[HealthyLaunch]] = field(default_factory=lambda: [[] for _ in range(WATCHED)])
    quarantine: list[tuple[int, list[HealthyLaunch]]] = field(default_factory=list)
    changed: list[list[HealthyLaunch]] = field(default_factory=lambda: [[] for _ in range(WATCHED)])
    changes: dict[int, KnownChange] = field(default_factory=dict)

    def _row(self, loss: float) -> Row:
        (median_s,) = launches(self.rng, NOISES["normal"], self.spread, 1, loss)
        return {
            "status": "ok",
            "median_s": median_s,
            "visit_medians_s": None,
            "visit_launches": None,
            "run_id": f"{self.turn:04}",
            "hosts": "host",
        }

    def take_turn(self, losses: Sequence[float]) -> None:
        """A turn in which each case takes longer by its loss."""
        self.turn += 1
        suspect = False
        own = []
        told = []
        for number, loss in enumerate(losses):
            row = self._row(loss)
            new = [HealthyLaunch(row["median_s"], row["run_id"], "host", "day")]
            own.append(new[0])
            history = self._history(number)
            look = first_look(history, row, new, self.rule)
            if not look.needs_fresh:
                continue
            again = [self._row(loss) for _ in range(self.fresh)]
            verdict = verdict_after_fresh(history, look, again, self.rule)
            if verdict == "unchanged":
                suspect = suspect or number not in self.changes
                self.changes.pop(number, None)
            elif verdict != history.known:
                launched = [HealthyLaunch(each["median_s"], "", "", "") for each in again]
                since = changed_since(verdict, history.series, [*new, *launched], row["run_id"])
                self.changes[number] = KnownChange(verdict, since.run_id, since.ratio)
                told.append(number)
        self._file(own, suspect, told)

    def _history(self, number: int) -> CaseHistory:
        aside = [] if number in self.changes else self.changed[number]
        held = [run[number] for _, run in self.quarantine]
        return CaseHistory(tuple(self.healthy[number]), (*aside, *held), self.changes.get(number))

    def _file(self, own: list[HealthyLaunch], suspect: bool, told: Sequence[int]) -> None:
        for number in told:
            since = self.changes[number].since_run
            for each in range(WATCHED):
                shown = [launch for launch in self.healthy[each] if launch.run_id >= since]
                self.changed[each] += shown
                self.healthy[each] = [run for run in self.healthy[each] if run.run_id < since]
        if self.changes:
            target = self.changed
        elif suspect:
            self.quarantine.append((self.turn, own))
            return
        else:
            target = self.healthy
        _add(target, own)
        while self.quarantine and self.quarantine[0][0] < self.turn - QUARANTINE_TURNS:
            _add(self.healthy, self.quarantine.pop(0)[1])


def _add(cases: list[list[HealthyLaunch]], launches_of_run: Sequence[HealthyLaunch]) -> None:
    for of_case, launch in zip(cases, launches_of_run, strict=True):
        of_case.append(launch)
