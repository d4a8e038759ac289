"""The same torchrun line on every node of a Ray cluster. Ray 2.49 or later:

    ray symmetric-run --address HOST:6379 --min-nodes 2 -- python ray_torchrun.py backend=nccl

on each node (`srun --ntasks-per-node 1`, or by hand): it runs the script on HOST alone. Where a
cluster is there already: `python ray_torchrun.py backend=nccl` on one of its nodes. Start it in a
folder that all nodes share and that has commbench.pyz (`make pyz`): results/ goes there.
"""

import subprocess
import sys
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@ray.remote(num_cpus=0)
def torchrun(*arguments: str, folder: str) -> int:
    return subprocess.call(["torchrun", *arguments], cwd=folder)


ray.init()
alive = [node for node in ray.nodes() if node["Alive"]]
nodes = [node for node in alive if "GPU" in node["Resources"]] or alive
world = [f"--nnodes={len(nodes)}", "--nproc-per-node=auto"]  # auto: the GPUs, else the cores
world += [f"--master-addr={nodes[0]['NodeManagerAddress']}", "--master-port=29500"]
agents = [
    torchrun.options(
        num_gpus=node["Resources"].get("GPU", 0),
        scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
    ).remote(*world, f"--node-rank={rank}", "commbench.pyz", *sys.argv[1:], folder=str(Path.cwd()))
    for rank, node in enumerate(nodes)
]
sys.exit(max(map(abs, ray.get(agents))))  # negative: ended by a signal
