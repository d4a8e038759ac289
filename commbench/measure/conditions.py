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
    copy_gb_per_s,
    core_copy_gb_per_s,
    empty_samples_s,
    wake_links,
)
from .measuring import Calibrated, calibrated
from .nccl_evidence import LogReader
from .plan_facts import PlanFacts
from .time_limits import MEETING_S
from .transport_facts import gather_evidence
from .transports import TransportEvidence


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
    core_copy_gb_per_s: float | None = None  # of a copy by one core; None where no case needs it
    of_features: Calibrated = field(default_factory=dict)
    z: float = Z95  # the normal quantile of the wanted level of intervals


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
        if self._log.own.logged:
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
        core_copy = None
        if self._settings.ranks_have_gpus:
            wake_links(self._communicator)
        evidence = gather_evidence(self._world, self._control, library, self._run, self._log.own)
        if self._settings.device == "cuda" and "ipc_probe" not in library:
            probed = probe_cuda_ipc(CudaExporter, self._world, self._control, MEETING_S)
            self._run |= {"ipc_probe": probed} if self._run else {}
        engines = {planned.case.engine for planned in cases if not planned.skip}
        if "native" in engines and not self._world.is_hosted:
            self._load_native_engine()
        of_features = {} if single is None else calibrated(single, cases)
        if single is not None and not self._world.is_hosted:
            empty_s = empty_samples_s(engines)
            overhead_s = call_overheads_s(single, cases)
            evidence = replace(evidence, copy_gb_per_s=copy_gb_per_s(single, cases))
            if any(_needs_core_copy(planned, facts.cache_bytes) for planned in cases):
                core_copy = core_copy_gb_per_s(facts.cache_bytes)
        self._control.agree(None, MEETING_S, "calibration")
        nodes = self._run["provenance"]["nodes"] if self._run else ()
        small = [number for number, node in enumerate(nodes) if resource_limits.small_shm(node)]
        return Conditions(
            empty_sample_s=empty_s,
            overhead_s=overhead_s,
            cores=facts.cores,
            threads_per_rank=self._settings.backend.threads_per_rank,
            small_shm_nodes=frozenset(small if self._settings.uses_shm else ()),
            cache_bytes=facts.cache_bytes,
            evidence=evidence,
            world=self._world,
            joins_messages=self._settings.backend.joins_messages,
            hosts=tuple(str(node.get("host.hostname", "?")) for node in nodes),
            core_copy_gb_per_s=core_copy,
            of_features=of_features,
            z=self._settings.timing.z,
        )

    def measure_limits_again(
        self, conditions: Conditions, single: Communicator, cases: Sequence[Planned]
    ) -> Conditions:
        """With the best of the rates of copies so far: what else the machine does makes single ones
        too low. Only rank 0 calls it."""
        evidence = conditions.evidence
        device = core = None
        if evidence.copy_gb_per_s is not None:
            device = _higher(evidence.copy_gb_per_s, copy_gb_per_s(single, cases))
        if conditions.core_copy_gb_per_s is not None:
            now = core_copy_gb_per_s(conditions.cache_bytes)
            core = _higher(conditions.core_copy_gb_per_s, now)
        return replace(
            conditions,
            evidence=replace(evidence, copy_gb_per_s=device),
            core_copy_gb_per_s=core,
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
        if not self._log.own.logged:
            return conditions
        self._log.read(self._communicator.facts(), planned.members, planned.case.row_ids)
        own = self._log.own
        records = control.gather(own.record(), deadline_s, f"transports of {planned.case}")
        evidence = conditions.evidence
        nccl = evidence.nccl.extended(records, own)
        return replace(conditions, evidence=replace(evidence, nccl=nccl))


def fits_in_cache(planned: Planned, cache_bytes: int) -> bool:
    """Whether a last-level cache of this size holds what successive operations use: the largest
    buffer of any rank, with all its copies, and what it is copied to."""
    specs = (spec for rank in planned.active for spec in planned.buffers(rank))
    largest = max((buffer_bytes(spec, planned.pool) for spec in specs), default=0)
    return largest < 2 * cache_bytes


def _needs_core_copy(planned: Planned, cache_bytes: int) -> bool:
    is_on_cpus = planned.case.device == "cpu" and planned.size > 1 and not planned.skip
    return is_on_cpus and not fits_in_cache(planned, cache_bytes)


def _higher(rate: float, again: float | None) -> float:
    return rate if again is None else max(rate, again)
