"""Which call of torch.ops.symm_mem is which collective, and what it can't do.

From torch's CUDASymmetricMemoryOps.cu and nvshmem_extension.cu; torch 2.9 to 2.14 have the same
signatures.
"""

from __future__ import annotations

from collections.abc import Mapping

from commbench.core.payload import dtype
from commbench.core.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Program,
    ReduceScatter,
    Step,
    operation_name,
)
from commbench.core.variables import Algorithm, Case
from commbench.engines.lowered import in_place, reductions
from commbench.hardware.machine_facts import newer_torch_needed

# names of the calls, in place (True) and out of place (False)
CALLS: Mapping[tuple[type[Step], Algorithm | None], Mapping[bool, str]] = {
    (AllReduce, "one_shot"): {
        True: "one_shot_all_reduce_copy_out",
        False: "one_shot_all_reduce_out",
    },
    (AllReduce, "two_shot"): {True: "two_shot_all_reduce_"},
    (AllReduce, "multimem"): {
        True: "multimem_all_reduce_",
        False: "multimem_one_shot_all_reduce_out",
    },
    (AllGather, "multimem"): dict.fromkeys((True, False), "multimem_all_gather_out"),
    (ReduceScatter, "two_shot"): dict.fromkeys((True, False), "reduce_scatter_out"),
    (AllToAll, None): {False: "nvshmem_all_to_all"},
}
OTHER_FORM = {
    AllReduce: "two_shot writes sums into its input as well; use in_place=true",
    AllToAll: "NVSHMEM receives into blocks that it has not sent yet; use in_place=false",
}
OPERATIONS = dict.fromkeys(operation for operation, _ in CALLS)
SUMMED = ("float32", "bfloat16")
SCATTERED = (2, 4, 8)  # ranks that reduce_scatter_out is compiled for
# until tensors were parts of a pool, the whole allocation may have been sent
OF_TENSORS = (2, 11)
ALIGNMENTS = (16, 8, 4)  # bytes that a thread moves at once


def algorithms_of(operation: str) -> list[Algorithm | None]:
    """Those that torch has for all_reduce, say."""
    return [algorithm for kind, algorithm in CALLS if operation_name(kind) == operation]


def refusal(case: Case, size: int, program: Program, memory: str) -> str | None:
    """Why torch has no call on symmetric memory for the case; None if it has one. What the GPUs
    lack is known when they are open."""
    operation = program.operation
    if operation not in OPERATIONS:
        names = ", ".join(map(operation_name, OPERATIONS))
        return f"symm_mem has {names} only; use backend=nccl"
    step, *more = program.steps
    if more or program.lead or type(step) is not operation:
        return f"symm_mem runs one operation of all ranks at a time, which {case.benchmark} is not"
    return (
        _no_algorithm(case, operation)
        or _other_form(case, operation, step)
        or _other_memory(operation, size, memory)
        or _unsummed(program)
        or _misaligned(case, size, operation)
    )


def _no_algorithm(case: Case, operation: type[Step]) -> str | None:
    name = operation_name(operation)
    known = algorithms_of(name)
    if case.algorithm in known:
        return None
    return f"torch's {name} on symmetric memory is {', '.join(map(str, known))} only"


def _other_form(case: Case, operation: type[Step], step: Step) -> str | None:
    has_form = in_place(step) in CALLS[operation, case.algorithm]
    return None if has_form else OTHER_FORM[operation]


def _other_memory(operation: type[Step], size: int, memory: str) -> str | None:
    if operation is AllToAll and memory != "nvshmem":
        return "all_to_all on symmetric memory is NVSHMEM's; use backend.memory=nvshmem"
    if operation is AllToAll:
        return newer_torch_needed(OF_TENSORS, "all_to_all of a part of its memory")
    if operation is ReduceScatter and size not in SCATTERED:
        return f"torch's reduce_scatter is for 2, 4 and 8 ranks, not {size}"
    return None


def _unsummed(program: Program) -> str | None:
    for reduction in reductions(program):
        if reduction.name != "sum":
            return f"symm_mem has no reduction {reduction.name}; use reduction=sum"
        if reduction.dtype not in SUMMED:
            return f"symm_mem adds {' and '.join(SUMMED)}, not {reduction.dtype}"
    return None


def _misaligned(case: Case, size: int, operation: type[Step]) -> str | None:
    """A thread moves the most of 16, 8 and 4 bytes that the message is a multiple of. Without a
    multiple of it for each rank, it would move the next rank's as well."""
    if operation is AllToAll:
        return None
    total = case.message_bytes
    aligned = next((each for each in ALIGNMENTS if total % each == 0), 0)
    if aligned < dtype(case.dtype).itemsize:
        return f"symm_mem moves multiples of 4 B and of the element; {total} B are none"
    block = total if operation is AllReduce else total // size
    if block % aligned:
        return f"symm_mem moves {aligned} B at once; the {block} B of a rank are no multiple"
    return None
