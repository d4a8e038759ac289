"""What a mistyped word, or one of another tool, may mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

MOST = 3
SIMILAR = 0.7  # of difflib: half a word is not enough
# words of OSU, nccl-tests, MPI, NCCL, torch, iperf3 and netperf, and plain ones -> ours
OTHER_WORDS: Mapping[str, str] = {
    "bcast": "broadcast",
    "latency": "p2p_latency",
    "pingpong": "p2p_latency",
    "bandwidth": "p2p_bandwidth",
    "bw": "p2p_bandwidth",
    "bibw": "p2p_bibandwidth",
    "mbwmr": "p2p_multi_pair",
    "sendrecv": "exchange",
    "iperf3": "stream",
    "tcpstream": "stream",
    "ompi": "mpi",
    "openmpi": "mpi",
    "mpich": "mpi",
    "fast": "quick",
    "short": "quick",
    "accurate": "rigorous",
    "precise": "rigorous",
    "exact": "rigorous",
    "slow": "rigorous",
    "long": "soak",
}


def nearest(word: str, allowed: Iterable[str]) -> list[str]:
    """At most three of the allowed words, the nearest first: the same but for case and signs,
    another tool's word for it, or a similar one."""
    names = list(allowed)
    plain = {_plain(name): name for name in reversed(names)}
    wanted = _plain(word)
    meant = OTHER_WORDS.get(wanted, "")
    if exact := [name for name in (plain.get(wanted), meant) if name in names]:
        return exact
    longer = [name for key, name in plain.items() if len(wanted) > 2 and wanted in key]
    close = [plain[key] for key in get_close_matches(wanted, plain, n=MOST, cutoff=SIMILAR)]
    return list(dict.fromkeys([*sorted(longer), *close]))[:MOST]


def did_you_mean(word: str, allowed: Iterable[str], texts: Mapping[str, str] | None = None) -> str:
    """`did you mean all_reduce? `, or empty. `texts`: what stands for an allowed word."""
    near = [(texts or {}).get(name, name) for name in nearest(word, allowed)]
    return f"did you mean {' or '.join(near)}? " if near else ""


def _plain(word: str) -> str:
    return re.sub(r"[^a-z0-9]", "", word.lower())
