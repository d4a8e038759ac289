"""`make virtual-hosts`: hosts on this machine to try commands for clusters; `make
virtual-hosts-remove` takes them away.

`python tools/hosts make FOLDER NODES [MBIT [HOST=MBIT ...]]` makes node0, node1 ..., all with a
link of MBIT Mb/s (default: no bound), and the named ones with another. `python tools/hosts remove
FOLDER` needs no more.
"""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import CalledProcessError

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from virtual_hosts import MADE, Link, make_hosts, missing, remove_hosts


def make(folder: Path, nodes: int, link: Link, others: dict[int, Link]) -> str:
    """Returns what to do with them. Raises SystemExit where this machine can't make them."""
    refusal = missing(link)
    if refusal is not None:
        raise SystemExit(refusal)
    if (folder / MADE).exists():
        raise SystemExit(f"{folder} has virtual hosts already: make virtual-hosts-remove")
    try:
        made = make_hosts(nodes, folder.resolve(), link, others)
    except CalledProcessError as error:
        raise SystemExit(f"{error}; if they are left from earlier: ip netns delete NAME") from None
    names = ",".join(host.name for host in made.hosts)
    return f"""{names} in {made.network}; a command on the first: {folder}/enter node0 COMMAND
launcher=mpirun launcher.hosts=[{names}] launcher.agent={folder}/agent interface={made.network}"""


def main(command: str, place: str, nodes: str = "8", mbit: str = "", *slow: str) -> None:
    folder = Path(place)
    if command == "remove":
        if not (folder / MADE).exists():
            raise SystemExit(f"{folder} has no virtual hosts")
        remove_hosts(folder)
        return
    links = dict(word.removeprefix("node").split("=") for word in slow)
    others = {int(host): Link(float(rate)) for host, rate in links.items()}
    print(make(folder, int(nodes), Link(float(mbit) if mbit else None), others))


if __name__ == "__main__":
    main(*sys.argv[1:])
