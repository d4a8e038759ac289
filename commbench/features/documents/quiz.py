"""The answer to the MPI quiz of experiment=exchange_quiz: which elements of recvbuf[i][i] are right
when MPI_Finalize is called, and which are undefined."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.analysis.case_names import shown_value
from commbench.core.layout import Layout
from commbench.results.columns import grouped
from commbench.results.row import Row

INT_BYTES = 4
QUIZ = "exchange_quiz"  # the experiment


def quiz_answer(rows: Sequence[Row]) -> list[str]:
    """Sentences: the answer by the standard, and what the rows saw, by the send buffers."""
    of_quiz = [row for row in rows if row.benchmark == "exchange"]
    if not of_quiz:
        return []
    ranks = Layout.parse(of_quiz[0].layout).size
    ints = of_quiz[0].message_bytes // INT_BYTES
    came = min(ints, ranks)
    answer = (
        f"recvbuf[i][i] of rank r: for i < {came} an int of rank i's message came. With a send"
        " buffer for each message it is r. With the program's one buffer it is undefined, because"
        " the buffer changes before the sends are complete (MPI 4.1, 3.7.2)"
    )
    if came < ranks:
        answer += f". For i from {came} to {ranks - 1} it is 0: a message has {ints} ints"
    seen = [answer]
    for buffers, own in grouped(of_quiz, lambda row: shown_value(row, "buffers")).items():
        statuses = {row.status for row in own}
        wrong = sum(row.wrong_elements or 0 for row in own)
        if statuses <= {"ok", "invalid"}:
            result = f"{wrong} ints that came were wrong" if wrong else "all that came were right"
            seen.append(f"buffers={buffers}: {result}, in all checks of all ranks")
    return seen
