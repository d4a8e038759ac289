"""What NCCL's log and a profile say of the cases of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from commbench.core.case import Planned
from commbench.core.layout import Pair
from commbench.core.program import operation_name
from commbench.hardware.nccl_log import (
    ALGORITHMS,
    Chosen,
    Kinds,
    Ports,
    common_algorithm,
    parse_log,
    ports_of,
    symmetric_kernel,
    usual_kernel,
)

# keys of a communicator's facts
LOG_SOURCE = "nccl_log"
LOG_CUT = "nccl_log_cut"  # whether the log is longer than what is read of it
KERNELS = "nccl_kernels"  # the names of those that were profiled, in their order
RECORDED = (  # of a log, in run.json
    "version",
    "network",
    "plugin",
    "provider",
    "interfaces",
    "transport",
    "rings",
    "trees",
    "multicast",
    "nvls_channels",
)
LogRecord = list[Any]  # [from rank, to rank, kinds] and [rank, peer, ports] of pairs, whether all


@dataclass(frozen=True)
class CaseLines:
    """What NCCL said and ran in the visits of a case. `kernels` are the names of a profiled call's;
    `registered`: whether a buffer was registered."""

    algorithms: tuple[Chosen, ...] = ()
    registered: bool = False
    kernels: tuple[str, ...] = ()

    def __add__(self, later: CaseLines) -> CaseLines:
        return CaseLines(
            self.algorithms + later.algorithms,
            self.registered or later.registered,
            self.kernels + later.kernels,
        )


NO_LINES = CaseLines()


@dataclass(frozen=True)
class NcclEvidence:
    """What the log of a rank says; on rank 0, with the pairs of all. `kinds` and `ports` are by
    pairs of world ranks, the ports those by which the first of them reaches the other."""

    logged: bool = False  # whether the library has a log
    complete: bool = True  # whether it was read to its end
    kinds: dict[Pair, Ports] = field(default_factory=dict)
    ports: dict[Pair, Ports] = field(default_factory=dict)
    lines: dict[str, CaseLines] = field(default_factory=dict)  # by the case_id of a row
    # the members of communicators with NVLS channels, and of those whose network sums (SHARP)
    multicast: tuple[tuple[int, ...], ...] = ()
    collnet: tuple[tuple[int, ...], ...] = ()
    no_windows: str | None = None  # why NCCL has no symmetric memory

    def record(self) -> LogRecord:
        """What is known of pairs, as JSON, to be gathered."""
        return [
            [[*pair, list(kinds)] for pair, kinds in self.kinds.items()],
            [[*ends, list(ports)] for ends, ports in self.ports.items()],
            self.complete,
        ]

    def extended(self, records: Iterable[LogRecord], own: NcclEvidence) -> NcclEvidence:
        """Adds the `record()` of all ranks, and the other values of this one."""
        kinds = dict(self.kinds)
        ports = dict(self.ports)
        complete = self.complete
        for kinds_of_rank, ports_of_rank, read_to_end in records:
            complete &= read_to_end
            for first, second, texts in kinds_of_rank:
                _add(kinds, (first, second), texts)
            for first, second, texts in ports_of_rank:
                _add(ports, (first, second), texts)
        return replace(own, kinds=kinds, ports=ports, complete=complete)

    def kinds_of(self, planned: Planned) -> Kinds:
        """The transports of the case's pairs; for a collective these are all pairs of its ranks."""
        if planned.case.pairs:
            pairs = {
                (planned.members[first], planned.members[second])
                for first, second in planned.case.pairs
            }
            return {pair: kinds for pair, kinds in self.kinds.items() if pair in pairs}
        members = set(planned.members)  # with thousands of ranks there are too many pairs to list
        return {pair: kinds for pair, kinds in self.kinds.items() if members.issuperset(pair)}

    def algorithm(self, planned: Planned) -> str | None:
        """The algorithm in NCCL's log of the case's visits (NCCL_DEBUG_SUBSYS=INIT,TUNING), or the
        kernel for symmetric memory that was profiled."""
        if planned.operation is None:
            return None
        name = operation_name(planned.operation)
        block_bytes = planned.case.message_bytes // max(1, planned.benchmark.blocks(planned.size))
        own = self._lines(planned)
        logged = common_algorithm(own.algorithms, name, planned.case.message_bytes, block_bytes)
        return logged or symmetric_kernel(own.kernels)

    def registered(self, planned: Planned) -> str | None:
        """What the library registered the buffers as, where the case asks for it: window, local,
        none; None if neither its log nor its kernels tell. Kernels for symmetric memory, and copy
        engines, need windows."""
        asked = planned.case.registration
        if asked != "symmetric":
            return asked if asked != "none" and self._lines(planned).registered else None
        ran = self._ran(planned)
        if ran is None:
            return None if self.no_windows is None else "none"
        return "none" if ran in ALGORITHMS or usual_kernel([ran]) else "window"

    def unregistered(self, planned: Planned) -> str | None:
        """Why windows were asked for and not used; None if they were, or that is not known."""
        if self.registered(planned) != "none":
            return None
        ran = self._ran(planned)
        instead = f" and ran {ran}" if ran else ""
        settings = f": {self.no_windows}" if self.no_windows else ""
        return f"NCCL used no symmetric memory{instead}{settings}"

    def _ran(self, planned: Planned) -> str | None:
        """The algorithm, or the name of a kernel of NCCL that is not for symmetric memory."""
        return self.algorithm(planned) or usual_kernel(self._lines(planned).kernels)

    def _lines(self, planned: Planned) -> CaseLines:
        return self.lines.get(planned.case.case_id, NO_LINES)


class LogReader:
    """Reads NCCL's log of this rank as it grows. New lines are about the communicator that was used
    since."""

    def __init__(self) -> None:
        self.own = NcclEvidence()
        self._length = 0  # of the part that has been read
        self._kernels = 0  # how many have been read
        self._provider: str | None = None  # listed once in a process, as devices are
        self._devices: dict[str, Mapping[int, Ports]] = {}

    def read(
        self, facts: Mapping[str, Any], members: Sequence[int], row_ids: Sequence[str] = ()
    ) -> None:
        """`members` are the world ranks of the communicator, whose own ranks the log names;
        `row_ids`: the rows of the case that was visited since."""
        text = facts.get(LOG_SOURCE) or ""
        end = text.rfind("\n") + 1  # NCCL may still be writing the last line
        log = parse_log(text[self._length : end])
        self._length = end
        self._provider = self._provider or log.provider
        self._devices |= log.devices
        kernels = tuple(facts.get(KERNELS, ())[self._kernels :])
        self._kernels += len(kernels)
        own = self.own
        new = CaseLines(log.algorithms, log.registered, kernels)
        for row_id in row_ids if new != NO_LINES else ():
            own.lines[row_id] = own.lines.get(row_id, NO_LINES) + new
        for pair, kinds in log.kinds.items():
            _add(own.kinds, pair, map(self._with_provider, kinds), members)
        for pair, devices in log.net_devices.items():
            ports = (ports_of(self._devices, device) for device in sorted(devices))
            _add(own.ports, pair, chain.from_iterable(ports), members)
        group = (tuple(members),)
        self.own = replace(
            own,
            logged=LOG_SOURCE in facts,
            complete=not facts.get(LOG_CUT, False),
            multicast=own.multicast + (group if log.nvls_channels else ()),
            collnet=own.collnet + (group if log.collnet else ()),
            no_windows=own.no_windows or log.no_windows,
        )

    def _with_provider(self, kind: str) -> str:
        """`NET/AWS Libfabric/GDRDMA (efa)`: the plugin has the same name over TCP."""
        return f"{kind} ({self._provider})" if self._provider and "Libfabric" in kind else kind


def _add(
    known: dict[Pair, Ports], pair: Pair, texts: Iterable[str], members: Sequence[int] | None = None
) -> None:
    """Add the texts of a pair of world ranks, or of ranks of a communicator with these members."""
    if members is not None:
        if max(pair) >= len(members):
            return
        pair = (members[pair[0]], members[pair[1]])
    known[pair] = tuple(dict.fromkeys((*known.get(pair, ()), *texts)))


def library_record(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A communicator's facts for run.json, with the contents of NCCL's log instead of its text."""
    others = {name: value for name, value in facts.items() if name not in (LOG_SOURCE, KERNELS)}
    log = parse_log(facts.get(LOG_SOURCE) or "")
    values = {name: getattr(log, name) for name in RECORDED}
    nccl = {name: value for name, value in values.items() if value not in (None, ())}
    return others | ({"nccl": nccl} if nccl else {})
