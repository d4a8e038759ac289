"""Tables of what a library lacks: the same answer for a case and for a step."""

from __future__ import annotations

import pytest

from commbench import contracts as c
from commbench.backends.forms import Lacking, in_place, refuse
from commbench.errors import Unsupported

DATA, PART, SOURCE = c.View("data"), c.View("data", offset=3, count=3), c.View("source")
TABLE: Lacking = {("all_reduce", False): "only in place", ("all_to_all", True): "never in place"}


@pytest.mark.parametrize(
    ("step", "answer"),
    [
        (c.AllReduce(DATA, DATA, "sum"), True),
        (c.AllGather(PART, DATA), True),
        (c.Scatter(DATA, PART, 0), True),
        (c.AllGather(SOURCE, DATA), False),
        (c.Broadcast(DATA, 0), False),
        (c.Barrier(), False),
        (c.Send(DATA, 1), False),
    ],
)
def test_one_buffer_for_both_sides_is_in_place(step: c.Step, answer: bool) -> None:
    assert in_place(step) is answer


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (c.AllReduce(SOURCE, DATA, "sum"), "only in place"),
        (c.AllToAll(DATA, DATA), "never in place"),
    ],
)
def test_a_form_of_the_table_is_refused(step: c.Step, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        refuse(TABLE, step)


@pytest.mark.parametrize(
    "step", [c.AllReduce(DATA, DATA, "sum"), c.AllToAll(SOURCE, DATA), c.Reduce(SOURCE, DATA, "sum", 0), c.Barrier()]
)
def test_what_the_table_does_not_name_passes(step: c.Step) -> None:
    refuse(TABLE, step)
