"""Forms of collectives that a library does not support: one table, read for a case before the run and for its steps."""

from __future__ import annotations

import re
from collections.abc import Mapping

from commbench.core.case import Case
from commbench.core.dtypes import dtype
from commbench.core.errors import Unsupported
from commbench.core.program import Step, View

UnsupportedForms = Mapping[tuple[str, bool], str]  # (operation, in place) -> the reason


def skip_reason(table: UnsupportedForms, case: Case) -> str | None:
    """The reason to skip the case; None if the table does not name its form."""
    return None if case.in_place is None else table.get((case.benchmark, case.in_place))


def check_form(table: UnsupportedForms, step: Step) -> None:
    """For programs of benchmarks that the table does not name. Raises Unsupported with the table's reason."""
    operation = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(step).__name__).lower()
    reason = table.get((operation, in_place(step)))
    if reason:
        raise Unsupported(reason)


def reduction_missing(library: str, case: Case) -> str | None:
    """Why NCCL or gloo can't reduce what the case asks for: averages are of floating types only, as gloo has no others
    and NCCL truncates those of integers."""
    if case.reduction is None:
        return None
    known = case.reduction in ("sum", "prod", "min", "max")
    if known or (case.reduction == "avg" and dtype(case.dtype).floating):
        return None
    return f"{library} has no reduction {case.reduction} of {case.dtype}"


def in_place(step: Step) -> bool:
    """Whether a collective sends from the buffer that it receives into; False for a step without two views."""
    send, recv = getattr(step, "send", None), getattr(step, "recv", None)
    return isinstance(send, View) and isinstance(recv, View) and send.buffer == recv.buffer
