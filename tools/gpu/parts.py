"""The parts of `make gpu-check`, the most valuable evidence first.

CALLS has four lists: `1`, `2` and `3` need one GPU and take six minutes and twice five; `several`
needs at least two GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping

from part import (
    BUILD,
    FEW,
    FIRST_GPU,
    HERE,
    MODES,
    NCCL_LOG,
    PYTHON,
    QUICK,
    SOAK,
    TRUTH,
    TWO_RANKS,
    UNPACK_NCCL,
    WARM,
    Part,
    commbench,
    program,
)
from third_call import THIRD_CALL

SURVEY = """
set -x; date; uname -a; nproc; free -m; df -h / /dev/shm /tmp; ulimit -a; id
ls -l /dev/nvidia* /dev/nvidia-caps 2>&1; cat /proc/driver/nvidia/version
grep -m1 'model name' /proc/cpuinfo; ls /sys/class/net; ip -br addr 2>&1; getent hosts $(hostname)
ls /sys/class/infiniband /sys/devices/system/node 2>&1
which make git g++ nvcc nvidia-smi nvidia-cuda-mps-control ncu nsys mpirun; nvcc --version | tail -2
timeout 20 nvidia-smi; timeout 20 nvidia-smi topo -m; timeout 20 nvidia-smi nvlink -s
timeout 20 nvidia-smi -q
"""
FIRST_CALL = (
    Part("survey", SURVEY, 45),
    Part("warm", WARM, 90, beside=True),
    Part("packages", f"{PYTHON} -m pip list --format=freeze", 40, beside=True),
    Part("truth_build", BUILD, 60, beside=True),
    Part("doctor", f"{PYTHON} -m commbench doctor --json", 40),
    Part("truth_clock", f"{TRUTH} clock 0.1", 20),
    Part(
        "nccl",
        commbench(
            "backend=nccl",
            "layout=1x1",
            "pairs=[[0,0]]",
            "reduction=avg",
            "sizes=[8,1MiB,64MiB]",
            "window=4",
            "benchmark=[all_gather,all_reduce,reduce_scatter,p2p_latency,p2p_bandwidth]",
            MODES,
            *QUICK,
        ),
        80,
    ),
    Part("truth_nccl", f"{TRUTH} nccl 0.1", 30, NCCL_LOG),
    Part("by_hand", program("by_hand.py", "0.1"), 40),
    Part(
        "ipc_copy",
        commbench(
            "backend=ipc_copy",
            "layout=1x2",
            "pairs=[[0,0],[0,1],[1,0]]",
            "window=8",
            "benchmark=[p2p_latency,p2p_bandwidth]",
            "sizes=[8,1MiB,16MiB,256MiB]",
            *QUICK,
        ),
        45,
    ),
    Part("truth_ipc", f"{TRUTH} ipc 0.1", 25),
    Part(
        "cuda_copy",
        commbench(
            "backend=cuda_copy",
            "layout=1x1",
            "benchmark=[copy_h2d,copy_d2h,copy_h2d_d2h,copy_d2d]",
            "sizes=[64KiB,16MiB,256MiB]",
            MODES,
            *QUICK,
        ),
        70,
    ),
    Part("truth_copy", f"{TRUTH} copy 0.05", 45),
    Part(
        "cupy_nccl",
        commbench(
            "backend=cupy_nccl",
            "layout=1x1",
            "pairs=[[0,0]]",
            "reduction=avg",
            "sizes=[8,1MiB]",
            "benchmark=[all_gather,all_reduce,p2p_latency]",
            MODES,
            *QUICK,
        ),
        45,
    ),
    Part("nvml", program("probes/nvml_answers.py"), 40),
    Part(
        "gloo",
        commbench(
            "backend=gloo", "device=cuda", "layout=1x2", "benchmark=all", "sizes=[8,1MiB]", *FEW
        ),
        60,
        FIRST_GPU,
    ),
    Part(
        "mpi",
        commbench(
            "backend=mpi", "device=cuda", "layout=1x2", "benchmark=all", "sizes=[8,1MiB]", *FEW
        ),
        60,
        FIRST_GPU,
        beside=True,
    ),
)

# ---------------------------------------------------------------- call 2

HOG = f"""{PYTHON} -c "
import torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - (3 << 30), dtype=torch.uint8, device='cuda')
print('ready', flush=True)
import time; time.sleep(600)
" """
REFUSED: tuple[tuple[str, Mapping[str, str], tuple[str, ...]], ...] = (
    ("no_visible_gpu", {"CUDA_VISIBLE_DEVICES": ""}, ("backend=nccl", "layout=1x1", "sizes=[8]")),
    ("too_few_gpus", {}, ("backend=nccl", "layout=1x9", "sizes=[8]")),
    ("graph_on_cpu", {}, ("backend=gloo", "timer=graph")),
    ("ipc_off", {}, ("backend=ipc_copy", "cuda_ipc=off", "layout=1x2", "sizes=[8]")),
    (
        "mpi_ipc_on",
        FIRST_GPU,
        ("backend=mpi", "device=cuda", "cuda_ipc=on", "layout=1x2", "sizes=[8]", *FEW),
    ),
    (
        "mpi_staging_none",
        FIRST_GPU,
        ("backend=mpi", "device=cuda", "staging=none", "layout=1x2", "sizes=[8]", *FEW),
    ),
)
HOST_SYNC = commbench(
    "backend=nccl",
    "layout=1x1",
    "pairs=[[0,0]]",
    "reduction=avg",
    "sizes=[8,1MiB]",
    "benchmark=[all_gather,all_reduce,p2p_latency]",
    "timer=host_sync",
    *QUICK,
)
TWO_RANKS_WORDS = (
    "backend=nccl",
    "layout=1x2",
    "sizes=[8,1MiB,16MiB]",
    "window=4",
    "benchmark=[all_reduce,all_gather,broadcast,p2p_latency,p2p_bandwidth]",
    "timer=[host_sync,device_event]",
    *QUICK,
)
SECOND_CALL = (
    Part("truth_build", BUILD, 60),
    Part("warm", WARM, 90, beside=True),
    Part(
        "newer_nccl",
        UNPACK_NCCL,
        40,
        beside=True,
    ),
    Part(
        "copies_again",
        commbench(
            "backend=cuda_copy",
            "layout=1x1",
            "benchmark=[copy_h2d,copy_d2d]",
            "sizes=[1MiB,16MiB]",
            MODES,
            *QUICK,
        ),
        30,
    ),
    Part("truth_two_p2p", f"{TRUTH} two 0.1", 25, TWO_RANKS | NCCL_LOG),
    Part("truth_two_shm", f"{TRUTH} two 0.1", 25, TWO_RANKS | NCCL_LOG | {"NCCL_P2P_DISABLE": "1"}),
    Part("two_ranks", commbench("-m", "cuda_ipc=on,off", *TWO_RANKS_WORDS), 80, TWO_RANKS),
    Part(
        "every_operation",
        commbench(
            "backend=nccl",
            "layout=1x2",
            "benchmark=all",
            "sizes=[8,1MiB]",
            "in_place=[false,true]",
            *FEW,
        ),
        60,
        TWO_RANKS,
    ),
    Part(
        "every_operation_cupy",
        commbench("backend=cupy_nccl", "layout=1x2", "benchmark=all", "sizes=[8,1MiB]", *FEW),
        60,
        TWO_RANKS,
        beside=True,
    ),
    Part(
        "types",
        commbench(
            "backend=nccl",
            "layout=1x2",
            "benchmark=all_reduce",
            "dtype=[float64,float32,float16,bfloat16,int64,int32,int8,uint8]",
            "reduction=[sum,max,avg]",
            "sizes=[1KiB]",
            *FEW,
        ),
        60,
        TWO_RANKS,
    ),
    Part(
        "three_ranks",
        commbench(
            "backend=nccl",
            "layout=[1x1,1x2,1x3]",
            "benchmark=[all_reduce,all_gather,all_to_all,p2p_latency]",
            "sizes=[12KiB]",
            "timer=[host_sync,device_event,throughput,graph]",
            *FEW,
        ),
        60,
        TWO_RANKS,
        beside=True,
    ),
    Part(
        "soak",
        commbench(
            "backend=nccl",
            "layout=1x1",
            "benchmark=all_gather",
            "sizes=[64MiB]",
            "timer=throughput",
            "timing=soak",
            "timing.duration_s=8",
        ),
        30,
    ),
    Part("truth_turns", f"{TRUTH} turns 0.1", 15),
    Part("host_sync_1", HOST_SYNC, 30),
    Part("by_hand_1", program("by_hand.py", "0.03"), 20),
    Part("host_sync_2", HOST_SYNC, 30),
    Part("by_hand_2", program("by_hand.py", "0.03"), 20),
    Part("clocks_torch", program("probes/clocks.py", "torch"), 30),
    Part("clocks_cupy", program("probes/clocks.py", "cupy"), 30),
    Part("lifetime_torch", program("probes/lifetime.py", "torch"), 60),
    Part("lifetime_cupy", program("probes/lifetime.py", "cupy"), 60),
    Part(
        "killed_rank",
        commbench("backend=nccl", "benchmark=all_reduce", "layout=1x2", "sizes=[1MiB]", *SOAK),
        40,
        TWO_RANKS,
        kills=1,
    ),
    Part(
        "pageable",
        commbench(
            "backend=cuda_copy",
            "staging=none",
            "layout=1x1",
            "benchmark=[copy_h2d,copy_d2h]",
            "sizes=[64KiB,16MiB]",
            *QUICK,
        ),
        25,
    ),
    Part("nvml", program("probes/nvml_answers.py"), 40),
    Part("doctor", f"{PYTHON} -m commbench doctor", 40, beside=True),
    *(
        Part(f"refused_{name}", commbench(*words), 30, env, beside=number > 0)
        for number, (name, env, words) in enumerate(REFUSED)
    ),
    Part("memory_hog", HOG, 30),
    Part(
        "memory_full",
        "sleep 6; "
        + commbench(
            "backend=nccl",
            "benchmark=all_reduce",
            "layout=1x1",
            "sizes=[64,1.5GB,8GiB]",
            "budget.memory_share=1.0",
            *FEW,
        ),
        40,
        FIRST_GPU,
        beside=True,
    ),
    Part(
        "shared_by_host_id",
        commbench(
            "--config-dir",
            f"{HERE}/plugins/conf",
            "allow=[shared_gpu]",
            "backend=shared_nccl",
            "layout=1x2",
            "benchmark=[all_reduce,exchange,p2p_latency]",
            "sizes=[64KiB]",
            "timer=[host_sync,graph]",
            *FEW,
        ),
        45,
    ),
)

# ---------------------------------------------------------------- two processes at once

TOGETHER = (
    Part("mps_turns", f"{TRUTH} turns 0.1", 25, mps=True),
    Part("mps_two_p2p", f"{TRUTH} two 0.1", 25, TWO_RANKS | NCCL_LOG, mps=True),
    Part("mps_two_ranks", commbench(*TWO_RANKS_WORDS), 60, TWO_RANKS, mps=True),
    Part(
        "mps_ipc_copy",
        commbench(
            "backend=ipc_copy",
            "layout=1x2",
            "pairs=[[0,1]]",
            "window=8",
            "benchmark=[p2p_latency,p2p_bandwidth]",
            "sizes=[8,1MiB,16MiB,256MiB]",
            *QUICK,
        ),
        40,
        mps=True,
    ),
)

# ---------------------------------------------------------------- several GPUs

PAIRED = ("backend=nccl", "benchmark=p2p_bandwidth", "window=8", "sizes=[8,16MiB]", *QUICK)
SEVERAL = (
    Part("survey", SURVEY, 45),
    Part("warm", WARM, 90, beside=True),
    Part("doctor", f"{PYTHON} -m commbench doctor --json", 40),
    Part(
        "layouts",
        commbench(
            "backend=nccl",
            "benchmark=[all_reduce,all_gather,all_to_all]",
            "layout=[1x2,1x4,1x8]",
            "sizes=[8,64KiB,1MiB,16MiB,128MiB]",
            *QUICK,
        ),
        120,
    ),
    Part("pairs", commbench(*PAIRED, "layout=1x8", "pairs=all", "schedule=rounds"), 120),
    Part("ipc_on", commbench(*PAIRED, "layout=1x2", "cuda_ipc=on"), 45),
    Part("ipc_off", commbench(*PAIRED, "layout=1x2", "cuda_ipc=off"), 45),
    Part(
        "ipc_copy",
        commbench("backend=ipc_copy", *PAIRED[1:], "layout=1x8", "pairs=all", *FEW),
        150,
    ),
    Part(
        "killed_rank",
        commbench("backend=nccl", "benchmark=all_reduce", "layout=1x2", "sizes=[1MiB]", *SOAK),
        40,
        kills=1,
    ),
)
CALLS: Mapping[str, tuple[Part, ...]] = {
    "1": FIRST_CALL,
    "2": (*SECOND_CALL, *TOGETHER),
    "3": THIRD_CALL,
    "several": SEVERAL,
}
