"""The settings with which runs measured: those of an MPI library, and of TCP below a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from commbench.hardware.library_settings import effect_text, problem_texts
from commbench.results.row import Row
from commbench.results.run_folder import mapping_or_empty

from .machines import nodes_of

BUFFERS = ("rmem", "wmem")  # of the kernel: least, first and largest bytes


def settings_texts(runs: Sequence[Mapping[str, Any]], rows: Iterable[Row]) -> list[str]:
    """Of runs that measured these cases: `in effect: btl_tcp_links=36 (environment)`; `without
    effect: ...`; of streams `tcp: initial window 10 segments, cubic, ...`."""
    settings = [each for run in runs for each in _settings_in(run)]
    has_streams = any(row.is_stream for row in rows)
    idle = dict.fromkeys(problem_texts(settings))
    connections = dict.fromkeys(map(_tcp_text, runs)) if has_streams else ()
    return [
        *filter(None, [effect_text(settings)]),
        *([f"without effect: {'; '.join(idle)}"] if idle else []),
        *filter(None, connections),
    ]


def _settings_in(run: Mapping[str, Any]) -> Iterator[Mapping[str, str]]:
    """Nothing where somebody has written another type there."""
    settings = run.get("settings")
    for each in settings if isinstance(settings, list) else ():
        if {"name", "value", "source"} <= set(mapping_or_empty(each)):
            yield each


def _tcp_text(run: Mapping[str, Any]) -> str:
    """Empty for a run whose connections are not known."""
    backend = mapping_or_empty(run.get("backend"))
    if "congestion_control" not in backend:
        return ""
    window = backend.get("initial_cwnd_segments")
    node = next(iter(nodes_of(run)), {})
    sizes = ((name, node.get(f"network.tcp_{name}_bytes")) for name in BUFFERS)
    parts = [
        f"initial window {window} segments" if window else "",
        str(backend["congestion_control"]),
        *(f"{name} {size}" for name, size in sizes if size),
    ]
    return f"tcp: {', '.join(filter(None, parts))}"
