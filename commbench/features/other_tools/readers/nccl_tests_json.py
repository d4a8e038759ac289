"""nccl-tests' JSON (-J), of which a killed job leaves the whole lines of its table."""

from __future__ import annotations

from typing import Any

from commbench.features.other_tools.experiment import FileContent, Problems, RankPlace
from commbench.features.other_tools.foreign_files import ForeignFile
from commbench.features.other_tools.foreign_readers import NotRecognised
from commbench.features.other_tools.json_documents import (
    Document,
    documents,
    part,
    parts,
    text_of,
)
from commbench.features.other_tools.printed import plain_number

from .nccl_tests import Half, Program, TableLine, library_text, table_line
from .nccl_tests_text import NAMED

RATE_SLACK = 0.5e-6  # of numbers with six decimals
SETTINGS = {
    "nthreads": "nThread",
    "ngpus": "nGpus",
    "warmup_iters": "warmup iters",
    "iterations": "iters",
    "aggregated_iterations": "agg iters",
    "validation": "validation",
    "graph": "graph",
}
SECRET = ("KEY", "TOKEN", "SECRET", "PASS")
KEPT_ENVIRONMENT = ("NCCL_", "UCX_", "FI_", "OMPI_MCA_", "CUDA_", "RCCL_")
CALLS = {"min_us": "min_s", "max_us": "max_s", "p95_us": "p95_s", "p99_us": "p99_s"}
US = 1e-6


class NcclTestsJson:
    form = "the JSON of nccl-tests"

    def recognises(self, file: ForeignFile) -> bool:
        head = file.head.lstrip()
        return head.startswith(b"{") and b'"nccl_version"' in head

    def read(self, file: ForeignFile) -> FileContent:
        problems = Problems()
        experiments = []
        try:
            found = list(documents(file))
        except ValueError as error:
            raise NotRecognised(f"JSON of nccl-tests, but {error}") from error
        for document in found:
            program = _program(document, problems)
            named = NAMED.search(file.name.rpartition("/")[2])
            program.program = program.program or (named[1] if named else None)
            experiment = program.experiment() if program.lines else "no line of its table"
            if isinstance(experiment, str):
                problems.add(experiment, document.line)
            else:
                experiments.append(experiment)
        return FileContent(experiments, problems)


def _program(document: Document, problems: Problems) -> Program:
    value = document.value
    config = part(value, "config")
    arguments = value.get("args")
    words = [text_of(word) or "" for word in arguments] if isinstance(arguments, list) else []
    named = next(filter(None, map(NAMED.search, words[:1])), None)
    code = value.get("nccl_version")
    settings: dict[str, Any] = {
        ours: config[name] for name, ours in SETTINGS.items() if isinstance(config.get(name), int)
    }
    environment = value.get("env")
    kept = [
        word
        for word in (environment if isinstance(environment, list) else [])
        if isinstance(word, str)
        and word.startswith(KEPT_ENVIRONMENT)
        and not any(secret in word.partition("=")[0].upper() for secret in SECRET)
    ]
    program = Program(
        library=library_text(code) if isinstance(code, int) else None,
        program=named[1] if named else None,
        settings={
            **settings,
            **({"args": words} if words else {}),
            **({"env": kept} if kept else {}),
            **{
                name: value[name] for name in ("start_time", "end_time") if text_of(value.get(name))
            },
        },
        blocking="blocking" if config.get("blocking_collectives") in (True, "true") else "",
        is_complete=not document.is_cut and "out_of_bounds" in value,
    )
    for device in parts(config, "devices"):
        rank, group = device.get("rank"), device.get("group")
        host, gpu = text_of(device.get("hostname")), text_of(device.get("device_info"))
        if isinstance(rank, int):
            own = group if isinstance(group, int) else 0
            program.places.append(RankPlace(rank, host, gpu and gpu.strip(), own))
    for number, result in enumerate(parts(value, "results"), 1):
        try:
            program.lines.append(_line(result))
        except (ValueError, KeyError, OverflowError) as error:
            problems.add(f"result {number}: {error}", document.line)
    return program


def _line(result: dict[str, Any]) -> TableLine:
    """Raises ValueError and KeyError."""
    halves = [
        _half(part(result, name), part(result, f"{name}_per_iter"), in_place=name == "in_place")
        for name in ("out_of_place", "in_place")
        if part(result, name)
    ]
    if not halves:
        raise ValueError("neither out of place nor in place")
    texts = {name: str(result[name]).strip() for name in ("size", "count", "type", "redop", "root")}
    iterations = result.get("actual_iterations")
    return table_line(None, texts, halves, iterations if isinstance(iterations, int) else None)


def _half(values: dict[str, Any], calls: dict[str, Any], in_place: bool) -> Half:
    """Raises ValueError and KeyError."""
    time = values["time"] if "time" in values else values["cpu_time"]
    wrong = values.get("nwrong")
    return Half(
        in_place,
        plain_number(time, RATE_SLACK).times(US),
        plain_number(values["alg_bw"], RATE_SLACK),
        plain_number(values["bus_bw"], RATE_SLACK),
        None if wrong is None else int(plain_number(wrong).value),
        calls={
            column: plain_number(calls[name]).value * US
            for name, column in CALLS.items()
            if name in calls
        },
    )
