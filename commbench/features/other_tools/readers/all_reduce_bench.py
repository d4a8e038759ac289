"""The table of all_reduce_bench.py (stas00/ml-engineering): rates of torch's all_reduce."""

from __future__ import annotations

import re
from dataclasses import replace
from statistics import median
from typing import Any, ClassVar

from commbench.core.errors import ConfigError
from commbench.core.units import parse_bytes
from commbench.features.other_tools.experiment import Experiment, Problems, RankPlace, measured
from commbench.features.other_tools.printed import Printed
from commbench.features.other_tools.text_lines import Line
from commbench.results.row import Row

TITLE = re.compile(
    r"The (?:average|(?P<payload>[0-9.]{1,12})GiB payload) bandwidth of all_reduce over"
    r" (?P<ranks>[0-9]{1,7}) ranks(?: \((?P<warmups>[0-9]+) warmups / (?P<trials>[0-9]+) trials\))?"
)
SOFTWARE = re.compile(
    r"- software: torch=(?P<torch>[^,\s]{1,40}), cuda=(?P<cuda>[^,\s]{1,20}),"
    r" nccl=\((?P<nccl>[0-9, ]{1,30})\)"
)
HARDWARE = re.compile(r"- hardware: .*?name='([^']{1,80})'")
CELL = re.compile(r"([0-9.]{1,20})GBps")
SIZE = re.compile(r"[0-9]{1,6}[KMGT]?i?B")
ITEM_BYTES = 4
TOOL = "all_reduce_bench.py"


class AllReduceBench:
    form: ClassVar[str] = "the table of all_reduce_bench.py"

    def __init__(self, name: str, problems: Problems) -> None:
        self._problems = problems
        self._tables: list[_Table] = []
        self._software: dict[str, str] = {}
        self._gpu: str | None = None

    def add(self, line: Line) -> None:
        text = line.text.strip()
        if match := SOFTWARE.search(text):
            self._software = match.groupdict()
        elif match := HARDWARE.search(text):
            self._gpu = match[1]
        elif match := TITLE.search(text):
            self._tables.append(_Table(match, self._software, self._gpu))
            self._software, self._gpu = {}, None
        elif self._tables and text.startswith("|"):
            self._tables[-1].add(line, self._problems)
        elif self._tables and text.startswith("Elapsed time:"):
            self._tables[-1].is_complete = True

    def end(self) -> list[Experiment]:
        return [table.experiment() for table in self._tables if table.has_rows]


class _Table:
    """One table: a size a line, or a repetition a line of one size."""

    def __init__(self, title: re.Match[str], software: dict[str, str], gpu: str | None) -> None:
        self.is_complete = False
        self._names = title.groupdict()
        self._software = software
        self._gpu = gpu
        self._rows: list[Row] = []
        self._times: list[float] = []  # of the repetitions of a payload

    @property
    def has_rows(self) -> bool:
        return bool(self._rows or self._times)

    def add(self, line: Line, problems: Problems) -> None:
        cells = [cell.strip() for cell in line.text.strip().strip("|").split("|")]
        rates = [match[1] for cell in cells if (match := CELL.fullmatch(cell))]
        if not rates and (len(cells) < 2 or cells[0] in ("payload", "busbw") or "-" in cells[0]):
            return
        try:
            busbw, algbw = map(Printed.parse, rates)
            if not algbw.value:
                raise ValueError("a rate of 0: below the digits that the tool prints")
            self._measured(line, cells, busbw, algbw)
        except (ValueError, ConfigError, OverflowError) as error:
            problems.add(f"{line.text.strip():.60}: {error}", line.number)

    def _measured(self, line: Line, cells: list[str], busbw: Printed, algbw: Printed) -> None:
        """Raises ValueError and ConfigError."""
        payload = self._names["payload"]
        if payload is not None:
            self._times.append(float(payload) * 2**30 / algbw.value / 1e9)
            return
        if not SIZE.fullmatch(cells[0]):
            raise ValueError("no size")
        size = parse_bytes(cells[0])
        self._rows.append(self._row(size, algbw, busbw, line.number))

    def _row(
        self, size: int, algbw: Printed, busbw: Printed | None, line: int | None, **more: Any
    ) -> Row:
        time_s = size / algbw.value / 1e9
        trials = self._names["trials"]
        return measured(
            "all_reduce",
            size,
            Printed(time_s, time_s * algbw.slack / algbw.value),
            ranks=int(self._names["ranks"]),
            bus_rate=None if busbw is None else busbw.times(1e9),
            line=line,
            engine="python",
            device="cuda",
            timer="device_event",
            sync="barrier",
            dtype="float32",
            elements=size // ITEM_BYTES,
            in_place=True,
            reduction="sum",
            operations_per_sample=int(trials) if trials else None,
            median_of="payload / mean rate of calls and ranks",
            **more,
        )

    def experiment(self) -> Experiment:
        ranks = int(self._names["ranks"])
        rows = self._rows or [self._of_repetitions()]
        nccl = self._software.get("nccl")
        versions = [f"torch {self._software['torch']}"] if self._software else []
        versions += [f"NCCL {'.'.join(nccl.replace(' ', '').split(','))}"] if nccl else []
        return Experiment(
            tool=TOOL,
            backend="nccl",
            library=", ".join(versions) or None,
            rows=rows,
            ranks=ranks,
            places=[RankPlace(rank, None, self._gpu) for rank in range(ranks)],
            settings={name: value for name, value in self._names.items() if value},
            notes=["payloads are as printed: rounded down to whole KiB, MiB or GiB"],
            is_cut=not self.is_complete,
        )

    def _of_repetitions(self) -> Row:
        """The payload of --profile_stability."""
        size = round(float(self._names["payload"]) * 2**30)
        rate = size / median(self._times) / 1e9
        count = len(self._times)
        row = self._row(size, Printed(rate), None, None, min_s=min(self._times))
        return row if row.status != "ok" else _repeated(row, self._times, count)


def _repeated(row: Row, times: list[float], count: int) -> Row:
    return replace(
        row,
        max_s=max(times),
        mean_s=sum(times) / count,
        repetitions=count,
        operations_per_sample=1,
        median_of="payload / rate of a call, mean of ranks",
    )
