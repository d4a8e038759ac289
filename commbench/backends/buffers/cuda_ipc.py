"""CUDA IPC through the driver API: memory that other processes of this node can open, and a
probe.

Torch's allocator hands out parts of blocks, and only a whole allocation has a handle, so memory is
allocated here. Freeing it while a peer has it open is undefined (cuIpcOpenMemHandle).
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_uint64, c_void_p

import numpy as np
from numpy.typing import NDArray

from commbench.core.case import World
from commbench.core.protocols import Control
from commbench.core.units import about_bytes
from commbench.hardware.cuda import CudaDriver, CudaError, IpcHandle

# the driver places smaller allocations in a shared block, all of which a handle would expose
# (cuIpcGetMemHandle)
GRANULE_BYTES = 2 << 20
LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
IPC_PROBE_BYTES = 4096
WORKED = "worked"  # an entry of `ipc_probe` in run.json


class CudaExporter:
    """GPU memory of this process, and of others that it has opened, by addresses in this process.

    It is in the primary context, which torch uses too, and may be used only by the thread that
    created it. `local_rank` is the rank's position in its node. All methods raise CudaError.
    """

    def __init__(self, local_rank: int) -> None:
        self._driver = driver = CudaDriver()
        count = driver.count()
        if count == 0:
            raise CudaError("cuDeviceGetCount: no GPU is visible")
        self._ordinal = local_rank % count
        context = c_void_p()
        driver.call("cuDevicePrimaryCtxRetain", byref(context), driver.device(self._ordinal))
        driver.call("cuCtxSetCurrent", context)

    def allocate(self, size: int) -> int:
        """The address of `size` bytes, which live as long as the process. Raises MemoryError."""
        address = c_uint64()
        rounded_bytes = -(-max(size, 1) // GRANULE_BYTES) * GRANULE_BYTES
        try:
            self._driver.call("cuMemAlloc_v2", byref(address), rounded_bytes)
        except CudaError as error:
            if OUT_OF_MEMORY in str(error):
                raise MemoryError(
                    f"{about_bytes(rounded_bytes)} on GPU {self._ordinal}: {error}"
                ) from error
            raise
        return address.value

    def export(self, address: int) -> bytes:
        """The handle of an allocation, for other processes of this node."""
        handle = IpcHandle()
        self._driver.call("cuIpcGetMemHandle", byref(handle), address)
        return bytes(handle)

    def open(self, handle: bytes) -> int:
        """The address of another process's allocation; a process can't open its own."""
        address = c_uint64()
        self._driver.call(
            "cuIpcOpenMemHandle_v2",
            byref(address),
            IpcHandle.from_buffer_copy(handle),
            LAZY_PEER_ACCESS,
        )
        return address.value

    def close(self, address: int) -> None:
        """Close an opened allocation, before its owner frees it or ends."""
        self._driver.call("cuIpcCloseMemHandle", address)

    def upload(self, address: int, data: NDArray[np.uint8]) -> None:
        data = np.ascontiguousarray(data)
        self._driver.call("cuMemcpyHtoD_v2", address, data.ctypes.data, data.nbytes)
        # from pageable memory the call returns before the data has arrived
        self._driver.call("cuCtxSynchronize")

    def download(self, address: int, size: int) -> NDArray[np.uint8]:
        data = np.empty(size, dtype=np.uint8)
        self._driver.call("cuMemcpyDtoH_v2", data.ctypes.data, address, size)
        return data


def probe_cuda_ipc(
    make: Callable[[int], CudaExporter], world: World, control: Control, deadline_s: float
) -> dict[str, str]:
    """Try CUDA IPC between all ranks of each node: every rank opens the memory of the others and
    reads it.

    The key "A-B" is for rank A opening memory of rank B, its value `worked` or the reason. All
    ranks of the world call it and get the same answer. `make` builds this rank's exporter from its
    local rank; a little of its memory stays allocated. Raises Missing only.
    """
    exporter = None
    handle = None
    problem = None
    try:
        exporter = make(world.local_rank)
        address = exporter.allocate(IPC_PROBE_BYTES)
        exporter.upload(address, probe_pattern(world.rank))
        handle = exporter.export(address).hex()
    except (CudaError, MemoryError) as error:
        exporter = None
        problem = str(error)
    offers = control.exchange([handle, problem], deadline_s, "IPC probe")
    results = {
        f"{world.rank}-{peer}": (
            str(problem) if exporter is None else _probe_peer(exporter, peer, *offers[peer])
        )
        for peer in world.neighbours
        if peer != world.rank
    }
    # no rank goes on, and may free memory that a peer has open, before all ranks have read
    parts = control.exchange(results, deadline_s, "IPC probe's end")
    return {pair: result for part in parts for pair, result in part.items()}


def probe_pattern(rank: int) -> NDArray[np.uint8]:
    """IPC_PROBE_BYTES that differ from rank to rank."""
    return ((np.arange(IPC_PROBE_BYTES) * 31 + 7 * rank + 1) % 251).astype(np.uint8)


def _probe_peer(exporter: CudaExporter, peer: int, handle: str, problem: str | None) -> str:
    """`worked`, or why this rank can't read the peer's memory; `problem` is why the peer has no
    handle."""
    if problem is not None:
        return f"rank {peer}: {problem}"
    try:
        address = exporter.open(bytes.fromhex(handle))
        data = exporter.download(address, IPC_PROBE_BYTES)
        exporter.close(address)
    except CudaError as error:
        return str(error)
    wrong = int(np.count_nonzero(data != probe_pattern(peer)))
    return f"{wrong} of {IPC_PROBE_BYTES} bytes were read wrong" if wrong else WORKED
