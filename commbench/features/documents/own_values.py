"""The values of own runs as a file of reference values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import yaml  # type: ignore[import-untyped]

from commbench.analysis.combined_row import Combined
from commbench.analysis.machines import nodes_of
from commbench.core.errors import ConfigError
from commbench.core.units import format_bytes, plural
from commbench.report.summary import Summary
from commbench.results.columns import grouped
from commbench.results.flags import UNUSABLE

from .reference import fact

# facts that tell a kind of machine: of its GPUs where it has some, else of its processors
OF_GPUS = ("host.machine_product", "gpu.0.name", "gpu.count")
OF_PROCESSORS = ("host.machine_product", "host.cpu_model", "host.cpu_logical_cores")
NAMELESS = (None, "", "unknown")
# columns that say what was measured; `layout` says the ranks as well
SETTING = (
    "benchmark",
    "backend",
    "layout",
    "engine",
    "device",
    "window",
    "streams",
    "stream_threads",
    "reduction",
    "root",
    "traffic",
    "groups",
    "buffers",
    "staging",
    "label",
)
WAY = ("in_place", "timer")
LEAST_RATE_BYTES = 2**20  # of smaller messages the time is what is known
RATES = ("busbw_gb_per_s", "algbw_gb_per_s")
MICROSECONDS = 1e6
DIGITS = 4


class MachineFile(NamedTuple):
    """`recognised`: the patterns in words; `left_out`: a sentence for what was not taken."""

    text: str
    recognised: str
    left_out: Sequence[str]


def file_name(name: str) -> str:
    words = re.findall(r"[a-z0-9]+", name.lower())
    if not words:
        raise ConfigError(f"--name {name} has neither letters nor digits; add some")
    return f"{'-'.join(words)}.yaml"


def machine_file(name: str, summary: Summary) -> MachineFile:
    """The file of these runs. Raises ConfigError where they have no measured case, or are of
    several kinds of machine."""
    cases = summary.combined.whole
    rows = [row for row in cases if not row.has_model_clock and not set(row.warnings) & UNUSABLE]
    if not rows:
        raise ConfigError("these runs have no measured case without a flag; measure some first")
    patterns = _patterns(summary)
    labels = {row.label for row in rows if row.label}
    if not patterns and len(labels) != 1:
        raise ConfigError(
            "nothing in these runs tells their machine: neither a GPU, a processor nor one label;"
            " measure with label=NAME"
        )
    dates = sorted(str(row.started_at.date()) for row in summary.results.rows if row.started_at)
    content = {
        "machine": name,
        "recognised_by": patterns or None,
        **({} if patterns else {"label": re.escape(labels.pop())}),
        "documents": [
            {
                "source": f"runs of {name}: {', '.join(_run_names(summary))}",
                **({"date": dates[0]} if dates else {}),
                "values": [*_values(rows)],
            }
        ],
    }
    text = yaml.safe_dump(content, sort_keys=False, width=100, allow_unicode=True)
    flagged = len(cases) - len(rows)
    left = [f"{plural(flagged, 'case was', 'cases were')} left out: simulated, or flagged"]
    recognised = ", ".join(re.sub(r"\\(.)", r"\1", each).removesuffix("(;|$)") for each in patterns)
    return MachineFile(text, recognised or "its label", left if flagged else ())


def _run_names(summary: Summary) -> list[str]:
    runs = [*dict.fromkeys(row.run_id for row in summary.results.rows)]
    return [*runs[:1], *([f"and {len(runs) - 1} more"] if len(runs) > 1 else [])]


def _patterns(summary: Summary) -> list[str]:
    """Of the facts that tell the machine; none where no fact is known. Raises ConfigError where
    nodes differ in them."""
    kinds = {_facts(node) for record in summary.results.records for node in nodes_of(record)}
    kinds.discard(())
    if len(kinds) > 1:
        texts = sorted(" ".join(value for _, value in kind) for kind in kinds)
        raise ConfigError(
            f"these runs are of {len(kinds)} kinds of machine ({'; '.join(texts[:3])}); add those"
            " of each under a name of their own"
        )
    return [f"{re.escape(f'{key}={value}')}(;|$)" for kind in kinds for key, value in kind]


def _facts(node: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    keys = OF_GPUS if node.get("gpu.0.name") else OF_PROCESSORS
    known = [(key, str(node[key])) for key in keys if node.get(key) not in NAMELESS]
    # a name of the board alone is no kind of machine
    return tuple(known) if any(key != OF_GPUS[0] for key, _ in known) else ()


def _values(rows: Sequence[Combined]) -> Iterator[dict[str, Any]]:
    """A value for each setting, with a number for each of its sizes: rates of large messages, times
    of small ones."""
    by_setting = grouped(rows, lambda row: (_column(row), *_where(row).items(), *_way(row).items()))
    for alike in by_setting.values():
        row = min(alike, key=lambda each: each.message_bytes)
        column = _column(row)
        is_time = column == "median_s"
        scale = MICROSECONDS if is_time else 1.0
        sizes = grouped(alike, lambda each: each.message_bytes)
        yield {
            "setting": f"{row.benchmark}, {row.backend} {row.layout}",
            "where": _where(row),
            "library": row.library or "",
            "way": _way(row),
            "measurements": min(each.launches for each in alike),
            "span": fact(row, "span"),
            "ranks": row.world_size,
            "column": column,
            "unit": "us" if is_time else "GB/s",
            "by_size": {
                format_bytes(size).replace(" ", ""): _rounded(getattr(own[0], column) * scale)
                for size, own in sorted(sizes.items())
            },
        }


def _column(row: Combined) -> str:
    known = [name for name in RATES if getattr(row, name)]
    return known[0] if known and row.message_bytes >= LEAST_RATE_BYTES else "median_s"


def _where(row: Combined) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in SETTING}
    set_values = {name: value for name, value in values.items() if value not in (None, "")}
    return set_values | {f"env.{name}": value for name, value in row.env}


def _way(row: Combined) -> dict[str, Any]:
    return {name: value for name in WAY if (value := getattr(row, name)) is not None}


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
