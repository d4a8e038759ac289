"""The text of the OSU micro-benchmarks, of OMB in Python and of mpi4py's demonstrations of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from commbench.core.layout import pairs_text
from commbench.core.variables import Device, Engine, TimerName
from commbench.features.other_tools.experiment import (
    Experiment,
    Problems,
    RankPlace,
    measured,
    withheld,
)
from commbench.features.other_tools.osu import OSU_PROGRAMS
from commbench.features.other_tools.printed import Printed, contradiction
from commbench.features.other_tools.text_lines import Line
from commbench.results.row import Row

from .protocol import ITEM_BYTES, dtype_of

TITLE = re.compile(
    r"#\s*(?:(?P<suite>OSU|OMB Python)\s*)?(?P<library>MPI|NCCL|RCCL|XCCL)(?P<device>-[A-Z]{2,8})?"
    r" (?P<test>[A-Z][\w /-]{2,60}?) Test(?:\s+v(?P<version>[0-9][\w.-]{0,20})"
    r"|\s+\(Version (?P<old>[0-9.]{1,20})\))?$"
)
TESTS = {
    "latency": "p2p_latency",
    "bandwidth": "p2p_bandwidth",
    "bi-directional bandwidth": "p2p_bibandwidth",
    "multiple bandwidth / message rate": "p2p_multi_pair",
    "barrier latency": "barrier",
    "allreduce latency": "all_reduce",
    "broadcast latency": "broadcast",
    "reduce latency": "reduce",
    "reduce_scatter latency": "reduce_scatter",
    "reduce_scatter_block latency": "reduce_scatter",
    "allgather latency": "all_gather",
    "all-to-all personalized exchange latency": "all_to_all",
    "gather latency": "gather",
    "scatter latency": "scatter",
}
HEAD = re.compile(r"#\s*(?:Size|Avg Latency)")
COLUMN = re.compile(
    r"Size(?:\s?[(\[]B[)\]])?|(?:(?:Avg|Min|Max|P[0-9]+ Tail)\s)?Lat(?:ency)?\s?[(\[]us[)\]]"
    r"|Bandwidth\s?[(\[]MB/s[)\]]|MB/s|Messages/s|Iterations|Validation"
)
PAIRS = re.compile(r"#\s*\[\s*pairs:\s*([0-9]{1,7})\s*\]\s*\[\s*window size:\s*([0-9]{1,7})\s*\]")
DATATYPE = re.compile(r"#\s*Datatype:\s*(\w{1,40})")
LIBRARY = re.compile(
    r"(MVAPICH\S{0,12}?|Open MPI|MPICH|Intel\(R\) MPI Library)[- ]v?([0-9]+\.[\w.]+)"
)
MOST_PAIRS = 4096  # that a row names
PASSED = "pass"
US, MB = 1e-6, 1e6
OF_RANK = "block"
REDUCING = ("all_reduce", "reduce", "reduce_scatter")


class OsuText:
    form: ClassVar[str] = "the text of OSU's benchmarks"

    def __init__(self, name: str, problems: Problems) -> None:
        self._problems = problems
        self._open: dict[str, _Test] = {}
        self._done: list[_Test] = []
        self._library: str | None = None

    def add(self, line: Line) -> None:
        text = line.text.strip()
        if match := LIBRARY.search(text):
            self._library = f"{match[1].replace('Intel(R) MPI Library', 'Intel MPI')} {match[2]}"
        if match := TITLE.fullmatch(text):
            # OMB's own titles may be those of programs that no column below follows
            test = _Test(match, self._library, line.number)
            self._open[line.label] = test
            self._done.append(test)
        elif line.label in self._open:
            self._open[line.label].add(line, self._problems)

    def end(self) -> list[Experiment]:
        experiments = []
        for test in self._done:
            if test.benchmark is None and test.has_lines:
                self._problems.add(f"{test.title}: commbench has no such operation", test.number)
            elif test.has_lines:
                experiments.append(test.experiment())
        return experiments


class _Test:
    """One start of a program, line by line."""

    def __init__(self, title: re.Match[str], library: str | None, number: int) -> None:
        self.title = title[0].lstrip("# ")
        self.number = number
        self.benchmark = TESTS.get(title["test"].lower())
        self.has_lines = False
        self._names = title.groupdict()
        self._library = library
        self._columns: list[str] = []
        self._dtype: str | None = None
        self._pairs: tuple[int, int] | None = None
        self._rows: list[Row] = []
        self._is_open = False  # its last line has no end

    def add(self, line: Line, problems: Problems) -> None:
        text = line.text.strip()
        if match := PAIRS.match(text):
            self._pairs = int(match[1]), int(match[2])
        elif match := DATATYPE.match(text):
            self._dtype = dtype_of(match[1])
        elif HEAD.match(text):
            self._columns = _columns(text.lstrip("# "))
        elif self._columns and text[:1].isdigit():
            self.has_lines = True
            if self.benchmark is not None:
                self._row(line, problems)

    def _row(self, line: Line, problems: Problems) -> None:
        tokens = line.text.split()
        try:
            if not line.is_whole:
                self._is_open = True
                raise ValueError("it has no end")
            if len(tokens) != len(self._columns):
                raise ValueError("another number of columns")
            self._rows.append(self._measured(line, dict(zip(self._columns, tokens, strict=True))))
        except (ValueError, OverflowError) as error:
            reason = "cut" if not line.is_whole else str(error)
            problems.add(f"{line.text.strip():.60}: {reason}", line.number)

    def _measured(self, line: Line, texts: Mapping[str, str]) -> Row:
        """Raises ValueError."""
        benchmark = self.benchmark or ""
        size = int(texts.get("size", "0"))
        rate = texts.get("rate")
        printed = None if rate is None else Printed.parse(rate).times(MB)
        time_s = _time(size, texts.get("latency"), printed)
        iterations = texts.get("iterations")
        item_bytes = ITEM_BYTES.get(self._dtype or "")
        columns: dict[str, Any] = {
            **self._of_pairs(benchmark),
            "dtype": self._dtype,
            "elements": size // item_bytes if item_bytes else None,
            "bytes_per_rank": size if OSU_PROGRAMS[benchmark].size == OF_RANK else None,
            "reduction": "sum" if benchmark in REDUCING else None,
            "operations_per_sample": int(iterations) if iterations else None,
        }
        row = measured(benchmark, size, time_s, line=line.number, **columns)
        if texts.get("validation", PASSED).lower() != PASSED:
            return withheld(row, "the data was wrong (Validation)", line.number)
        messages = texts.get("messages/s")
        if messages is not None and row.status == "ok":
            counted = Printed.parse(messages).times(size)
            text = contradiction(size, time_s, counted, "its size x Messages/s")
            return row if text is None else withheld(row, text, line.number)
        return row

    def _of_pairs(self, benchmark: str) -> dict[str, Any]:
        if not benchmark.startswith("p2p_"):
            return {"median_of": "collective, mean over calls and ranks"}
        of = {"p2p_latency": "half a round trip"}.get(benchmark, "window / messages")
        window = None if benchmark == "p2p_latency" else self._pairs[1] if self._pairs else None
        count = self._pairs[0] if self._pairs else 1
        is_named = count <= MOST_PAIRS
        pairs = pairs_text((rank, rank + count) for rank in range(count)) if is_named else None
        return {"median_of": f"{of}, mean", "window": window, "pair": pairs}

    def experiment(self) -> Experiment:
        names = self._names
        is_python = names["suite"] != "OSU"
        on_gpu = names["device"] is not None
        is_mpi = names["library"] == "MPI"
        engine: Engine = "python" if is_python else "native"
        device: Device = "cuda" if on_gpu or not is_mpi else "cpu"
        timer: TimerName = "host" if device == "cpu" else "host_sync"
        pairs = self._pairs[0] if self._pairs else 1
        is_p2p = (self.benchmark or "").startswith("p2p_")
        ranks = 2 * pairs if is_p2p else None
        tool = {"OSU": "OSU", "OMB Python": "OMB-Py"}.get(names["suite"] or "", "mpi4py demo")
        return Experiment(
            tool=tool,
            version=names["version"] or names["old"],
            backend="mpi" if is_mpi else "nccl",
            library=self._library if is_mpi else None,
            rows=[replace(row, engine=engine, device=device, timer=timer) for row in self._rows],
            ranks=ranks,
            places=[RankPlace(rank) for rank in range(ranks or 0)],
            settings={"title": self.title},
            notes=["its last line is cut"] if self._is_open else [],
            is_cut=self._is_open or not self._rows,
        )


def _columns(text: str) -> list[str]:
    """What stands in each column, of latencies the mean."""
    names = COLUMN.findall(text)
    if COLUMN.sub("", text).strip():  # a column of another name
        names = re.split(r"\s{2,}", text)
    return [_column(name.lower()) for name in names]


def _column(name: str) -> str:
    if name.startswith("size"):
        return "size"
    if "mb/s" in name:
        return "rate"
    return "latency" if re.match(r"(?:avg )?lat", name) else name


def _time(size: int, latency: str | None, rate: Printed | None) -> Printed:
    """Seconds, of a rate those of one message; raises ValueError."""
    if latency is not None:
        return Printed.parse(latency).times(US)
    if rate is None or not rate.value:
        raise ValueError("neither a time nor a rate above 0")
    return Printed(size / rate.value, size / rate.value * rate.slack / rate.value)
