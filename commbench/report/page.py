"""The report as one HTML page that needs no network."""

from __future__ import annotations

import functools
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from commbench.core.texts import some_of, span_text
from commbench.core.units import plural

from .section import Figure, Section, clean
from .summary import Summary

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_HOSTS = 8


def page(summary: Summary, sections: Sequence[Section]) -> str:
    """The whole document."""
    template = environment().get_template("page.html.j2")
    return template.render(about=_about(summary), sections=sections)


def _about(summary: Summary) -> Iterator[str]:
    """When, where and under which label the runs were made, and how many they are."""
    records = summary.results.records
    days = [str(record["started_at"])[:10] for record in records if record.get("started_at")]
    if days:
        yield span_text(days)
    hosts = list(dict.fromkeys(host for machine in summary.machines for host in machine.hosts))
    if hosts:
        yield f"{'hosts' if len(hosts) > 1 else 'host'} {', '.join(some_of(hosts, MOST_HOSTS))}"
    rows = summary.results.rows
    labels = sorted({row.label for row in rows if row.label})
    if labels:
        yield f"label {', '.join(labels)}"
    yield f"{plural(len(rows), 'case', 'cases')} of {plural(len(records), 'run', 'runs')}"


@functools.cache
def environment() -> Environment:
    """Jinja2 that escapes everything, and replaces characters that HTML forbids."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    def printable_text(value: object) -> object:
        return clean(value) if type(value) is str else value  # Markup has been escaped

    made = Environment(
        loader=PackageLoader("commbench.report", "data"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=printable_text,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["image"] = _image
    return made


def _image(figure: Figure) -> str:
    """The figure as the source of an image, so that nothing in it can meet the page."""
    return f"data:image/svg+xml;base64,{b64encode(figure.svg).decode()}"
