"""Ranks on this machine, forked from a process that has imported torch once
(runtime/rank_server.py)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.core.case import RankIdentity
from commbench.core.layout import Layout
from commbench.core.protocols import Backend, Launcher
from commbench.runtime.rank_server import STORE_FD
from commbench.runtime.rendezvous import exported_identity, inherited_store, store_at

LAUNCHER = "COMMBENCH_LAUNCHER"  # its ranks' other variables are those of torchrun's


@dataclass(frozen=True)
class Local(Launcher):
    """See Launcher."""

    name = "local"
    precedence = 5
    forks = True

    def detect(self, environ: Mapping[str, str]) -> RankIdentity | None:
        if environ.get(LAUNCHER) != self.name:
            return None
        return exported_identity(self.name, environ, "RANK", "WORLD_SIZE", "LOCAL_RANK")

    def open_store(
        self,
        identity: RankIdentity,
        environ: Mapping[str, str],
        backend: Backend,
        interface: str | None,
    ) -> Any:
        """Rank 0's store listens on a socket that the rank server opened before it forked the
        ranks."""
        host = environ["MASTER_ADDR"]
        port = int(environ["MASTER_PORT"])
        if identity.rank == 0:
            return inherited_store(host, port, int(environ[STORE_FD]))
        return store_at(host, port, owner=False)

    def command(
        self, layout: Layout, worker: Sequence[str], library: str | None, exports: Sequence[str]
    ) -> list[str]:
        # launch.py sends it what to fork
        return [sys.executable, "-m", "commbench.runtime.rank_server"]

    def environment(self, ranks_per_node: int) -> dict[str, str]:
        return super().environment(ranks_per_node) | {LAUNCHER: self.name}
