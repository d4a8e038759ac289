"""What the page says of two releases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from commbench.analysis.compared_case import ComparedCase
from commbench.core.units import plural
from commbench.report.compare_text import comparison_summary, comparison_table, unjoined


def chapter(title: str, cases: Sequence[ComparedCase], again: Sequence[ComparedCase]) -> str:
    """The verdict of each case; of those that were SLOWER that of fresh launches, `again`. Then the
    launches without a number, such as those in which a release lost its ranks."""
    fresh = {_key(case): case for case in again}
    shown = [fresh.get(_key(case), case) for case in cases]
    parts = [f"## {title}", f"{comparison_summary(shown)}.", *_confirmation(again)]
    parts.append(comparison_table(shown).markdown)
    if lost := unjoined(shown):
        parts.append("\n".join(["```", *lost, "```"]))
    return "\n\n".join(parts)


def slower(cases: Iterable[ComparedCase]) -> list[ComparedCase]:
    return [case for case in cases if case.verdict == "SLOWER"]


def nothing_to_compare(name: str, package: str, known: Sequence[str]) -> str:
    has = f"only {known[0]}" if known else "none"
    return f"## {name}\n\nOf the builds of {package} that this page compares, the index has {has}."


def _confirmation(again: Sequence[ComparedCase]) -> list[str]:
    if not again:
        return []
    words = Counter(str(case.verdict) for case in again)
    verdicts = ", ".join(f"{count} {word}" for word, count in words.most_common())
    return [
        f"{plural(len(again), 'case was', 'cases were')} SLOWER at first, and measured once more in"
        f" fresh launches: {verdicts}. The table has the fresh launches."
    ]


def _key(case: ComparedCase) -> tuple[str, int | None]:
    return case.variables.benchmark, case.variables.message_bytes
