"""Peak memory of rank 0 in a real run with 256 MiB messages: growth after its imports and buffer
size, in bytes."""

from __future__ import annotations

import subprocess
import sys
import tempfile

from commbench.results.load import find_runs, load_run


def main(backend: str, benchmark: str) -> None:
    output = tempfile.mkdtemp(prefix="commbench-perf-")
    words = [
        f"backend={backend}",
        f"benchmark={benchmark}",
        "sizes=[256MiB]",
        "timing=fixed",
        "timing.repetitions=4",
    ]
    words += ["budget.memory_share=1.0", f"output={output}", "window=2"]
    subprocess.run([sys.executable, "-m", "commbench", *words], check=True, capture_output=True)
    run = load_run(find_runs(output)[0])
    shared = run["memory"]
    print(shared["peak_bytes"] - shared["imports_bytes"], shared["buffers_bytes"])


if __name__ == "__main__":
    main(*sys.argv[1:])
