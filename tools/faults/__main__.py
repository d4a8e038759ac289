"""`make faults`: every fault in every world and phase, written to docs/faults.md. Exits with 1 if
something is wrong.

`python tools/faults WORD ...` plays the combinations that contain all these words, and writes
nothing. The other section: `python tools/faults load [SECONDS]` (many ranks, many cases, a soak,
many runs at once).
"""

from __future__ import annotations

import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from combination import HOSTS, Combination, table
from document import write_faults, write_load
from load import SOAK_S, burdens
from scene import play
from sizes import in_order
from stack import lacking
from verdict import Verdict, judge
from virtual_hosts import missing

AT_ONCE = 2  # most of their time is spent waiting


def why_not(combination: Combination) -> str | None:
    """Why this machine cannot play it; None if it can."""
    reason = lacking(combination.world)
    return missing() if reason is None and combination.world in HOSTS else reason


def played(combination: Combination) -> Verdict:
    with tempfile.TemporaryDirectory(
        prefix="commbench-faults-", ignore_cleanup_errors=True
    ) as folder:
        scene = play(combination, Path(folder).resolve())
        verdict = judge(scene)
    messages = [line for _, line in scene.lines if "commbench: " in line] if verdict.wrong else []
    print("\n     ".join([str(verdict), *verdict.wrong, *messages]), flush=True)
    return verdict


def faults(words: list[str]) -> int:
    begin = time.monotonic()
    chosen = [entry for entry in table() if all(word in str(entry) for word in words)]
    if not chosen:
        print(
            f"no combination contains {' '.join(words)}; `python tools/faults load` is the other"
            " section",
            file=sys.stderr,
        )
        return 2
    reasons = {combination: why_not(combination) for combination in chosen}
    in_order(chosen[0])  # Hydra opens a configuration in one thread at a time
    with ThreadPoolExecutor(AT_ONCE) as pool:
        verdicts = list(
            pool.map(
                played, [combination for combination in chosen if reasons[combination] is None]
            )
        )
    seconds = time.monotonic() - begin
    print(
        f"{len(verdicts)} combinations in {seconds:.0f} s, "
        f"{sum(verdict.lost for verdict in verdicts)} finished cases lost"
    )
    if not words:
        skipped = [f"{entry} ({reason})" for entry, reason in reasons.items() if reason is not None]
        write_faults(verdicts, skipped, seconds)
    return 1 if any(verdict.wrong for verdict in verdicts) else 0


def load(soak_s: float) -> int:
    seen = []
    for burden in burdens(soak_s):
        print(burden, flush=True)
        seen.append(burden)
    write_load(seen)
    return 1 if any(burden.wrong for burden in seen) else 0


def main(words: list[str]) -> int:
    if words[:1] == ["load"]:
        return load(float(words[1]) if words[1:] else SOAK_S)
    return faults(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
