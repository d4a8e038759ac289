"""The guidelines in a report, at the end of their experiment, and in a verdict without a
baseline."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from commbench.core.units import plural
from commbench.report.reporting import Check, Checks, Reporting
from commbench.report.section import Section
from commbench.report.summary import Summary

from .rules import GuidelineResult, Violation, check_guidelines

EXPERIMENT = "guidelines"
KIND = "guideline"


@functools.lru_cache(maxsize=1)
def result_of(summary: Summary) -> GuidelineResult:
    return check_guidelines(summary.results.of_operations)


def sections(summary: Summary) -> Iterator[Section]:
    """How many performance guidelines are violated, and a line for each violation."""
    result = result_of(summary)
    violations = (each.text(_case_name(summary, each)) for each in result.violations)
    yield Section("Performance guidelines", [*result.sentences(), *violations])


def checks(summary: Summary) -> Checks:
    return Checks([*_checks(summary)])


def _checks(summary: Summary) -> Iterator[Check]:
    result = result_of(summary)
    for violation in result.violations:
        name = _case_name(summary, violation)
        title = f"{violation.guideline.name}: {name}"
        text = violation.text(name)
        yield Check(KIND, title, "FAIL", text.removesuffix("."), finding=text)
    if result.undecided:
        reason = " ".join(result.sentences())
        yield Check(KIND, "undecided comparisons", "UNDECIDED", reason)
    if result.comparisons and not result.violations:
        compared = plural(result.comparisons, "comparison", "comparisons")
        rules = plural(result.rules, "guideline", "guidelines")
        yield Check(KIND, f"{rules}, {compared}", "PASS")


def _case_name(summary: Summary, violation: Violation) -> str:
    return summary.combined.name(violation.variables, without=("pair",))


REPORTING = Reporting(
    sections={"numbers": sections},
    checks=checks,
    answer_of=lambda experiment: sections if experiment == EXPERIMENT else None,
)
