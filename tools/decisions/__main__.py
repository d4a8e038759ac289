"""`make decisions`: how often the gate and the watch are right, by simulation. Rewrites tables in
docs/acceptance.md and docs/watch.md."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from pages import rewrite
from suites import (
    CASES,
    HEALTHY_TURNS,
    NOISES,
    WATCHED,
    GateTrial,
    WatchedStore,
    gate_answers,
)

from commbench.stats.verdict import Gate, worst

SUITES = 100
STORES = 100
HEALTHY = {HEALTHY_TURNS: STORES, 100: 20}  # turns before a step: how many stores
TURNS = 12  # after a step
WITHIN = (1, 3, TURNS)
LONG_TURNS = 40  # without one
AGAIN = ((3, 3, 0.10), (3, 1, 0.10), (8, 1, 0.10), (8, 1, 0.03))
LAUNCHES = ((3, 1), (8, 1), (20, 1), (3, 3), (8, 3), (20, 3), (3, 8), (8, 8), (20, 8))
SPREADS = (0.01, 0.03, 0.10)
LOSSES = (0.05, 0.10, 0.30)
DAYS = ((1, 0.01), (1, 0.03), (3, 0.03), (8, 0.03))  # of the baseline, and how much they differ
SOMETIMES = (0.4, 0.6)
HISTORIES = 40
HISTORY_TURNS = 60
DAYS_LATER = 3
WATCHED_DAYS = (  # spread of launches, of days, turns a day, noise
    (0.01, 0.01, 2, "normal"),
    (0.01, 0.02, 2, "normal"),
    (0.01, 0.03, 2, "normal"),
    (0.03, 0.03, 2, "normal"),
    (0.01, 0.02, 1, "normal"),
    (0.01, 0.01, 2, "exponential"),
    (0.01, 0.02, 2, "outliers"),
)


# ---------------------------------------------------------------- the gate


def suites(trial: GateTrial) -> list[list[Gate]]:
    rng = np.random.default_rng([trial.healthy, trial.new, round(1000 * trial.spread)])
    return [gate_answers(trial, rng) for _ in range(SUITES)]


def shares(given: Counter[Gate]) -> str:
    """`99 / 1 / 0`: FAIL, SUSPECT, and PASS, in per cent."""
    total = sum(given.values())
    return " / ".join(f"{100 * given[each] / total:.0f}" for each in ("FAIL", "SUSPECT", "PASS"))


def gate_table() -> Iterator[str]:
    losses = [f"one case +{100 * loss:.0f} %" for loss in LOSSES]
    losses.append(f"all cases +{100 * LOSSES[1]:.0f} %")
    yield f"| healthy | new | spread | healthy suites | {' | '.join(losses)} |"
    yield f"|---|---|---|---|{'---|' * len(losses)}"
    for healthy, new in LAUNCHES:
        for spread in SPREADS:
            trial = GateTrial(healthy, new, spread)
            cells = [shares(Counter(map(worst, suites(trial))))]
            for loss in LOSSES:
                given = suites(replace(trial, loss=loss))
                cells.append(shares(Counter(answers[0] for answers in given)))
            everywhere = suites(replace(trial, loss=LOSSES[1], slow=CASES))
            cells.append(shares(Counter(answer for answers in everywhere for answer in answers)))
            yield f"| {healthy} | {new} | {100 * spread:.0f} % | {' | '.join(cells)} |"


def again_table() -> Iterator[str]:
    """With 10 fresh launches of what is suspect."""
    yield "| healthy | new | spread | noise | healthy suites | one case +30 % |"
    yield "|---|---|---|---|---|---|"
    for healthy, new, spread in AGAIN:
        for noise in NOISES:
            trial = GateTrial(healthy, new, spread, again=10, noise=noise)
            without = shares(Counter(map(worst, suites(trial))))
            slow = Counter(answers[0] for answers in suites(replace(trial, loss=LOSSES[2])))
            cells = [str(healthy), str(new), f"{100 * spread:.0f} %", noise, without, shares(slow)]
            yield f"| {' | '.join(cells)} |"


def days_table() -> Iterator[str]:
    """Eight healthy launches, eight new ones of another day."""
    yield "| days of the baseline | they differ by | healthy suites | all cases +10 % | +30 % |"
    yield "|---|---|---|---|---|"
    for days, level in DAYS:
        trial = GateTrial(8, 8, 0.01, days=level, healthy_days=days, slow=CASES)
        cells = [
            shares(Counter(map(worst, suites(replace(trial, loss=loss)))))
            for loss in (0.0, 0.10, 0.30)
        ]
        yield f"| {days} | {100 * level:.0f} % | {' | '.join(cells)} |"


def sometimes_table() -> Iterator[str]:
    """A case of which each launch takes twice as long with a probability."""
    yield "| healthy | new | measured again | slow launches | FAIL / SUSPECT / PASS |"
    yield "|---|---|---|---|---|"
    for new, again in ((1, 5), (8, 0), (8, 10)):
        for share in SOMETIMES:
            trial = GateTrial(8, new, 0.01, again=again, sometimes=share, cases=1)
            cell = shares(Counter(map(worst, suites(trial))))
            yield f"| 8 | {new} | {again or '-'} | {100 * share:.0f} % | {cell} |"


# ---------------------------------------------------------------- the watch


def told(healthy: int, spread: float, loss: float, seed: int) -> tuple[int, list[int]] | None:
    """After how many turns a step is told, and by how many turns its beginning is off. A change
    that was told before it makes another store."""
    store = WatchedStore(np.random.default_rng([seed, 1]), spread)
    for _ in range(healthy):
        store.take_turn([0.0] * WATCHED)
    if store.changes:
        return told(healthy, spread, loss, seed + STORES)
    for turn in range(1, TURNS + 1):
        store.take_turn([loss] * WATCHED)
        if store.changes:
            runs = [int(change.since_run) for change in store.changes.values()]
            return turn, [run - healthy - 1 for run in runs]
    return None


def watch_table() -> Iterator[str]:
    turns = " | ".join(f"told by turn {most}" for most in WITHIN)
    yield f"| healthy turns | spread | step | {turns} | beginning within one turn |"
    yield f"|---|---|---|{'---|' * len(WITHIN)}---|"
    for healthy, stores in HEALTHY.items():
        for spread in SPREADS:
            for loss in (0.02, *LOSSES):
                yield _watch_row(healthy, stores, spread, loss)


def _watch_row(healthy: int, stores: int, spread: float, loss: float) -> str:
    seen = [told(healthy, spread, loss, seed) for seed in range(stores)]
    turns = [each[0] for each in seen if each is not None]
    off = [place for each in seen if each is not None for place in each[1]]
    cells = [
        str(healthy),
        f"{100 * spread:.0f} %",
        f"+{100 * loss:.0f} %",
        *(f"{100 * sum(turn <= most for turn in turns) / stores:.0f} %" for most in WITHIN),
        f"{100 * np.mean(np.abs(off) <= 1):.0f} %" if off else "-",
    ]
    return f"| {' | '.join(cells)} |"


def false_changes() -> Iterator[str]:
    for spread in SPREADS:
        changes = 0
        for seed in range(STORES):
            store = WatchedStore(np.random.default_rng([seed, 2]), spread)
            for _ in range(LONG_TURNS):
                before = set(store.changes)
                store.take_turn([0.0] * WATCHED)
                changes += bool(store.changes.keys() - before)
        rate = 1000 * changes / (LONG_TURNS * STORES)
        yield f"| {100 * spread:.0f} % | {rate:.1f} |"


def watch_days_table() -> Iterator[str]:
    """Of histories with days: whether they have a change that is none, and the step of 5 % told
    in the days after one."""
    yield "| spread | days differ by | turns a day | noise | a false change | +5 % within 3 days |"
    yield "|---|---|---|---|---|---|"
    for spread, days, turns_a_day, noise in WATCHED_DAYS:
        false = told_steps = steps = 0
        for seed in range(HISTORIES):
            rng = np.random.default_rng([seed, 3])
            store = WatchedStore(rng, spread, days, turns_a_day, noise)
            is_false = False
            for _ in range(HISTORY_TURNS):
                store.take_turn([0.0] * WATCHED)
                is_false = is_false or bool(store.changes)
            false += is_false
            if store.changes:
                continue
            for _ in range(DAYS_LATER * turns_a_day):
                store.take_turn([0.05] * WATCHED)
            steps += 1
            told_steps += bool(store.changes)
        shown = f"{100 * false / HISTORIES:.0f} % | {100 * told_steps / steps:.0f} %"
        texts = f"{100 * spread:.0f} % | {100 * days:.0f} % | {turns_a_day} | {noise}"
        yield f"| {texts} | {shown} |"


def main() -> int:
    head = ["", "| spread | changes told of 1,000 turns without one |", "|---|---|"]
    pages = {
        "acceptance.md": [
            *gate_table(),
            "",
            *again_table(),
            "",
            *days_table(),
            "",
            *sometimes_table(),
        ],
        "watch.md": [*watch_table(), *head, *false_changes(), "", *watch_days_table()],
    }
    for page, lines in pages.items():
        text = "\n".join([*lines, ""])
        print(text)
        rewrite(page, "decisions", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
