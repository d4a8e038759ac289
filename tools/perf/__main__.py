"""`make perf`: the speed of commbench itself as ratios; each launch alternates all sides in the
same ranks.

`python tools/perf [SECTION ...]` runs some sections; without a name all of them except the ones
that take minutes.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from busy import claims_busy
from claim import MIB, Claim, Skipped, run
from engines import claims_gloo, claims_mpi, claims_replay
from growth import claims_growth
from matrix import claims_matrix
from reading import claims_report
from start import claims_start
from wire import claims_link, claims_loopback

HERE = Path(__file__).parent
SIMULATED = ("16x8", "64x8")
SIMULATED_S = 300.0
SIMULATED_RUN_S = 600


def claims_startup() -> list[Claim]:
    """Commands that must not import torch, over `python -c "import hydra"`, which all of them but
    --help need, in turn; the best of five, as a disturbance only ever adds time."""
    commands = {
        "--help": (["--help"], 1.5),
        "a configuration error": (["backend=none"], 4.0),
        "doctor": (["doctor"], 8.0),
        "a plan of 4096 ranks, all pairs": (
            ["plan=true", "layout=64x64", "pairs=all", "schedule=rounds"],
            10.0,
        ),
    }
    imports: list[float] = []
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(5):
        imports.append(_seconds_of("-c", "import hydra"))
        for name, (words, _) in commands.items():
            seconds[name].append(_seconds_of("-m", "commbench", *words))
    unit_s = min(imports)
    return [
        Claim(
            f"{name} / import hydra",
            min(seconds[name]) / unit_s,
            bound,
            f"{min(seconds[name]):.2f} s, import hydra {unit_s:.2f} s",
        )
        for name, (_, bound) in commands.items()
    ]


def _seconds_of(*words: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, *words], capture_output=True, check=False)
    return time.perf_counter() - begin


def claims_simulated() -> list[Claim]:
    """Processor seconds of whole runs of simulated worlds, all pairs in rounds, and how they grow:
    16 times the pairs should take 16 times as long."""
    seconds = []
    for layout in SIMULATED:
        words = [sys.executable, str(HERE / "scale.py"), "simulated", layout]
        seconds.append(float(json.loads(run(words, SIMULATED_RUN_S).stdout)["cpu_s"]))
    small, large = seconds
    detail = f"{small:.1f}, {large:.1f} s at layout {', '.join(SIMULATED)}"
    return [
        Claim(f"cpu seconds of a simulated {SIMULATED[1]}, all pairs", large, SIMULATED_S, detail),
        Claim("growth of a simulated run with its pairs", large / small / 16, 1.5, detail),
    ]


def claims_memory() -> list[Claim]:
    """Growth of a rank's peak resident memory after its imports at 256 MiB messages, over 1.2 x
    buffers + 64 MiB."""
    made = []
    for backend in ("gloo", "mpi"):
        for benchmark in ("p2p_latency", "p2p_bandwidth", "all_reduce"):
            words = [sys.executable, str(HERE / "memory.py"), backend, benchmark]
            peak, buffers = (int(word) for word in run(words).stdout.split()[-2:])
            share = peak / (1.2 * buffers + 64 * MIB)
            detail = f"{peak / MIB:.0f} MiB over the imports, buffers {buffers / MIB:.0f} MiB"
            made.append(
                Claim(f"{backend}: peak memory of {benchmark} / allowed", share, 1.0, detail)
            )
    return made


SECTIONS: dict[str, Callable[[], list[Claim]]] = {
    "startup": claims_startup,
    "start": claims_start,
    "openmpi": lambda: claims_mpi("openmpi"),
    "mpich": lambda: claims_mpi("mpich"),
    "gloo": claims_gloo,
    "replay": claims_replay,
    "busy": claims_busy,
    "memory": claims_memory,
    "loopback": claims_loopback,
    "link": claims_link,
    "scale": claims_growth,
    "simulated": claims_simulated,
    "report": claims_report,
    "matrix": claims_matrix,
}
ONLY_IF_NAMED = ("matrix",)


def measured(section: str) -> list[dict[str, object]]:
    """The section's lines of the stored table, also printed; a section that fails does not affect
    the others."""
    try:
        claims = SECTIONS[section]()
    except Skipped as skipped:
        print(f"skip {section}: {skipped}", flush=True)
        return [{"section": section, "holds": True, "skipped": str(skipped)}]
    except subprocess.CalledProcessError as error:
        reason = f"status {error.returncode} of {' '.join(map(str, error.cmd))}"
        stderr = "\n".join((error.stderr or "").splitlines()[-20:])
        print(f"MISS {section}: {reason}\n{stderr}", flush=True)
        return [{"section": section, "holds": False, "detail": reason}]
    for claim in claims:
        print(claim, flush=True)
    return [{"section": section, **vars(claim), "holds": claim.holds} for claim in claims]


def main(words: list[str]) -> int:
    unknown = [word for word in words if word not in SECTIONS]
    if unknown:
        print(
            f"unknown sections: {', '.join(unknown)}; allowed: {', '.join(SECTIONS)}",
            file=sys.stderr,
        )
        return 2
    # an exception, so that the context manager of the virtual hosts removes them
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    chosen = words or [name for name in SECTIONS if name not in ONLY_IF_NAMED]
    table = [line for section in chosen for line in measured(section)]
    target = Path("perf") / f"{time.strftime('%Y%m%dT%H%M%S')}.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(table, indent=1))
    print(f"stored in {target}")
    return 0 if all(line["holds"] for line in table) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
