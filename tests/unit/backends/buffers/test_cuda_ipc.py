"""The probe of CUDA IPC: between processes over a stand-in for the driver, and between threads over
memory files."""

from __future__ import annotations

from typing import Any

import pytest
from connected_ranks import on_ranks
from ipc_files import FileExporter

from commbench.backends.buffers.cuda_ipc import WORKED, CudaExporter, probe_cuda_ipc, probe_pattern
from commbench.core.case import World
from commbench.hardware.cuda import CudaError
from commbench.runtime.control import StoreControl

NODES = ((0, 1), (2,))


def probed(exporters: dict[int, Any]) -> list[dict[str, str]]:
    """What each rank of NODES learns; an exporter that is an error can't be made."""

    def probe(control: StoreControl) -> dict[str, str]:
        rank = control.rank

        def make(place: int) -> CudaExporter:
            assert place == (rank if rank < 2 else 0)
            if isinstance(exporters[rank], Exception):
                raise exporters[rank]
            made: CudaExporter = exporters[rank]
            return made

        return probe_cuda_ipc(make, World(rank, 3, NODES, (rank,)), control, 20.0)

    return on_ranks(3, probe)


def test_all_ranks_learn_what_every_pair_of_a_node_saw() -> None:
    results = probed({rank: FileExporter() for rank in range(3)})
    assert results == [{"0-1": WORKED, "1-0": WORKED}] * 3


def test_the_rank_that_refuses_is_named_for_both_directions() -> None:
    refused = "cuIpcOpenMemHandle_v2: CUDA_ERROR_MAP_FAILED"
    results = probed({0: FileExporter(refused=refused), 1: FileExporter(), 2: FileExporter()})
    assert results[2] == {"0-1": refused, "1-0": WORKED}
    results = probed({0: FileExporter(), 1: CudaError("no NVIDIA driver"), 2: FileExporter()})
    assert results[0] == {"0-1": "rank 1: no NVIDIA driver", "1-0": "no NVIDIA driver"}


def test_memory_that_holds_something_else_did_not_work() -> None:
    class Blank(FileExporter):
        def upload(self, address: int, data: Any) -> None:
            super().upload(address, data * 0)

    results = probed({0: FileExporter(), 1: Blank(), 2: FileExporter()})
    assert results[0]["1-0"] == WORKED and "of 4096 bytes were read wrong" in results[0]["0-1"]


def test_a_rank_alone_has_nobody_to_try() -> None:
    assert (
        probe_cuda_ipc(
            lambda _: FileExporter(), World(0, 1, ((0,),), (0,)), StoreControl(None, 0, 1), 1.0
        )
        == {}
    )


def test_the_patterns_of_ranks_differ() -> None:
    assert all((probe_pattern(rank) != probe_pattern(rank + 1)).any() for rank in range(16))


def test_a_machine_without_a_driver_says_so() -> None:
    try:
        CudaExporter(0)
    except CudaError as error:
        assert (
            "libcuda.so.1 was not found" in str(error)
            or "cuInit" in str(error)
            or "cuDeviceGetCount" in str(error)
        )
    else:
        pytest.skip("there is a GPU here")
