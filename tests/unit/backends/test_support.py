"""Tables of what a library lacks: the same answer for a case and for a step."""

from __future__ import annotations

import pytest

from commbench.core.errors import Unsupported
from commbench.core.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Reduce,
    Scatter,
    Send,
    Step,
    View,
)
from commbench.engines.lowered import UnsupportedForms, check_form, in_place

DATA = View("data")
PART = View("data", offset=3, count=3)
SOURCE = View("source")
TABLE: UnsupportedForms = {
    (AllReduce, False): "only in place",
    (AllToAll, True): "never in place",
}


@pytest.mark.parametrize(
    ("step", "answer"),
    [
        (AllReduce(DATA, DATA, "sum"), True),
        (AllGather(PART, DATA), True),
        (Scatter(DATA, PART, 0), True),
        (AllGather(SOURCE, DATA), False),
        (Broadcast(DATA, 0), False),
        (Barrier(), False),
        (Send(DATA, 1), False),
    ],
)
def test_one_buffer_for_both_sides_is_in_place(step: Step, answer: bool) -> None:
    assert in_place(step) is answer


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (AllReduce(SOURCE, DATA, "sum"), "only in place"),
        (AllToAll(DATA, DATA), "never in place"),
    ],
)
def test_a_form_of_the_table_is_refused(step: Step, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        check_form(TABLE, step)


@pytest.mark.parametrize(
    "step",
    [
        AllReduce(DATA, DATA, "sum"),
        AllToAll(SOURCE, DATA),
        Reduce(SOURCE, DATA, "sum", 0),
        Barrier(),
    ],
)
def test_what_the_table_does_not_name_passes(step: Step) -> None:
    check_form(TABLE, step)
