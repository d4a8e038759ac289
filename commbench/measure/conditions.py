"""The conditions recorded with each case: the overhead of a call, wires and GPUs, and what the
library reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from commbench.backends.buffers.cuda_ipc import CudaExporter, probe_cuda_ipc
from commbench.backends.buffers.memory import buffer_bytes
from commbench.config.settings import Settings
from commbench.core.case import CaseGroup, Planned, World
from commbench.core.errors import ConfigError
from commbench.core.extras import how_to_install, is_installed
from commbench.core.protocols import GROUP_ORDER, Communicator, Control
from commbench.core.terminal import first_line, print_error
from commbench.hardware import resource_limits
from commbench.stats.series import Z95

from .calibration import (
    call_overheads_s,
    compute_units_s,
    copy_gb_per_s,
    empty_samples_s,
    host_copies_gb_per_s,
    wake_links,
)
from .compute_amounts import UnitSeconds
from .plan_facts import PlanFacts
from .preflight import MEETING_S, uses_shm
from .transports import LogReader, TransportEvidence, gather_evidence

OFF_CACHE_BYTES = 2**25  # a copy of this size is enough unless the last cache is larger


@dataclass(frozen=True)
class Conditions:
    """What a row needs besides its case and its samples; the same for all cases of a run."""

    # by engine: between the two stamps of a program without steps
    empty_sample_s: Mapping[str, float]
    overhead_s: Mapping[str, float]  # by engine: of a call
    cores: float  # that the ranks of a node may use
    threads_per_rank: int
    cache_bytes: int
    evidence: TransportEvidence
    world: World
    hosts: tuple[str, ...] = ()  # the name of each node
    joins_messages: bool = False  # see Backend
    # where ranks communicate through a /dev/shm that is too small
    small_shm_nodes: frozenset[int] = frozenset()
    # of one core, by the bytes of the copy
    host_copies_gb_per_s: Mapping[int, float] = field(default_factory=dict)
    compute_units_s: UnitSeconds = field(default_factory=dict)  # of overlaps
    z: float = Z95  # the normal quantile of the wanted level of intervals

    def core_copy_gb_per_s(self, copied_bytes: int) -> float | None:
        """The rate at which a core copies so many bytes: the best of the next smaller measured size
        and all above it.

        Larger sizes count because a copy of a few kB is as fast, but numpy's call takes longer than
        the copy.
        """
        rates = self.host_copies_gb_per_s
        below = max((size for size in rates if size <= copied_bytes), default=0)
        return max((rate for size, rate in rates.items() if size >= below), default=None)


class ConditionsReader:
    """Reads the conditions of an opened library. All ranks make its calls together; `run` is empty
    except on rank 0."""

    def __init__(
        self,
        settings: Settings,
        world: World,
        control: Control,
        run: dict[str, Any],
        communicator: Communicator,
    ) -> None:
        self._settings = settings
        self._world = world
        self._control = control
        self._run = run
        self._communicator = communicator
        self._log = LogReader()
        facts = communicator.facts()
        self._log.read(facts, facts.get(GROUP_ORDER, range(world.size)))

    def open_group(self, group: CaseGroup) -> Communicator | None:
        """Its communicator; new lines of the library's log are about its ranks."""
        library = self._communicator
        subset = library.for_graphs if group.captures else library.subset
        communicator = subset(group.members)
        if self._log.available:
            self._log.read(library.facts(), group.members)
        return communicator

    def read(
        self, single: Communicator | None, cases: Sequence[Planned], facts: PlanFacts
    ) -> Conditions:
        """`single` is the group of rank 0 alone; it is None on other ranks, where measured values
        stay empty."""
        library = self._communicator.facts()
        empty_s = dict[str, float]()
        overhead_s = dict[str, float]()
        host_copies = dict[int, float]()
        if self._settings.device == "cuda" and not self._world.is_hosted:
            wake_links(self._communicator)
        evidence = gather_evidence(self._world, self._control, library, self._run, self._log)
        if self._settings.device == "cuda" and "ipc_probe" not in library:
            probed = probe_cuda_ipc(CudaExporter, self._world, self._control, MEETING_S)
            self._run |= {"ipc_probe": probed} if self._run else {}
        engines = {planned.case.engine for planned in cases if not planned.skip}
        if "native" in engines and not self._world.is_hosted:
            self._load_native_engine()
        units_s = {} if single is None else compute_units_s(single, cases)
        if single is not None and not self._world.is_hosted:
            empty_s = empty_samples_s(engines)
            overhead_s = call_overheads_s(single, cases)
            evidence = replace(evidence, copy_gb_per_s=copy_gb_per_s(single, cases))
            on_cpus = [
                planned
                for planned in cases
                if planned.case.device == "cpu" and planned.size > 1 and not planned.skip
            ]
            if on_cpus:
                largest = min(
                    max(map(copied_bytes, on_cpus)), max(facts.cache_bytes, OFF_CACHE_BYTES)
                )
                host_copies = host_copies_gb_per_s(largest)
        self._control.agree(None, MEETING_S, "calibration")
        nodes = self._run["provenance"]["nodes"] if self._run else ()
        small = [number for number, node in enumerate(nodes) if resource_limits.small_shm(node)]
        return Conditions(
            empty_sample_s=empty_s,
            overhead_s=overhead_s,
            cores=facts.cores,
            threads_per_rank=self._settings.backend.threads_per_rank,
            small_shm_nodes=frozenset(small if uses_shm(self._settings, self._world) else ()),
            cache_bytes=facts.cache_bytes,
            evidence=evidence,
            world=self._world,
            joins_messages=self._settings.backend.joins_messages,
            hosts=tuple(str(node.get("host.hostname", "?")) for node in nodes),
            host_copies_gb_per_s=host_copies,
            compute_units_s=units_s,
            z=self._settings.timing.z,
        )

    def _load_native_engine(self) -> None:
        """Takes 0.3 s: on all ranks at the same time, so that rank 0 does not wait for the others
        later. Raises ConfigError on all ranks where one can't."""
        missing = None
        cache_problem = None
        try:
            cache_problem = import_module("commbench.engines.native").cache_problem
        except ImportError as error:  # this numba and this numpy may not fit
            why = first_line(error) if is_installed("numba") else how_to_install("numba")
            missing = f"engine=native needs numba: {why}; or use engine=python"
        missing = self._control.agree(missing, MEETING_S, "loading the engine")
        if missing is not None:
            raise ConfigError(missing, shared=True)
        cache_problem = self._control.agree(cache_problem, MEETING_S, "loading the engine")
        if cache_problem is not None and self._world.rank == 0:
            print_error(cache_problem)

    def after(
        self, conditions: Conditions, planned: Planned, control: Control, deadline_s: float
    ) -> Conditions:
        """Adds what the library logged during a case, in which pairs may have connected. The case's
        ranks call it."""
        if not self._log.available:
            return conditions
        self._log.read(self._communicator.facts(), planned.members)
        records = control.gather(self._log.record(), deadline_s, f"transports of {planned.case}")
        return replace(conditions, evidence=conditions.evidence.extended(records, self._log))


def copied_bytes(planned: Planned) -> int:
    """The bytes of the largest buffer of any rank, with all its copies: the memory that successive
    operations use."""
    specs = (spec for rank in planned.active for spec in planned.buffers(rank))
    return max((buffer_bytes(spec, planned.pool) for spec in specs), default=0)
