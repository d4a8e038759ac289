"""The parts of `make gpu-check CALL=3`: registered and symmetric memory, float8, the cost of
communicators, copies beside a collective, training jobs and their replay, and the sums of NCCL,
with two or three ranks on one GPU.

On a GPU that calls 1 and 2 have not seen, the most valuable parts of call 1 follow.
"""

from __future__ import annotations

from part import (
    BUILD,
    FEW,
    HERE,
    PYTHON,
    QUICK,
    TRUTH,
    TWO_RANKS,
    UNPACK_NCCL,
    WARM,
    Part,
    commbench,
    program,
)

MEASURED_ON = "H200"  # tests/data/gpu_h200
OVERLAPPING = {"TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1"}
SYMMETRIC = ("layout=1x2", "benchmark=[all_reduce,all_gather,reduce_scatter]")
LOGGED = {
    "tuning": "INIT,TUNING",  # the kernel of each call
    "reg": "INIT,REG",  # what is registered
}
SUMS = (
    "backend=nccl",
    "layout=1x3",
    "payload=rounding",
    "dtype=[float32,bfloat16]",
    "sizes=[1KiB,1MiB]",
    "timer=[host_sync,graph]",
    *FEW,
)


def job(name: str) -> Part:
    """A training job with its recordings, and its replay."""
    torchrun = f"{PYTHON} -m torch.distributed.run --standalone --nproc-per-node 2"
    on = "backend=nccl layout=1x2 timing=quick timing.visits=1 budget.case_s=0.3 output=results"
    replay = f"{PYTHON} -m commbench replay"
    steps = (
        f"{torchrun} {HERE / 'probes' / 'training.py'} {name} recorded",
        f'{replay} recorded/profile --on "{on}"',
        f"{replay} recorded/flight",
        f"{replay} recorded/log",
    )
    return Part(f"job_{name}", "\n".join(steps), 35, TWO_RANKS, mps=True)


THIRD_CALL = (
    Part("truth_build", BUILD, 45),
    Part("warm", WARM, 50, beside=True),
    Part("newer_nccl", UNPACK_NCCL, 40, beside=True),
    # what torch does, before commbench does it
    *(
        Part(
            f"probe_{way}",
            program("probes/registered.py", way),
            20,
            TWO_RANKS | OVERLAPPING,
            beside=number > 0,
            mps=True,
        )
        for number, way in enumerate(("none", "local", "symmetric", "CUDA", "NCCL", "NVSHMEM"))
    ),
    Part("truth_windows", f"{TRUTH} windows", 18, TWO_RANKS, mps=True),
    Part(
        "registration",
        commbench(
            "backend=nccl",
            *SYMMETRIC,
            "registration=[none,local,symmetric]",
            "in_place=false",
            "sizes=[8,64KiB,1MiB,16MiB]",
            "cache=warm",
            "timer=[throughput,graph]",
            *QUICK,
        ),
        60,
        TWO_RANKS,
        mps=True,
    ),
    *(
        Part(
            f"proof_{name}",
            commbench(
                "backend=nccl",
                *SYMMETRIC,
                "registration=[local,symmetric]",
                "in_place=[false,true]",
                "sizes=[8,1MiB]",
                "timer=[host_sync,graph]",
                *FEW,
            ),
            40,
            {**TWO_RANKS, "NCCL_DEBUG_SUBSYS": subsystems},
            beside=name != "tuning",
            mps=True,
        )
        for name, subsystems in LOGGED.items()
    ),
    *(
        Part(
            f"float8_{ranks}_ranks",
            commbench(
                "backend=nccl",
                f"layout=1x{ranks}",
                "benchmark=[all_reduce,reduce_scatter,all_gather,p2p_latency]",
                "dtype=[float8_e4m3fn,float8_e5m2]",
                "reduction=[sum,max,avg]",
                "sizes=[12KiB]",
                "timer=[host_sync,graph]",
                *FEW,
            ),
            40,
            TWO_RANKS,
            beside=True,  # the times of these and of the proofs are not used
            mps=True,
        )
        for ranks in (1, 2)
    ),
    Part(
        "symm_mem",
        commbench(
            "backend=symm_mem",
            "layout=1x2",
            "benchmark=all_reduce",
            "algorithm=[one_shot,two_shot,multimem]",
            "dtype=bfloat16",
            "sizes=[8,64KiB,1MiB]",
            "timer=[host_sync,graph]",
            *QUICK,
        ),
        40,
        TWO_RANKS | OVERLAPPING,
        mps=True,
    ),
    Part(
        "symmetric_by_hand", program("symmetric_by_hand.py"), 18, TWO_RANKS | OVERLAPPING, mps=True
    ),
    Part("truth_init", f"{TRUTH} init", 15, TWO_RANKS, mps=True),
    Part(
        "communicators",
        commbench(
            "backend=nccl",
            "layout=1x2",
            "benchmark=[communicator_init,communicator_split]",
            "split=1",
            "timing=fixed",
            "timing.repetitions=7",
            "timing.warmup_repetitions=1",
            "budget.case_s=2",
        ),
        30,
        TWO_RANKS,
        mps=True,
    ),
    Part(
        "copies_beside",
        commbench(
            "backend=nccl",
            "layout=1x2",
            "benchmark=concurrent",
            'groups="all_gather@world + copy_d2h@world"',
            "sizes=[16MiB]",
            "timer=device_event",
            *QUICK,
        ),
        30,
        TWO_RANKS,
        mps=True,
    ),
    job("ddp"),
    job("fully_shard"),
    Part(
        "sums",
        commbench(
            "-m",
            "env.NCCL_ALGO=Ring,Tree",
            "env.NCCL_MAX_NCHANNELS=1,4",
            "benchmark=all_reduce",
            *SUMS,
        ),
        60,
        TWO_RANKS,
        mps=True,
    ),
    Part(
        "scattered_sums",
        commbench("-m", "env.NCCL_MAX_NCHANNELS=1,4", "benchmark=reduce_scatter", *SUMS),
        60,
        TWO_RANKS,
        beside=True,
        mps=True,
    ),
    Part("truth_clock", f"{TRUTH} clock 0.05", 15, measured_on=MEASURED_ON),
    Part("truth_nccl", f"{TRUTH} nccl 0.03", 15, measured_on=MEASURED_ON),
    Part(
        "nccl",
        commbench(
            "backend=nccl",
            "layout=1x1",
            "pairs=[[0,0]]",
            "reduction=avg",
            "sizes=[8,64MiB]",
            "benchmark=[all_gather,p2p_latency]",
            "timer=[device_event,throughput]",
            *QUICK,
        ),
        30,
        measured_on=MEASURED_ON,
    ),
    Part("truth_copy", f"{TRUTH} copy 0.01", 20, measured_on=MEASURED_ON),
    Part(
        "cuda_copy",
        commbench(
            "backend=cuda_copy",
            "layout=1x1",
            "benchmark=[copy_h2d,copy_d2h,copy_d2d]",
            "sizes=[16MiB,256MiB]",
            "timer=throughput",
            *QUICK,
        ),
        25,
        measured_on=MEASURED_ON,
    ),
)
