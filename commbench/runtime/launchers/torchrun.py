"""Ranks on this machine through torchrun."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.core.case import RankIdentity
from commbench.core.layout import Layout
from commbench.core.protocols import Backend, Launcher, RankVariables
from commbench.runtime.rendezvous import exported_address, exported_identity, store_at

from .given_world import TORCHRUN_ID


@dataclass(frozen=True)
class Torchrun(Launcher):
    """See Launcher."""

    name = "torchrun"
    precedence = 10
    programs = ("torchrun",)
    is_called_per_node = True
    variables = RankVariables(worlds=(TORCHRUN_ID, "MASTER_ADDR", "MASTER_PORT"))
    # it exports this one
    fact_scopes = "environment.TORCH_NCCL_ASYNC_ERROR* | error | any | show | yes"

    def detect(self, environ: Mapping[str, str]) -> RankIdentity | None:
        if TORCHRUN_ID not in environ or "RANK" not in environ:
            return None
        return exported_identity(
            self.name, environ, "RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK"
        )

    def address(self, environ: Mapping[str, str]) -> tuple[str, int]:
        return exported_address(environ)

    def open_store(
        self,
        identity: RankIdentity,
        environ: Mapping[str, str],
        backend: Backend,
        interface: str | None,
    ) -> Any:
        """The agent's own store if it shares it, else one of rank 0; each restart has a prefix of
        its own."""
        from torch.distributed.distributed_c10d import PrefixStore

        owner = environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and identity.rank == 0
        store = store_at(*self.address(environ), owner)
        return PrefixStore(f"commbench/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)

    def command(
        self, layout: Layout, worker: Sequence[str], library: str | None, exports: Sequence[str]
    ) -> list[str]:
        """Port 0 lets the kernel choose a free one, so two runs on a machine never collide."""
        return [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes=1",
            f"--nproc-per-node={layout.ranks_per_node}",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=127.0.0.1:0",
            "--local-addr=127.0.0.1",
            "-m",
            "commbench",
            *worker,
        ]

    def manual_command(self, layout: Layout, worker: Sequence[str]) -> str:
        return (
            f"torchrun --nnodes {layout.nodes} --nproc-per-node {layout.ranks_per_node}"
            f" --rdzv-backend c10d --rdzv-endpoint HOST:29400 -m commbench {shlex.join(worker)}    "
            " (on each node)"
        )
