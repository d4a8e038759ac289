"""The expectations of checks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from check import Outcome, Sight

Row = dict[str, Any]
NEAR_LINK = re.compile(r"NV\d+|PIX|PXB")  # of `nvidia-smi topo -m`


def ends_with(status: int) -> Sight:
    def missed(end: Outcome) -> str | None:
        problem = (
            "it exceeded the time limit"
            if end.status is None
            else f"exit {end.status}: {last_line(end.stderr)}"
        )
        return None if end.status == status else problem

    return Sight(f"exit {status}", missed)


def says(*words: str) -> Sight:
    """All these words are on one line of stderr, ignoring case."""

    def missed(end: Outcome) -> str | None:
        lines = end.stderr.lower().splitlines()
        hit = any(all(re.search(word.lower(), line) for word in words) for line in lines)
        return None if hit else f"stderr says: {last_line(end.stderr)}"

    return Sight(f"one line with {' and '.join(words)}", missed)


def prints(word: str) -> Sight:
    return Sight(
        f"stdout has {word!r}", lambda end: None if re.search(word, end.stdout) else "it does not"
    )


def without_tracebacks() -> Sight:
    return Sight(
        "no traceback of commbench",
        lambda end: "a traceback" if "commbench/cli/run.py" in end.stderr else None,
    )


def measured(**where: Any) -> Sight:
    """At least one row with these values is ok, and none is invalid or failed."""

    def missed(end: Outcome) -> str | None:
        chosen = [
            row for row in end.rows if all(row[name] == value for name, value in where.items())
        ]
        bad = [row for row in chosen if row["status"] in ("failed", "invalid")]
        if bad:
            return (
                f"{bad[0]['benchmark']} {bad[0]['message_bytes']} B is {bad[0]['status']}:"
                f" {bad[0]['reason']}"
            )
        if any(row["status"] == "ok" for row in chosen):
            return None
        return f"no such row is ok: {sorted({str(row['reason']) for row in chosen})[:2]}"

    return Sight(f"measured and exact: {_text(where)}", missed)


def measured_or_refused(**where: Any) -> Sight:
    """Measured, or skipped because the sandbox refuses CUDA IPC, and that is in run.json."""

    def missed(end: Outcome) -> str | None:
        problem = measured(**where).missed(end)
        refused = [run.get("backend", {}).get("ipc_refused") for run in end.runs]
        return None if problem is None or (refused and all(refused)) else problem

    return Sight(f"measured, or CUDA IPC's refusal is recorded: {_text(where)}", missed)


def skipped(word: str, **where: Any) -> Sight:
    def missed(end: Outcome) -> str | None:
        reasons = [
            str(row["reason"])
            for row in end.rows
            if all(row[name] == value for name, value in where.items())
        ]
        return None if any(word in reason for reason in reasons) else f"reasons: {reasons[:2]}"

    return Sight(f"a skip row that says {word!r}: {_text(where)}", missed)


def column(name: str, allowed: Iterable[str]) -> Sight:
    """The column of the rows that are ok has only these values."""
    words = set(allowed)

    def missed(end: Outcome) -> str | None:
        values = {str(row[name]) for row in end.rows if row["status"] == "ok"}
        return None if values and values <= words else f"{name} is {sorted(values)}"

    return Sight(f"{name} is one of {', '.join(sorted(words))}", missed)


def filled(name: str, **where: Any) -> Sight:
    """Every row with these values that is ok has a value in the column."""

    def missed(end: Outcome) -> str | None:
        rows = [row for row in end.rows if row["status"] == "ok"]
        rows = [row for row in rows if all(row[key] == value for key, value in where.items())]
        empty = [row for row in rows if row[name] is None or row[name] != row[name]]
        if not rows:
            return "no row is ok"
        return f"{len(empty)} of {len(rows)} rows have none" if empty else None

    return Sight(f"column {name} has a value: {_text(where)}", missed)


def recorded(*patterns: str) -> Sight:
    """run.json contains text that matches these patterns."""

    def missed(end: Outcome) -> str | None:
        text = "\n".join(json.dumps(run) for run in end.runs)
        absent = [pattern for pattern in patterns if not re.search(pattern, text)]
        return f"absent: {', '.join(absent)}" if absent else None

    return Sight(f"run.json has {', '.join(patterns)}", missed)


def counted(*names: str) -> Sight:
    def missed(end: Outcome) -> str | None:
        absent = [name for name in names if name not in end.counter_names]
        return f"absent: {', '.join(absent)}" if absent else None

    return Sight(f"counters.parquet has {', '.join(names)}", missed)


def compared(text: str, true: Callable[[list[Row]], bool]) -> Sight:
    """A relation between rows that are ok."""

    def missed(end: Outcome) -> str | None:
        return (
            None if true([row for row in end.rows if row["status"] == "ok"]) else "it does not hold"
        )

    return Sight(text, missed)


def answered(text: str, true: Callable[[dict[str, Any]], bool]) -> Sight:
    """A relation in the JSON that a probe has printed."""

    def missed(end: Outcome) -> str | None:
        if not end.answer:
            return f"no answer: {last_line(end.stderr)}"
        try:
            return None if true(end.answer) else "it does not hold; see stdout.txt"
        except (KeyError, TypeError) as error:
            return f"the answer is not complete: {type(error).__name__} {error}"

    return Sight(text, missed)


def off_takes_another_transport() -> Sight:
    """cuda_ipc=off takes no P2P, and cuda_ipc=on another transport where NCCL would use P2P.

    By default NCCL uses P2P over NVLink and below a PCIe host bridge (PATH_PXB in
    src/graph/paths.cc), and only where CUDA grants peer access."""

    def missed(end: Outcome) -> str | None:
        rows = [row for row in end.rows if row["status"] == "ok"]
        on = {str(row["transport"]) for row in rows if row["cuda_ipc"] == "on"}
        off = {str(row["transport"]) for row in rows if row["cuda_ipc"] == "off"}
        seen = f"on takes {', '.join(sorted(on))}, off takes {', '.join(sorted(off))}"
        if not on or not off or any("P2P" in transport for transport in off):
            return seen
        near = all(NEAR_LINK.fullmatch(str(row["link"])) for row in rows)
        granted = recorded(r'"peer\.0-1\.can_access": true').missed(end) is None
        return seen if near and granted and on & off else None

    return Sight("cuda_ipc=off takes no P2P, and on does where this machine has it", missed)


def last_line(text: str) -> str:
    """The last line of commbench, else the last line."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("commbench:")]
    return (ours or lines or ["nothing"])[-1][:300]


def _text(where: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in where.items()) or "all rows"
