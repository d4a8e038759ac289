"""Ranks on this machine through torchrun."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Torchrun:
    """See Launcher."""

    name: ClassVar[str] = "torchrun"
    meets_over_mpi: ClassVar[bool] = False
    has_allocation: ClassVar[bool] = False
    reach: ClassVar[int] = 1  # on other nodes somebody has to start its agents

    def command(
        self, nodes: int, ranks_per_node: int, worker: Sequence[str], library: str | None, exports: Sequence[str] = ()
    ) -> list[str]:
        """Port 0 lets the kernel choose a free one: two runs on a machine never meet."""
        rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
        return [
            sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={ranks_per_node}",
            *rendezvous, "-m", "commbench", *worker,
        ]  # fmt: skip

    def environment(self, nodes: int, ranks_per_node: int, library: str | None) -> dict[str, str]:
        return {"OMP_NUM_THREADS": "1"}  # torchrun's own default, without its warning
