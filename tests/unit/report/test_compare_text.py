"""A comparison as text: the table, its notes and its summary."""

from __future__ import annotations

from typing import Any

import pytest
from judged_cases import LAUNCH, compared

from commbench.analysis.compare import Rules
from commbench.analysis.compared_case import SideOfCase
from commbench.core.states import HALF_ROUND_TRIP
from commbench.core.terminal import Terminal
from commbench.report.compare_text import (
    caption,
    comparison_summary,
    comparison_table,
    days_apart,
    launches_text,
    unjoined,
)

EMPTY = {"new": SideOfCase(unmeasured=4), "judged": None}
ONLY_IN_NEW = {"base": SideOfCase(), "judged": None}
FASTER = [
    {"verdict": "FASTER", "ratio": (0.8, 0.79, 0.81)},
    {"verdict": "FASTER", "ratio": (0.7, 0.695, 0.705)},
]


def line_of(text: str, message: str) -> list[str]:
    return next(line for line in text.splitlines() if f" {message} " in line).split()


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([{}], "1 of 1 case SLOWER, the worst all_reduce 1x2 8 B: 1.200 x ±8%"),
        (
            [{}, {"ratio": (1.234, 1.1, 1.3)}, {"verdict": "SAME"}],
            "2 of 3 cases SLOWER, the worst all_reduce 1x2 9 B: 1.234 x -11 +5%; 1 SAME",
        ),
        (
            FASTER,
            "2 of 2 cases FASTER, the best all_reduce 1x2 9 B: 0.700 x ±0.8%",
        ),
        ([{"verdict": "UNDECIDED"}] * 3, "3 of 3 cases UNDECIDED"),
        (
            [{"verdict": "SUSPECT"}, {"verdict": "UNDECIDED"}],
            "1 of 2 cases SUSPECT, the worst all_reduce 1x2 8 B: 1.200 x ±8%; 1 UNDECIDED",
        ),
        (
            [EMPTY, {}],
            "1 of 2 cases SLOWER, the worst all_reduce 1x2 9 B: 1.200 x ±8%; 1 without a number",
        ),
        ([{}, {"new": SideOfCase(), "judged": None}], "1 of 1 case SLOWER"),
        (
            [{"benchmark": "stream"} | FASTER[0]],  # an imported one does not tell its threads
            "1 of 1 case FASTER, the best stream 1x2 8 B: bandwidth 1.250 x ±1%",
        ),
        (
            [{"window": 64, "ratio": (1.25,)}],
            "1 of 1 case SLOWER, the worst all_reduce 1x2 8 B: bandwidth 0.800 x",
        ),
    ],
)
def test_the_sentence_counts_every_case_of_both_sides(
    rows: list[dict[str, Any]], sentence: str
) -> None:
    assert comparison_summary(compared(*rows)).startswith(sentence)


def test_a_column_has_one_unit_and_a_cell_without_a_number_a_dash() -> None:
    cases = compared({"p99_ratio": 2.5}, EMPTY, {"verdict": "UNDECIDED"})
    text = comparison_table(cases).text(Terminal(None))
    assert line_of(text, "8")[1:] == [
        "8",
        "4",
        "/",
        "4",
        "1.00",
        "1.20",
        "1.200",
        "x",
        "±8%",
        "2.0",
        "%",
        "SLOWER",
        "0.03",
        "2.500",
        "x",
    ]
    assert line_of(text, "9")[1:] == [
        "9",
        "4",
        "/",
        "0",
        *"-" * 8,
    ]
    assert "p99" in text and "p95" not in text
    lines = text.splitlines()
    (units,) = (number for number, line in enumerate(lines) if line.startswith("benchmark"))
    assert lines[units - 1].split() == ["message", "BASE", "median", "NEW", "median"]
    assert lines[units].split()[:6] == ["benchmark", "B", "launches", "us", "us", "NEW"]
    large = comparison_table(compared({"base_s": 1.5, "message_bytes": 2**22}))
    assert line_of(large.text(Terminal(None)), "4194304")[5] == "1500000"


def test_the_caption_says_that_a_latency_is_half_a_round_trip() -> None:
    latency = {"benchmark": "p2p_latency", "median_of": HALF_ROUND_TRIP}
    lines = caption(compared(latency), Rules())
    assert "the time of p2p_latency is half a round trip" in lines
    assert not any("half a round trip" in line for line in caption(compared({}), Rules()))


def test_the_caption_explains_the_verdicts_that_occur() -> None:
    lines = caption(compared({}, {"verdict": "SUSPECT"}), Rules())
    assert [line.partition(":")[0] for line in lines if line.isupper() or line[:2].isupper()] == [
        "SLOWER",
        "SUSPECT",
    ]
    assert any("Mann-Whitney" in line for line in lines)
    assert any("signed-rank" in line for line in caption(compared({}), Rules(paired=True)))


def test_launches_that_can_not_decide_so_many_cases_are_said() -> None:
    six = SideOfCase(launches=(LAUNCH,) * 6)
    few = compared(*[{"base": six, "new": six}] * 10)
    paired = Rules(paired=True)
    assert caption(few, paired)[-1] == launches_text(6, 10, paired=True)
    assert "at least 9 are needed" in launches_text(6, 10, paired=True)
    assert launches_text(9, 10, paired=True) == ""


def test_variables_that_tell_cases_apart_are_columns() -> None:
    table = comparison_table(
        compared({"dtype": "float32", "pair": "0-1"}, {"dtype": "int32", "pair": "0-1"})
    )
    assert {"layout 1x2", "pair 0-1"} <= set(table.title.split(", "))
    assert table.heads[:3] == ["benchmark", "dtype", "message\nB"]


def test_nothing_is_listed_where_all_is_used() -> None:
    assert unjoined(compared({})) == []
    many = compared({}, *[ONLY_IN_NEW] * 30)
    assert unjoined(many)[0] == "only in NEW: 30 cases"
    assert unjoined(many)[-1] == "  and 10 more"
    assert unjoined(compared(EMPTY)) == [
        "launches not used: 1 case", "  all_reduce 1x2 8 B (BASE 0, NEW 4: no reason)",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ratio", "advice"),
    [
        ((1.0, 0.96, 1.04), "to decide these: about 17 launches of each side, or --delta 5"),
        ((1.0, 0.5, 2.0), "to decide these: less noise, or --delta 100"),
        ((0.985, 0.972, 0.998), "to decide these: about 32 launches of each side, or --delta 3"),
        ((1.02, 1.011, 1.029), "to decide these: less noise, or --delta 3"),
        ((1.05, 1.02, 1.07), "to decide these: about 5 launches of each side, or --delta 8"),
    ],
)
def test_what_would_decide_is_said(ratio: tuple[float, float, float], advice: str) -> None:
    row = {"verdict": "UNDECIDED", "ratio": ratio}
    assert advice in caption(compared(row), Rules())
    assert not any(line.startswith("to decide") for line in caption(compared({}), Rules()))


def test_a_change_between_two_days_says_what_days_alone_may_be() -> None:
    changes = compared(
        {"verdict": "SLOWER", "ratio": (1.05,), "day_ratio": 1.08},
        {"verdict": "FASTER", "ratio": (0.8,), "day_ratio": 1.09},
        {"verdict": "SAME", "ratio": (1.0,), "day_ratio": 1.2},
    )
    assert days_apart(changes) == [
        "BASE and NEW are of different days, which alone may differ by up to 9 %: 1 of 2 changes"
        " are within that; commbench ab measures both in turn"
    ]
    assert days_apart(changes[2:]) == []
