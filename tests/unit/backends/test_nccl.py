"""NCCL's backend without NCCL: what it declares, and its lowering in worlds whose bytes gloo
moves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from places import HOST_GPU
from refusals import program_of, refusal
from sample_cases import GPU_CASE
from shown_gpus import ask, hgx, shown

from commbench.backends import nccl_library
from commbench.backends.buffers.memory import HostBuffer
from commbench.backends.nccl_library import (
    LoadedNccl,
    NcclLog,
    version_text,
)
from commbench.backends.torch.nccl import (
    ERROR_HANDLING,
    NON_BLOCKING_MODE,
    Nccl,
    NcclCommunicator,
    NcclLowering,
)
from commbench.core.errors import Unsupported
from commbench.core.payload import DTYPES
from commbench.core.program import (
    AllReduce,
    Barrier,
    BufferSpec,
    In,
    Operation,
    Program,
    Recv,
    Send,
    Start,
    Step,
    View,
    WaitAll,
)
from commbench.core.protocols import Backend
from commbench.core.variables import Case
from commbench.engines.lowered import Lowered, in_groups
from commbench.hardware import machine_facts
from commbench.hardware.torch_install import place_of
from commbench.runtime.exit_protocol import FOLDER

PLUGIN = ["--config-dir", str(HOST_GPU / "conf"), "allow=[host_gpu]"]
QUICK = ["timing=fixed", "timing.repetitions=5", "timing.warmup_repetitions=1", "timing.warmup_s=0"]
MODES = "timer=[host_sync,device_event,graph,throughput]"
ALWAYS = {
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "false",
    "TORCH_NCCL_USE_COMM_NONBLOCKING": "0",
}
FOREIGN = (
    "NCCL_DEBUG",
    "NCCL_DEBUG_FILE",
    "NCCL_DEBUG_SUBSYS",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    NON_BLOCKING_MODE,
)
ASKED_FOR = {"COMMBENCH_NCCL_LOG": "1", "NCCL_DEBUG": "INFO"}  # a log
SEND = View("send")
RECV = View("recv")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A machine with four GPUs."""
    return shown(tmp_path, hgx(4), HOST_GPU)


# ---------------------------------------------------------------- what is missing


def missing(
    folder: Path,
    machine: str | None,
    *cuda: str,
    visible: Sequence[str | None] = (None,),
    amd: Path = Path("/dev/kfd"),
) -> list[str | None]:
    """With each torch whose version.py says this of CUDA, and each CUDA_VISIBLE_DEVICES; nobody
    imports torch. `amd` is the file of AMD's driver."""
    planted = folder / "planted" / "torch"
    planted.mkdir(parents=True)
    (planted / "__init__.py").write_text("raise SystemExit('torch was imported')")
    imports = f"""
from pathlib import Path
from commbench.backends.torch.nccl import Nccl
from commbench.hardware import amd
amd.DRIVER = Path({str(amd)!r})

def missing(cuda, visible):
    text = f"from typing import Optional\\n{{cuda}}\\ngit_version = 'None'\\n"
    Path({str(planted)!r}, "version.py").write_text(text)
    os.environ.update({{}} if visible is None else {{"CUDA_VISIBLE_DEVICES": visible}})
    return Nccl().missing("cuda")
"""
    code = f"[missing(cuda, visible) for cuda in {cuda!r} for visible in {tuple(visible)!r}]"
    reasons: list[str | None] = ask(folder, machine, code, imports, PYTHONPATH=str(planted.parent))
    return reasons


BUILT = "cuda: Optional[str] = '13.0'"


def test_nothing_is_missing_with_a_driver_and_a_cuda_build(tmp_path: Path) -> None:
    builds = (BUILT, "cuda = '12.8'", 'cuda = "12.8"', "cuda: Optional[str] = None", "cuda = None")
    *fine, typed, plain = missing(tmp_path, hgx(1), *builds)
    assert fine == [None] * 3 and typed == plain and "\n" not in str(plain)
    assert str(plain).startswith("torch is built without CUDA; install")


def test_hidden_gpus_are_the_reason(tmp_path: Path) -> None:
    hidden = ("", "-1", " ")
    visible = ("0", "0,-1")
    reasons = missing(tmp_path, hgx(1), BUILT, visible=(*hidden, *visible))
    for setting, reason in zip(hidden, reasons, strict=False):
        assert f"CUDA_VISIBLE_DEVICES={setting!r} hides every GPU; unset it" in str(reason)
    assert reasons[3:] == [None, None]


def test_a_missing_driver_is_the_first_reason(tmp_path: Path) -> None:
    (reason,) = missing(tmp_path, None, "cuda = None", visible=("-1",))
    assert str(reason).startswith("no NVIDIA driver: libcuda.so.1")
    assert "backend=gloo" in str(reason) and "\n" not in str(reason)


def test_a_torch_for_a_newer_driver_is_the_reason(tmp_path: Path) -> None:
    """Minor versions of one major version run on any of its drivers."""
    newer, same, unknown = missing(
        tmp_path, hgx(1, "cuda 12080"), BUILT, "cuda = '12.9'", "cuda = 'weekly'"
    )
    assert str(newer).startswith(
        "torch is built for CUDA 13.0, and this driver runs CUDA 12.8 at most; install driver 580"
    )
    assert "\n" not in str(newer) and same is None and unknown is None


# ---------------------------------------------------------------- what it declares


def case(benchmark: str = "all_reduce", **more: Any) -> Case:
    return replace(GPU_CASE, benchmark=benchmark, **more)


@pytest.mark.parametrize(
    ("asked_for", "reason"),
    [
        (case(reduction="sum"), None),
        (case(reduction="avg", dtype="bfloat16"), None),
        (case(reduction="avg", dtype="int8"), "no reduction avg of int8"),
        (case(reduction="xor"), "no reduction xor"),
        (case(reduction="sum", in_place=False), "in place only"),
        (case("all_to_all"), "has not sent yet"),
        (case("all_to_all", in_place=False), None),
        (case("p2p_latency", in_place=None, pair="0-1 2-2"), None),
        (
            case("p2p_latency", in_place=None, pair="0-1", staging="pinned"),
            "staging=pinned has no effect",
        ),
    ],
)
def test_cases_that_nccl_cannot_measure_are_skipped_with_a_reason(
    asked_for: Case, reason: str | None
) -> None:
    answer = refusal(Nccl(), asked_for, 2)
    assert (answer is None) if reason is None else (reason in str(answer))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["sum", "prod", "min", "max"])
def test_every_type_can_be_reduced(dtype: str, reduction: str) -> None:
    assert refusal(Nccl(), case(reduction=reduction, dtype=dtype), 2) is None


FLOAT8 = case(reduction="sum", dtype="float8_e5m2")


@pytest.mark.parametrize(
    ("torch", "nccl", "asked_for", "reason"),
    [
        ("2.7.1+cu126", None, FLOAT8, "needs torch 2.8 or newer; this is 2.7.1+cu126"),
        ("2.8.0", 22304, FLOAT8, "needs NCCL 2.24 or newer; this is 2.23.4"),
        ("2.8.0", 22400, FLOAT8, None),
        ("2.14.0", None, FLOAT8, None),
        ("2.7.1", 22304, case(benchmark="all_gather", reduction=None, dtype="float8_e5m2"), None),
        ("2.7.1", 22304, case(reduction="sum", dtype="bfloat16"), None),
    ],
)
def test_float8_needs_a_torch_and_an_nccl_that_reduce_it(
    monkeypatch: pytest.MonkeyPatch,
    torch: str,
    nccl: int | None,
    asked_for: Case,
    reason: str | None,
) -> None:
    """torch 2.7 moves it as bytes, in its wheel's NCCLUtils.hpp; 2.8 defines NCCL_SUPPORTS_FP8."""
    monkeypatch.setattr(machine_facts, "installed_version", lambda names: torch)
    loaded = None if nccl is None else LoadedNccl(nccl, "/lib/libnccl.so.2")
    monkeypatch.setattr(LoadedNccl, "find", lambda: loaded)
    answer = refusal(Nccl(), asked_for, 2)
    assert answer is None if reason is None else reason in str(answer)
    if reason is not None:
        assert str(answer).startswith("a reduction of float8_e5m2 needs")


@pytest.mark.parametrize("capability", [(8, 0), (8, 9)])
def test_a_gpu_that_can_not_reduce_float8_is_named_with_what_is_needed(
    capability: tuple[int, int],
) -> None:
    communicator = NcclCommunicator.__new__(NcclCommunicator)
    gpu: Any = SimpleNamespace(name="NVIDIA L4", capability=capability)
    communicator.gpu = gpu
    communicator._memory = None
    needed = r"compute capability 9\.0 or newer; this NVIDIA L4 has 8\.\d$"
    with pytest.raises(Unsupported, match=needed):
        communicator.runner(program_of(FLOAT8, 2), {}, FLOAT8.mode)


def test_float8_is_exact_in_a_world(world: Callable[..., Any], env: dict[str, str]) -> None:
    """Bytes are moved by gloo, and what NCCL would add is added in float32."""
    run = world(
        "commbench", *PLUGIN, "backend=host_nccl", "layout=[1x2,1x3]", "sizes=[120kB]", *QUICK,
        "dtype=[float8_e4m3fn,float8_e5m2]", "reduction=[sum,avg]",
        "benchmark=[all_reduce,reduce,reduce_scatter,all_gather,p2p_latency]",
        env=env,
    )  # fmt: skip
    measured = run.cases[run.cases.status == "ok"]
    assert set(measured.benchmark) == set(run.cases.benchmark)
    assert (measured.wrong_elements == 0).all() and measured.reduction.notna().sum() == 18
    rounded = run.cases[(run.cases.reduction == "avg") & (run.cases.layout == "1x3")]
    assert set(rounded.status) == {"skipped"}
    assert rounded.reason.str.contains("too few bits to tell a wrong average of 3 ranks").all()


def test_a_gpu_is_one_ranks_and_nothing_is_staged() -> None:
    assert isinstance(Nccl(), Backend)
    assert Nccl().sharing_refusal({}) == "backend=nccl needs a GPU for each rank"
    assert Nccl().staging(program_of(GPU_CASE, 2)) == "none"


@pytest.mark.parametrize(
    ("number", "refused"), [(22809, True), (23000, False), (23007, False), (None, False)]
)
def test_nccl_2_30_takes_several_ranks_on_a_gpu_where_the_user_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, number: int | None, refused: bool
) -> None:
    """An NCCL that is not loaded yet says so itself, later."""
    loaded = None if number is None else LoadedNccl(number, "/lib/libnccl.so.2")
    monkeypatch.setattr(LoadedNccl, "find", lambda: loaded)
    asked = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    assert (Nccl().sharing_refusal(asked) is not None) == refused
    assert Nccl().sharing_refusal({"NCCL_MULTI_RANK_GPU_ENABLE": "0"}) is not None


@pytest.mark.parametrize(
    ("number", "text"), [(22703, "2.27.3"), (23203, "2.32.3"), (2804, "2.8.4"), (21005, "2.10.5")]
)
def test_versions_are_as_nccl_writes_them(number: int, text: str) -> None:
    assert version_text(number) == text


@pytest.mark.parametrize("name", ["libnccl.so.2.30.7", "librccl.so.1"])
def test_the_version_is_that_of_the_library_that_is_loaded(tmp_path: Path, name: str) -> None:
    """Not of the one that torch was built with."""
    library = tmp_path / name
    source = "int ncclGetVersion(int *version) { *version = 23007; return 0; }"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", library, "-x", "c", "-"],
        input=source, text=True, check=True,
    )  # fmt: skip
    found = "from commbench.backends.nccl_library import LoadedNccl; print(LoadedNccl.find())"
    opened = f"import ctypes; ctypes.CDLL({str(library)!r});"
    for code, env in ((opened + found, {}), (found, {"LD_PRELOAD": str(library)})):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **env},
        )
        assert done.stdout == f"LoadedNccl(number=23007, path='{library}')\n"


def test_the_place_of_the_loaded_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl_library, "torch_folder", lambda: tmp_path / "torch")
    places = {"torch/lib": "torch's folder", "nvidia/nccl/lib": "the packages beside torch"}
    for folder, place in places.items():
        loaded = LoadedNccl(22809, str(tmp_path / folder / "libnccl.so.2"))
        assert loaded.origin == f"loaded from {place}"
    assert LoadedNccl(22809, "/opt/fast/libnccl.so.2").origin == "loaded from /opt/fast"


@pytest.mark.parametrize(
    ("hip", "loaded", "library", "end"),
    [
        (
            None,
            LoadedNccl(22903, "/opt/libnccl.so.2"),
            "nccl 2.29.3",
            "NCCL 2.29.3 loaded from /opt",
        ),
        (
            "6.4",
            LoadedNccl(22203, "/opt/librccl.so.1"),
            "rccl 2.22.3",
            "RCCL 2.22.3 loaded from /opt",
        ),
        ("6.4", None, "rccl 2.21.5", "RCCL 2.21.5 in torch"),
    ],
)
def test_the_facts_name_the_library_its_version_and_both_places(
    monkeypatch: pytest.MonkeyPatch,
    hip: str | None,
    loaded: LoadedNccl | None,
    library: str,
    end: str,
) -> None:
    """On a communicator that is none: torch knows RCCL as nccl."""
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 21, 5))
    monkeypatch.setattr(LoadedNccl, "find", lambda: loaded)
    communicator: Any = NcclCommunicator.__new__(NcclCommunicator)
    communicator._name = "nccl"
    communicator.ranks = (0, 1)
    communicator.gpu = SimpleNamespace(name="A")
    communicator._log = NcclLog({})
    facts = communicator.facts()
    assert facts["library"] == f"torch {torch.__version__} {library}"
    folder = Path(torch.__file__).parent
    assert facts["loaded"] == f"torch {torch.__version__} of {place_of(folder)}, {end}"


def test_a_torch_for_rocm_needs_amds_driver_and_not_nvidias(tmp_path: Path) -> None:
    """A stand-in for torch's version.py; no AMD GPU was at hand."""
    rocm = "cuda, hip = None, '6.4.43484'"
    (tmp_path / "kfd").touch()
    absent, present = (
        missing(tmp_path / name, None, rocm, visible=(None, "0", "-1"), amd=driver)
        for name, driver in (("absent", tmp_path / "none"), ("present", tmp_path / "kfd"))
    )
    assert str(absent[0]).startswith(f"no AMD driver: {tmp_path / 'none'} was not found; use a")
    assert "an AMD GPU, or take backend=gloo" in str(absent[0])
    assert present[:2] == [None, None]
    assert "CUDA_VISIBLE_DEVICES='-1' hides every GPU" in str(present[2])


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_the_environment_asks_for_a_log_and_leaves_lost_ranks_to_us(
    clean: pytest.MonkeyPatch,
) -> None:
    exports = Nccl().environment("auto", None)
    assert exports.pop("NCCL_DEBUG_SUBSYS").split(",")[0] == "INIT"
    assert exports == {
        "NCCL_DEBUG": "INFO",
        "COMMBENCH_NCCL_LOG": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        **ALWAYS,
    }


@pytest.mark.parametrize(
    ("name", "value"), [("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_FILE", "mine.%p")]
)
def test_a_users_own_log_stays(clean: pytest.MonkeyPatch, name: str, value: str) -> None:
    clean.setenv(name, value)
    clean.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    assert Nccl().environment("auto", None) == {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **ALWAYS}


def test_nccl_connects_in_its_blocking_mode_unless_the_user_wants_the_other(
    clean: pytest.MonkeyPatch,
) -> None:
    """torch 2.6 to 2.7.0 take the non-blocking one, which hangs now and then."""
    assert Nccl().environment("auto", None)[NON_BLOCKING_MODE] == "0"
    clean.setenv(NON_BLOCKING_MODE, "1")
    assert Nccl().environment("auto", None)[NON_BLOCKING_MODE] == "1"


@pytest.mark.parametrize(
    ("environ", "value"),
    [
        ({"TORCHELASTIC_RUN_ID": "7", ERROR_HANDLING: "1"}, "0"),  # torchrun's own default
        ({"TORCHELASTIC_RUN_ID": "7", ERROR_HANDLING: "3"}, "3"),
        # the parent saw the user's wish
        ({"TORCHELASTIC_RUN_ID": "7", ERROR_HANDLING: "1", FOLDER: "results/x"}, "1"),
        ({ERROR_HANDLING: "1"}, "1"),
        ({"TORCHELASTIC_RUN_ID": "7"}, "0"),
    ],
)
def test_what_torchrun_exports_is_not_the_users_wish(
    clean: pytest.MonkeyPatch, environ: dict[str, str], value: str
) -> None:
    for name in ("TORCHELASTIC_RUN_ID", FOLDER):
        clean.delenv(name, raising=False)
    for name, text in environ.items():
        clean.setenv(name, text)
    assert Nccl().environment("auto", None)[ERROR_HANDLING] == value


def test_interface_and_cuda_ipc_in_nccls_words(clean: pytest.MonkeyPatch) -> None:
    clean.setenv("NCCL_DEBUG", "WARN")
    exports = Nccl().environment("off", "lo")
    assert exports["NCCL_SOCKET_IFNAME"] == "=lo" and exports["NCCL_P2P_DISABLE"] == "1"
    assert Nccl().environment("on", None)["NCCL_P2P_DISABLE"] == "0"


# ---------------------------------------------------------------- its log


def test_a_log_grows_in_memory_and_has_no_name() -> None:
    environ = dict(ASKED_FOR)
    log = NcclLog(environ)
    assert log.text() == ""
    with Path(environ["NCCL_DEBUG_FILE"]).open("wb", buffering=0) as nccl:
        nccl.write(b"host:1:1 [0] NCCL INFO via P2P/IPC \xff\n")
        assert "via P2P/IPC" in str(log.text())
        nccl.write(b"NCCL INFO comm 0x1 - Init COMPLETE\n")
    assert str(log.text()).endswith("COMPLETE\n")
    assert "(deleted)" in str(Path(environ["NCCL_DEBUG_FILE"]).readlink())


def test_a_log_that_is_longer_than_what_is_read_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commbench.backends.nccl_library.MAX_LOG_BYTES", 40)
    environ = dict(ASKED_FOR)
    log = NcclLog(environ)
    with Path(environ["NCCL_DEBUG_FILE"]).open("wb", buffering=0) as nccl:
        nccl.write(b"x" * 40)
        assert "nccl_log_cut" not in log.facts()
        nccl.write(b"y")
    assert log.facts()["nccl_log_cut"] and log.facts()["nccl_log"] == "x" * 40


def test_without_a_file_the_log_of_nccl_is_not_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("os.memfd_create", refuse)
    environ = dict(ASKED_FOR)
    assert NcclLog(environ).text() is None
    assert "NCCL_DEBUG" not in environ and "NCCL_DEBUG_FILE" not in environ


@pytest.mark.parametrize(
    "environ", [{}, {"NCCL_DEBUG": "INFO"}, {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "mine"}]
)
def test_what_the_user_logs_is_not_ours(environ: dict[str, str]) -> None:
    before = dict(environ)
    assert NcclLog(environ).text() is None and environ == before


# ---------------------------------------------------------------- batches


@pytest.fixture
def group() -> Iterator[Any]:
    """A real group of this process alone."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def lowering_of(group: Any, pool: int = 1) -> NcclLowering:
    buffers = {
        name: HostBuffer(BufferSpec(name, 4, "float32", 3), pool) for name in ("send", "recv")
    }
    return NcclLowering(group, buffers, "cpu")


def steps_of(group: Any, *steps: Step, pool: int = 1) -> list[Any]:
    lower = lowering_of(group, pool).call
    return list(Lowered.of(Program(steps=steps), "none", lower).steps)


def operations(call: Any, copy: int = 0) -> list[tuple[str, int]]:
    (rotating,) = call.args
    return [(message.op.__name__, message.tensor.data_ptr()) for message in rotating.values[copy]]


def test_a_window_is_one_call_with_its_messages_in_order(group: Any) -> None:
    window = range(3)
    receives = (Start(Recv(View("recv", slot), 0), slot) for slot in window)
    sends = (Start(Send(View("send", slot), 0), 3 + slot) for slot in window)
    (call,) = steps_of(group, *receives, *sends, WaitAll(tuple(range(6))), pool=2)
    for copy in range(2):
        messages = operations(call, copy)
        assert [name for name, _ in messages] == ["irecv"] * 3 + ["isend"] * 3
        assert len({address for _, address in messages}) == 6
        addresses = [address for _, address in messages[:3]]
        assert addresses == sorted(addresses)
    assert operations(call, 0)[0][1] != operations(call, 1)[0][1], (
        "each copy of the pool has its own tensors"
    )


def test_a_blocking_send_to_oneself_joins_the_receive(group: Any) -> None:
    (call,) = steps_of(group, Start(Recv(RECV, 0), 0), Send(SEND, 0), WaitAll((0,)))
    assert [name for name, _ in operations(call)] == ["irecv", "isend"]


def test_two_windows_are_two_batches_and_nothing_is_no_call(group: Any) -> None:
    window = (Start(Recv(RECV, 0), 0), Start(Send(SEND, 0), 1), WaitAll((0, 1)))
    assert len(steps_of(group, *window, *window)) == 2
    assert steps_of(group, WaitAll(())) == []


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (
            (Start(Send(SEND, 0), 0), Start(Recv(RECV, 0), 1), WaitAll((0,)), WaitAll((1,))),
            "completes all started messages",
        ),
        ((WaitAll((7,)),), "completes all started messages"),
        ((Start(Recv(RECV, 0), 0), AllReduce(SEND, SEND, "sum"), WaitAll((0,))), "needs a WaitAll"),
        ((Start(Recv(RECV, 0), 0), Barrier(), WaitAll((0,))), "needs a WaitAll"),
        ((Start(Recv(RECV, 0), 0),), "without a WaitAll"),
        (
            (Start(Recv(RECV, 0), 0), Send(RECV, 0), WaitAll((0,))),
            "sends from recv in the batch that receives into it",
        ),
        ((AllReduce(SEND, RECV, "sum"),), "in place only"),
    ],
)
def test_what_has_no_batch_is_refused(group: Any, steps: tuple[Step, ...], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        steps_of(group, *steps)


def of_group(group: Any, *steps: Step) -> list[Any]:
    """As `steps_of`; the steps of the group of this rank go to its own lowering."""
    inner: Any = SimpleNamespace(group=group, barrier_tensor="cpu")
    mode: Any = SimpleNamespace(groups={(0,): inner}, engine="python")
    lower = in_groups(lowering_of(group), inner, mode)
    return list(Lowered.of(Program(steps=steps), "none", lower).steps)


WINDOW = (Start(Recv(RECV, 0), 0), Start(Send(SEND, 0), 1))


def test_a_group_goes_on_after_the_wait_of_all_ranks(group: Any) -> None:
    inside = In((0,), AllReduce(SEND, SEND, "sum"))
    sent = In((0,), Send(SEND, 0))
    assert len(of_group(group, *WINDOW, WaitAll((0, 1)), inside, sent)) == 3


@pytest.mark.parametrize("step", [AllReduce(SEND, SEND, "sum"), Send(SEND, 0)])
def test_a_group_is_refused_between_a_start_and_its_wait(group: Any, step: Operation) -> None:
    with pytest.raises(Unsupported, match="needs a WaitAll"):
        of_group(group, *WINDOW, In((0,), step), WaitAll((0, 1)))


@pytest.mark.parametrize("posted", [0, 1])
def test_a_batch_in_which_an_operation_fails_is_closed(
    monkeypatch: pytest.MonkeyPatch, posted: int
) -> None:
    """With torch's own batches: left open, they would take in all later calls of the group."""
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    class Group:
        events: ClassVar[list[str]] = []

        def rank(self) -> int:
            return 0

        size = rank

        def _start_coalescing(self, device: Any) -> None:
            self.events.append("start")

        def _end_coalescing(self, device: Any) -> None:
            self.events.append("end")
            raise RuntimeError("what was posted fails, too")

    def batch(operations: list[Any]) -> None:
        with distributed_c10d._coalescing_manager(
            group, operations[0].tensor.device, async_ops=True
        ):
            for _ in range(posted):
                Group.events.append("posted")
            raise ValueError("invalid usage")

    group: Any = Group()
    Group.events.clear()
    monkeypatch.setattr(dist, "batch_isend_irecv", batch)
    lowering = NcclLowering(group, {}, None)
    with pytest.raises(ValueError, match="invalid usage"):
        lowering._exchange([SimpleNamespace(tensor=torch.zeros(1))])
    assert Group.events == ["start", *["posted"] * posted, "end"]
    assert group not in distributed_c10d._world.pg_coalesce_state


# ---------------------------------------------------------------- worlds


@pytest.mark.long  # on a GPU: docs/gpu.md
def test_every_operation_is_exact_on_all_ranks_and_on_some(
    world: Callable[..., Any], env: dict[str, str]
) -> None:
    """On CPU tensors: the buffers, views, batches and groups of NCCL's worlds, not NCCL."""
    run = world(
        "commbench",
        *PLUGIN,
        *QUICK,
        "backend=host_nccl",
        "layout=[1x2,1x3]",
        "benchmark=all",
        "sizes=[12kB]",
        "window=3",
        "root=1",
        "cache=warm",
        env=env,
    )
    cases = run.cases[~run.cases.benchmark.str.startswith(("copy_", "stream"))]
    assert set(cases.status) == {"ok"}, run.cases[["benchmark", "reason"]]
    assert (cases.wrong_elements == 0).all() and (cases.median_s > 0).all()
    assert cases.groupby("layout").benchmark.nunique().to_dict() == {"1x2": 19, "1x3": 19}
    facts = run.record["backend"]
    assert facts["gpu"] == "host"
    assert facts["log_file"].startswith("/proc/self/fd/"), "the log is gone with its process"


@pytest.mark.long
def test_every_clock_runs_batches_and_their_rotation(
    world: Callable[..., Any], env: dict[str, str]
) -> None:
    run = world(
        "commbench",
        *PLUGIN,
        *QUICK,
        "backend=host_nccl",
        "layout=1x2",
        "benchmark=[p2p_bandwidth,p2p_latency]",
        "sizes=[1MB]",
        "window=2",
        MODES,
        "cache=rotate",
        env=env,
    )
    assert set(run.cases.status) == {"ok"} and (run.cases.wrong_elements == 0).all()
    assert len(run.cases) == 8


RECORDED = """
import os
from dataclasses import dataclass
import host_gpu

class Recorded(host_gpu.HostNcclCommunicator):
    def runner(self, program, buffers, mode):
        with open(os.environ["USED_GROUPS"], "a") as file:
            print(mode.timer, self.size, self.group.group_name, file=file)
        return super().runner(program, buffers, mode)

host_gpu.HostNcclCommunicator = Recorded

@dataclass(frozen=True)
class RecordedNccl(host_gpu.HostNccl):
    pass
"""


def test_graphs_are_captured_in_groups_of_their_own(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    """Also where the first clock is graph, which the reference case then has."""
    (tmp_path / "recorded_groups.py").write_text(RECORDED)
    used = tmp_path / "groups.txt"
    run = world(
        "commbench",
        *PLUGIN[:2],
        "allow=[host_gpu,recorded_groups]",
        "backend=host_nccl",
        "backend._target_=recorded_groups.RecordedNccl",
        "timing=quick",
        "budget.case_s=0.01",
        "layout=[1x1,1x2]",
        "benchmark=all_reduce",
        "sizes=[8]",
        "timer=[graph,host_sync]",
        env={**shown(tmp_path, hgx(4), tmp_path, HOST_GPU), "USED_GROUPS": str(used)},
    )
    assert set(run.cases.status) == {"ok"}, run.cases.reason
    groups: dict[tuple[str, str], set[str]] = {}
    for line in used.read_text().splitlines():
        mode, size, name = line.split()
        groups.setdefault((mode, size), set()).add(name)
    assert groups.keys() == {(mode, size) for mode in ("graph", "host_sync") for size in "12"}
    assert all(len(names) == 1 for names in groups.values()), "the same on all ranks"
    assert len(set.union(*groups.values())) == 4


FAILING = """
from dataclasses import dataclass
import host_gpu
import torch.distributed as dist
from commbench.core.errors import Unsupported

class Failing(host_gpu.HostGpu):
    def capture(self, enqueue):
        if dist.get_rank() == 1:
            raise Unsupported("CUDA can't capture these calls in a graph: rank 1")
        return super().capture(enqueue)

host_gpu.HostGpu = Failing

@dataclass(frozen=True)
class FailingNccl(host_gpu.HostNccl):
    pass
"""


def test_a_capture_that_fails_on_one_rank_is_a_skip_on_all(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    """The others must not wait for it in the first replay."""
    (tmp_path / "failing_captures.py").write_text(FAILING)
    run = world(
        "commbench",
        *PLUGIN[:2],
        "allow=[host_gpu,failing_captures]",
        *QUICK,
        "backend=host_nccl",
        "backend._target_=failing_captures.FailingNccl",
        "layout=1x2",
        "benchmark=all_reduce",
        "sizes=[8,64]",
        "timer=[graph,host_sync]",
        env=shown(tmp_path, hgx(4), tmp_path, HOST_GPU),
    )
    statuses = run.cases.groupby("timer").status.agg(list).to_dict()
    assert statuses == {"graph": ["skipped"] * 2, "host_sync": ["ok"] * 2}
    reasons = run.cases[run.cases.timer == "graph"].reason
    assert all(reason.endswith("in a graph: rank 1") for reason in reasons)
    (line,) = [line for line in run.stderr.splitlines() if line.startswith("commbench:")]
    assert "with timer=graph: CUDA can't capture" in line


@pytest.mark.parametrize(
    ("visible", "reason"),
    [
        (None, "layout=1x5 wants 5 on this machine, it shows 4; use layout=1x4"),
        ("0,2", "it shows 2 with CUDA_VISIBLE_DEVICES='0,2'; use layout=1x2"),
        ("7", "it shows 0 with CUDA_VISIBLE_DEVICES='7'; make some visible"),
    ],
)
def test_a_rank_without_a_gpu_of_its_own_is_refused_before_it_starts(
    world: Callable[..., Any], env: dict[str, str], visible: str | None, reason: str
) -> None:
    env = env if visible is None else {**env, "CUDA_VISIBLE_DEVICES": visible}
    run = world("commbench", *PLUGIN, "backend=host_nccl", "layout=[1x2,1x5]", env=env, status=2)
    (line,) = run.stderr.strip().splitlines()
    assert line.startswith(
        "commbench: backend=host_nccl needs a GPU for each rank: "
    ) and line.endswith(reason)
