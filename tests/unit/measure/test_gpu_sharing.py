"""GPUs that ranks share, and those that others use."""

from __future__ import annotations

from typing import Any

from shown_gpus import uuid

from commbench.measure.gpu_sharing import busy_gpus, shared_gpu

REFUSAL = "wire needs a GPU for each rank"


def rank(host: str, index: int, **more: Any) -> dict[str, Any]:
    facts = {"uuid": uuid(index), "index": index, "name": "NVIDIA L4", "visible": 2, **more}
    return {"host.hostname": host} | {f"gpu.own.{key}": value for key, value in facts.items()}


def test_two_ranks_on_one_gpu_are_named() -> None:
    facts = [rank("a", 0), rank("a", 1), rank("b", 0), rank("b", 0)]
    assert (
        shared_gpu(facts, ((0, 1), (2, 3)), REFUSAL)
        == f"ranks 2-3 on b have the same GPU, GPU 0 (NVIDIA L4, {uuid(0)}), and wire needs a GPU"
        " for each rank: start at most as many ranks a node as it has GPUs (2 ranks here, 2"
        " visible), or give each its own with CUDA_VISIBLE_DEVICES"
    )


def test_several_shared_gpus_are_one_line() -> None:
    facts = [rank("a", index % 2) for index in range(5)]
    text = shared_gpu(facts, (tuple(range(5)),), REFUSAL)
    assert text is not None and text.startswith("ranks 0,2,4 on a have the same GPU, GPU 0 ")
    assert ", and so for 1 more, and wire" in text and "\n" not in text


def test_one_gpu_for_each_rank_of_a_node_is_no_duplicate() -> None:
    """On two nodes it may even be the same: containers of one machine, as the user made them."""
    assert (
        shared_gpu(
            [rank("a", 0), rank("a", 1), rank("b", 0)],
            ((0, 1), (2,)),
            REFUSAL,
        )
        is None
    )
    assert (
        shared_gpu(
            [{"host.hostname": "a"}, {"host.hostname": "a"}],
            ((0, 1),),
            REFUSAL,
        )
        is None
    )


def test_a_busy_gpu_is_said_once_with_its_host_and_processes() -> None:
    facts = [
        rank("a", 0, users="4711 (37.3 GiB)"),
        rank("a", 0, users="4711 (37.3 GiB)"),
        rank("b", 1),
    ]
    assert busy_gpus(facts) == [
        f"a: GPU 0 (NVIDIA L4, {uuid(0)}) is in use by 4711 (37.3 GiB); they disturb what is"
        " measured"
    ]
    assert len(busy_gpus([rank("a", 0, users="1 (1 B)"), rank("a", 1, users="1 (1 B)")])) == 2
