"""torchrun with an agent for each node: on virtual hosts, or on the loopback interface of this
machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

from processes import free_port

# enter("a", "b") is the command line that runs `a b` on a node
Enter = Callable[..., Sequence[str]]


def here(*words: str) -> Sequence[str]:
    """See Enter: this machine itself is the node."""
    return words


def torchrun_agents(
    world: Callable[..., Any],
    nodes: Sequence[Enter],
    each: int,
    *words: str,
    address: str = "127.0.0.1",
    env: Mapping[str, str] = MappingProxyType({}),
    status: int | None = 0,
) -> list[Any]:
    """The ends of all agents, in node order. On each node run `each` ranks of commbench; all meet
    at `address`."""
    size = ("--nnodes", str(len(nodes)), "--nproc-per-node", str(each))
    meeting = ("--master-addr", address, "--master-port", str(free_port()))

    def agent(rank: int) -> Any:
        command = ("torchrun", *size, "--node-rank", str(rank), *meeting, "-m", "commbench", *words)
        return world(*nodes[rank](*command), env={"OMP_NUM_THREADS": "1", **env}, status=status)

    with ThreadPoolExecutor(len(nodes)) as pool:
        return list(pool.map(agent, range(len(nodes))))
