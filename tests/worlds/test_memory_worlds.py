"""Memory in real runs: a rank that gets none tells the others, and hundreds of cases leave nothing
behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import until

from commbench.hardware import resource_limits

MIB = 1 << 20
FIXED = (
    "timing=fixed",
    "timing.repetitions=5",
    "timing.warmup_repetitions=1",
    "timing.warmup_s=0",
    "cache=warm",
)

LIMITED_RANK = """\
import os, resource, sys
import torch.distributed
import commbench.measure.session
from commbench.__main__ import main

if os.environ["RANK"] == "1":  # this much more address space than the imports took
    now = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 29), now + (1 << 29)))
sys.exit(main(sys.argv[1:]))
"""

RSS_WRITER = """\
import os
from dataclasses import dataclass
from pathlib import Path

@dataclass
class Rss:
    file: str

    def begin(self, run, folder):
        self.out = open(self.file, "w")

    def cases(self, entries):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        for row, _, _ in entries:
            print(pages * os.sysconf("SC_PAGE_SIZE"), row.status, file=self.out, flush=True)

    def end(self, run):
        self.out.close()
"""

GREEDY = """\
import os
from dataclasses import dataclass
from pathlib import Path
from commbench.benchmarks.all_reduce import AllReduce

@dataclass(frozen=True)
class Greedy(AllReduce):
    name = "greedy"

    def fill(self, case, rank, size, name, salt):
        written = list(Path(os.environ["COMMBENCH_FOLDER"], "parts").glob("*.cases.parquet"))
        if case.message_bytes == 16 and rank == 1 and len(written) >= 2:
            held = [bytearray(b"x") * (1 << 26) for _ in range(1000)]
        return super().fill(case, rank, size, name, salt)
"""
LIMIT_BYTES = 3 << 30


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A memory control group of 3 GiB below that of this process."""
    group = resource_limits.find_group(Path("/"), "memory")
    if not group.folders:
        pytest.skip("no control group of memory here")
    folder = group.folders[0] / f"commbench-test-{os.getpid()}"
    limit = folder / ("memory.max" if group.version == 2 else "memory.limit_in_bytes")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        if not limit.exists():
            pytest.skip("the parent group does not hand on the memory controller")
        limit.write_text(str(LIMIT_BYTES))
        yield folder
    finally:
        until(lambda: (folder / "cgroup.procs").read_text() == "")
        folder.rmdir()


@pytest.mark.long
def test_a_case_keeps_its_visits_where_the_kernel_kills_a_rank_for_memory(
    started_world: Callable[..., Any], small_group: Path, tmp_path: Path
) -> None:
    (tmp_path / "greedy.py").write_text(GREEDY)
    (tmp_path / "conf" / "benchmark").mkdir(parents=True)
    (tmp_path / "conf" / "benchmark" / "greedy.yaml").write_text(
        "# @package benchmarks.greedy\n_target_: greedy.Greedy\n"
    )
    enter = f'echo $$ > {small_group}/cgroup.procs; exec commbench "$@"'
    run = started_world(
        *("sh", "-c", enter, "sh", "--config-dir", str(tmp_path / "conf"), "allow=[greedy]"),
        *("benchmark=greedy", "sizes=[8,16]", "timing=quick", "timing.visits=3"),
        env={"PYTHONPATH": str(tmp_path)},
        status=1,
    )
    cases = run.cases.set_index("message_bytes")
    assert cases.status.to_dict() == {8: "ok", 16: "ok"}, run.explain()
    assert cases.visits[16] >= 1 and cases.stop_reason[16] == "interrupted"
    assert "lost its ranks 2 times" in cases.reason[16]
    assert "memory was short" in cases.reason[16]
    assert run.stderr.count("memory was short") == 2


@pytest.mark.long
def test_a_rank_that_gets_no_memory_makes_the_case_a_skip_on_all(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    script = tmp_path / "limited.py"
    script.write_text(LIMITED_RANK)
    rendezvous = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1")
    words = (
        "backend=gloo",
        "benchmark=all_reduce",
        "sizes=[8,768MiB,16]",
        "budget.memory_share=1",
        *FIXED,
    )
    command = ("torchrun", "--nproc-per-node", "2", *rendezvous, str(script), *words)
    run = world(*command, env={"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"})
    cases = run.cases.set_index("message_bytes")
    assert cases.status.to_dict() == {8: "ok", 16: "ok", 768 * MIB: "skipped"}, run.explain()
    reason = cases.reason[768 * MIB]
    assert "out of memory on rank 1 at that moment: 768 MiB for buffer" in reason
    assert int(cases.loc[16, "order"]) > 0


@pytest.mark.long
def test_hundreds_of_cases_leave_no_memory_behind(tmp_path: Path) -> None:
    (tmp_path / "rss_writer.py").write_text(RSS_WRITER)
    (tmp_path / "writer").mkdir()
    log = tmp_path / "rss"
    (tmp_path / "writer" / "rss.yaml").write_text(
        f"# @package writers.rss\n_target_: rss_writer.Rss\nfile: {log}\n"
    )
    sizes = ",".join(str(4 * number) for number in range(1, 401))
    words = [
        "backend=simulated",
        "benchmark=all_reduce",
        f"sizes=[{sizes}]",
        *FIXED,
        f"output={tmp_path / 'out'}",
    ]
    command = [
        sys.executable,
        "-m",
        "commbench",
        "--config-dir",
        str(tmp_path),
        "allow=[rss_writer]",
        "writer=rss",
    ]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [*command, *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in log.read_text().splitlines()]
    assert len(lines) == 400 and {status for _, status in lines} == {"ok"}
    resident = [int(rss) for rss, _ in lines]
    growth = max(resident[-100:]) - max(resident[:100])
    assert growth < 6 * MIB, f"{growth / MIB:.1f} MiB in 300 cases"
