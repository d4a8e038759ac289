"""Suites with a planted change, and how the gate and the watch decide on them; no machine is
measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from commbench.cluster.baseline.fresh_launches import FreshLaunch
from commbench.cluster.baseline.healthy_launches import HealthyLaunch
from commbench.cluster.gate.decision import GateCase, GateRules, suite_answers
from commbench.cluster.watch.changes import JudgedCase, judged_case
from commbench.cluster.watch.first_look import case_turn
from commbench.cluster.watch.history import CaseHistory
from commbench.cluster.watch.rule import WatchRule
from commbench.cluster.watch.runs import QUARANTINE_TURNS
from commbench.cluster.watch.state import KnownChange
from commbench.core.variables import Case
from commbench.results.row import Measured, Row
from commbench.stats.verdict import Gate

CASES = 20  # of a suite of the gate
WATCHED = 4  # of a suite of the watch
HEALTHY_TURNS = 8  # before a change
CASE = Case(
    benchmark="all_reduce",
    backend="gloo",
    layout="1x2",
    engine="python",
    message_bytes=8,
    elements=2,
    cache="warm",
    sync="none",
    timing="fixed",
)
ROW = Measured(**vars(CASE), case_id="case", hosts="host", median_s=1.0)
FRESH = 3
Noise = Callable[[np.random.Generator, int], np.ndarray]  # logs with mean 0, standard deviation 1
NOISES: Mapping[str, Noise] = {
    "normal": lambda rng, count: rng.normal(size=count),
    "exponential": lambda rng, count: rng.exponential(size=count) - 1,
    "outliers": lambda rng, count: (
        rng.normal(size=count) + (rng.random(count) < 0.05) * rng.exponential(30, size=count)
    ),
    "heavy-tailed (t3)": lambda rng, count: rng.standard_t(3, size=count) / math.sqrt(3),
}


def launches(
    rng: np.random.Generator, noise: Noise, spread: float, count: int, loss: float = 0.0
) -> list[float]:
    return list(np.exp(spread * noise(rng, count)) * (1 + loss))


# ---------------------------------------------------------------- the gate


@dataclass(frozen=True)
class GateTrial:
    """A suite of which the first `slow` cases take longer by `loss`. `again`: how many fresh
    launches are added where a case is suspect or undecided. `days`: the standard deviation of the
    logs of the levels of days; all healthy launches are of one day, the others of another, unless
    `healthy_days` says otherwise. `sometimes`: a new launch takes twice as long with this
    probability."""

    healthy: int
    new: int
    spread: float
    loss: float = 0.0
    slow: int = 1
    again: int = 0
    noise: str = "normal"
    days: float = 0.0
    healthy_days: int = 1
    sometimes: float = 0.0
    cases: int = CASES


def gate_answers(trial: GateTrial, rng: np.random.Generator) -> list[Gate]:
    """The answer on each case of a suite, then that on all of them together, where one is given."""
    numbers = range(trial.cases)
    healthy = [_healthy(trial, rng) for _ in numbers]
    levels = trial.days * rng.normal(size=trial.cases)
    new = [_new(trial, rng, number, levels[number], trial.new) for number in numbers]
    rules = GateRules(looks=2 if trial.again else 1)
    answers = _answers(healthy, new, rules)
    undecided = [number for number in numbers if answers[number] in ("SUSPECT", "UNDECIDED")]
    if trial.again and undecided:
        for number in undecided:
            new[number] += _new(trial, rng, number, levels[number], trial.again)
        sides = [healthy[each] for each in undecided], [new[each] for each in undecided]
        decided = _answers(*sides, replace(rules, suite_cases=trial.cases))
        del answers[trial.cases :]
        for number, answer in zip(undecided, decided, strict=False):
            answers[number] = answer
        answers += decided[len(undecided) :]
    return answers


def _healthy(trial: GateTrial, rng: np.random.Generator) -> list[HealthyLaunch]:
    levels = trial.days * rng.normal(size=trial.healthy_days)
    times_s = launches(rng, NOISES[trial.noise], trial.spread, trial.healthy)
    return [
        HealthyLaunch(time_s * math.exp(levels[number % levels.size]), f"{number}", "host", day)
        for number, time_s in enumerate(times_s)
        for day in [f"day {number % levels.size}" if trial.days else "day"]
    ]


def _new(
    trial: GateTrial, rng: np.random.Generator, number: int, level: float, count: int
) -> list[HealthyLaunch]:
    loss = trial.loss if number < trial.slow else 0.0
    times_s = launches(rng, NOISES[trial.noise], trial.spread, count, loss)
    day = "today" if trial.days else "day"
    return [
        HealthyLaunch(time_s * math.exp(level) * factor, "new", "host", day)
        for time_s, factor in zip(times_s, 1 + (rng.random(count) < trial.sometimes), strict=True)
    ]


def _answers(
    healthy: Sequence[Sequence[HealthyLaunch]],
    new: Sequence[Sequence[HealthyLaunch]],
    rules: GateRules,
) -> list[Gate]:
    cases = [GateCase(ROW, [ROW], *sides, False, True) for sides in zip(healthy, new, strict=True)]
    return [each.answer for each in suite_answers(cases, rules)]


# ---------------------------------------------------------------- the watch


class Run(NamedTuple):
    run_id: str
    launch: FreshLaunch


@dataclass
class WatchedStore:
    """A store of a suite as turns fill it: what is healthy, what is kept aside, known changes. The
    files of `watch/runs.py` are lists here."""

    rng: np.random.Generator
    spread: float
    days: float = 0.0  # standard deviation of the logs of their levels
    turns_a_day: int = 0  # 0: all are of one day
    noise: str = "normal"
    rule: WatchRule = field(default_factory=lambda: WatchRule(WATCHED, 0.02))
    turn: int = 0
    healthy: list[Run] = field(default_factory=list)
    quarantine: list[Run] = field(default_factory=list)
    changed: list[Run] = field(default_factory=list)
    changes: dict[str, KnownChange] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    day: int = 0
    levels: np.ndarray = field(default_factory=lambda: np.zeros(WATCHED))

    def take_turn(self, losses: Sequence[float]) -> None:
        """A turn in which each case takes longer by its loss."""
        self.turn += 1
        if self.turns_a_day and self.turn % self.turns_a_day == 1 % self.turns_a_day:
            self.day += 1
            self.levels = (
                self.days * self.rng.normal(size=len(losses))
                if self.days
                else np.zeros(len(losses))
            )
        first = self._launch(losses)
        fresh = [self._launch(losses) for _ in range(FRESH)]
        judged = {key: self._judged(key, first, fresh) for key in first.rows}
        before = self.changes
        self.changes = {key: each.change for key, each in judged.items() if each.change}
        run = Run(f"{self.turn:04}", first)
        self.ended |= {key: run.run_id for key in before if key not in self.changes}
        for each in judged.values():
            if each.is_new and each.change is not None:
                self._set_aside(each.change.since_run)
        if self.changes:
            self.changed.append(run)
        elif any(each.is_suspect for each in judged.values()):
            self.quarantine.append(run)
        else:
            self.healthy.append(run)
        self._release()

    def _launch(self, losses: Sequence[float]) -> FreshLaunch:
        rows: dict[str, Row] = {}
        for number, loss in enumerate(losses):
            (median_s,) = launches(self.rng, NOISES[self.noise], self.spread, 1, loss)
            median_s *= math.exp(self.levels[number])
            rows[str(number)] = replace(ROW, median_s=median_s, run_id=f"{self.turn:04}")
        return FreshLaunch(
            Path(), rows, {Path(f"{self.turn:04}"): {"started_at": f"{self.day:010}"}}, 0
        )

    def _judged(self, key: str, first: FreshLaunch, fresh: Sequence[FreshLaunch]) -> JudgedCase:
        ended = self.ended.get(key, "")
        kept = [] if key in self.changes else [*self.changed, *self.quarantine]
        aside = [run for run in kept if run.run_id > ended]
        healthy, beside = (
            tuple(launch for run in runs for launch in run.launch.launches(key))
            for runs in (self.healthy, aside)
        )
        history = CaseHistory(healthy, beside, self.changes.get(key))
        turn = case_turn(key, CASE, history, first, self.rule)
        return judged_case(turn, fresh, self.rule)

    def _set_aside(self, since: str) -> None:
        """The runs that were taken for healthy, or not for changed, and show a change already."""
        for runs in (self.healthy, self.quarantine):
            shown = [run for run in runs if run.run_id >= since]
            self.changed += shown
            runs[:] = [run for run in runs if run.run_id < since]
        self.changed.sort(key=lambda run: run.run_id)

    def _release(self) -> None:
        oldest = f"{self.turn - QUARANTINE_TURNS + 1:04}"
        released = [run for run in self.quarantine if run.run_id < oldest]
        self.quarantine = [run for run in self.quarantine if run.run_id >= oldest]
        self.healthy = sorted([*self.healthy, *released], key=lambda run: run.run_id)
