"""Which facts about a machine may differ between ranks, between the starts of a run, and between
compared runs.

A fact is a dotted name in run.json's `provenance.nodes`, such as `host.kernel`. The first row with
a matching pattern counts; a pattern is a name in which * is any text (fnmatch). Each launcher has
rows for its own variables.

ranks     what a difference between the ranks of a world means
            error    the ranks can't be measured together: a ConfigError, or a warning with
                     preflight=warn
            network  the same, unless interface= names a network, or the values name interfaces of
                     one network and rate, which may have different names on each host
            record   recorded in run.json
            node     expected between nodes; within a node it means separate containers and is
                     recorded
            ignore   differs from rank to rank or from moment to moment
restarts  `equal` if a resumed run must have the same value (unless --force is given), else `any`

runs      `show` if `commbench compare` reports a difference between two sides, else `ignore`

record    `no` for what is only compared, not recorded
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple

from commbench.core.launchers import launchers

MISSING = "missing"  # in place of a value; not a JSON text
# every rank has these: where one is missing, it could not be read
NEVER_ABSENT = ("host.", "gpu.own.")
_TABLE = """
    # fact                                | ranks   | restarts | runs   | record
    # why others could not be read
    *.error                               | record  | any      | ignore | yes
    *.reason                              | record  | any      | ignore | yes
    environment.CUDA_VISIBLE_DEVICES*     | record  | any      | show   | yes
    environment.COMMBENCH_TCP_INTERFACE*  | network | any      | ignore | yes
    environment.GLOO_SOCKET*              | network | equal    | show   | yes
    environment.NCCL_SOCKET*              | network | equal    | show   | yes
    environment.NCCL_IB_HCA               | network | equal    | show   | yes
    environment.OMPI_MCA_btl_tcp_if*      | network | equal    | show   | yes
    environment.UCX_NET*                  | network | equal    | show   | yes
    environment.FI_TCP*                   | network | equal    | show   | yes
    environment.MPIR_CVAR_NETWORK*        | network | equal    | show   | yes
    # differ with every start
    environment.COMMBENCH_*               | error   | any      | ignore | yes
    environment.MASTER_PORT               | error   | any      | ignore | yes
    environment.MASTER_*                  | error   | any      | show   | yes
    environment.*                         | error   | equal    | show   | yes
    # one that torch's own may hide
    versions.nccl_system                  | record  | any      | show   | yes
    # nodes may have the same torch in different folders
    versions.torch_from                   | record  | any      | show   | yes
    versions.torch_of_system              | record  | any      | ignore | yes
    versions.*                            | error   | equal    | show   | yes
    run.bind*                             | record  | any      | show   | yes
    # a digest of the whole configuration, with its credentials
    run.digest                            | error   | any      | ignore | no
    run.*                                 | error   | any      | show   | yes
    gpu.own.name*                         | error   | equal    | show   | yes
    gpu.own.memory_total_bytes*           | error   | equal    | show   | yes
    gpu.own.driver_version*               | error   | equal    | show   | yes
    host.hostname                         | node    | equal    | show   | yes
    host.kernel*                          | record  | equal    | show   | yes
    host.cpu_model*                       | record  | equal    | show   | yes
    host.boot_id                          | ignore  | any      | ignore | yes
    # on a node, the launcher has bound its ranks
    host.cpu_affinity                     | node    | any      | ignore | yes
    host.load_1min                        | ignore  | any      | ignore | yes
    # of runs until November 2026
    host.cpu_current_mhz                  | ignore  | any      | ignore | yes
    host.cpu_*_jiffies                    | ignore  | any      | ignore | yes
    host.hypervisor_flag                  | ignore  | any      | ignore | yes
    host.memory_available_bytes           | ignore  | any      | ignore | yes
    limits.cgroup_*_version               | ignore  | any      | ignore | yes
    limits.memory_allocatable_bytes       | ignore  | any      | ignore | yes
    limits.shm_free_bytes                 | ignore  | any      | ignore | yes
    limits.*swap*                         | ignore  | any      | ignore | yes
    ipc.platform.*                        | ignore  | any      | ignore | yes
    gpu.*.virtualization                  | ignore  | any      | ignore | yes
    *.nvlink_version                      | ignore  | any      | ignore | yes
    *.can_access                          | ignore  | any      | ignore | yes
    *.ipv4                                | node    | any      | show   | yes
    *.uuid                                | node    | any      | show   | yes
    *                                     | record  | any      | show   | yes
"""
_ROW = r"^ *([^#\s]+)" + 4 * r" *\| *(\w+)"


class FactScope(NamedTuple):
    """A row of the table; the module's docstring explains the values."""

    pattern: str
    ranks: Literal["error", "network", "record", "node", "ignore"]
    restarts: Literal["equal", "any"]
    runs: Literal["show", "ignore"]
    record: Literal["yes", "no"]


@cache
def fact_scopes() -> tuple[FactScope, ...]:
    """The rows of launchers, then the table's, one of which is for all other variables."""
    tables = "\n".join([*(launcher.fact_scopes for launcher in launchers()), _TABLE])
    return tuple(map(FactScope._make, re.findall(_ROW, tables, re.MULTILINE)))


@lru_cache(maxsize=4096)
def scope_of(fact: str) -> FactScope:
    return next(scope for scope in fact_scopes() if fnmatchcase(fact, scope.pattern))


def is_unknown(fact: str, facts: Mapping[str, Any]) -> bool:
    """Whether a rank could not read a fact, which is then no difference to ranks and runs that
    could. A variable or a package that is missing is known to be absent, unless a reading of the
    same kind failed."""
    if facts.get(fact) is not None:
        return False
    noun = fact.partition(".")[0]
    failed = f"{noun}.error" in facts or f"{noun}.reason" in facts
    return failed or fact in facts or fact.startswith(NEVER_ABSENT)
