"""commbench as a rank on a host of another name: `dealt_ranks.py HOSTS WORD...`, HOSTS the host
number of each rank.

The name is all that decides which ranks share a node, so one machine shows every order in which a
launcher may deal ranks out; libraries below Python see one host. HOSTS with a trailing `s` hides
that torch can keep the order of ranks, as a torch that sorts them.
"""

from __future__ import annotations

import os
import platform
import socket
import sys

from commbench.cli.main import main

RANKS = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK")


def take_name(hosts: str) -> None:
    rank = next(int(os.environ[name]) for name in RANKS if name in os.environ)
    name = f"host{hosts[rank]}"
    socket.gethostname = lambda: name  # type: ignore[assignment]
    platform.node = lambda: name  # type: ignore[assignment]


def sort_ranks() -> None:
    import torch.distributed as dist

    new_group = dist.new_group

    def sorting(ranks: list[int], timeout: object) -> object:
        return new_group(sorted(ranks), timeout=timeout)

    dist.new_group = sorting


if __name__ == "__main__":
    hosts = sys.argv.pop(1)
    take_name(hosts)
    if hosts.endswith("s"):
        sort_ranks()
    sys.exit(main())
