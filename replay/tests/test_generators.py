"""Generated workloads move the bytes that the model has to move, and never deadlock."""

from __future__ import annotations

import pytest
from loops import for_each

from commbench.core.errors import ConfigError
from commbench_replay.generators import GENERATORS, generate
from commbench_replay.workload import Workload
from commbench_replay.workload_file import parse_workload, workload_text

VALUES = {"ranks": "4", "params": "1e6", "layers": "3", "hidden": "64"}


def made(name: str, **more: str) -> Workload:
    needed = {key: VALUES[key] for key in ("ranks", *GENERATORS[name].needed)}
    return generate(name, needed | more)


def moved(workload: Workload, operation: str) -> list[int]:
    """Input bytes of each call of rank 0."""
    calls = [workload.operations[call.operation] for call in workload.orders[0].calls]
    return [call.input_bytes[0] for call in calls if call.operation == operation]


@for_each("name", list(GENERATORS))
def test_a_generated_workload_is_a_valid_file(name: str) -> None:
    workload = made(name)
    assert parse_workload(workload_text(workload), "job.json") == workload


def test_buckets_add_up_to_the_gradients() -> None:
    sizes = moved(made("ddp", bucket="1MiB", dtype="float32"), "all_reduce")
    assert sizes == [2**20] * 3 + [4_000_000 - 3 * 2**20]


def test_fsdp_gathers_each_layer_twice_and_scatters_its_gradients_once() -> None:
    workload = made("fsdp")
    shard = 2 * -(-333_334 // 4)
    assert moved(workload, "all_gather") == [shard] * 6
    assert moved(workload, "reduce_scatter") == [4 * shard] * 3


def test_tensor_parallel_layers_reduce_activations_four_times() -> None:
    assert moved(made("tensor_parallel", tokens="10"), "all_reduce") == [2 * 10 * 64] * 12


def test_experts_get_every_token_as_often_as_it_has_experts() -> None:
    sizes = moved(made("moe", tokens="16", top_k="2"), "all_to_all")
    assert sizes == [2 * 16 * 2 * 64] * 12


def test_stages_end_whatever_their_speed() -> None:
    """Each rank waits in its calls, as with blocking sends without buffers."""
    workload = made("pipeline", microbatches="3")
    waiting = {
        order.ranks[0]: [call.operation for call in order.calls] for order in workload.orders
    }
    while any(waiting.values()):
        heads = [calls[0] for calls in waiting.values() if calls]
        ready = {operation for operation in heads if heads.count(operation) == 2}
        assert ready, waiting
        for calls in waiting.values():
            if calls and calls[0] in ready:
                calls.pop(0)


@for_each(
    ("name", "values", "message"),
    [
        ("fsdp", {"ranks": "4"}, "needs params, layers"),
        ("fsdp", {**VALUES, "hidden": "1"}, "hidden is unknown; allowed: ranks, params, layers"),
        ("ddp", {"ranks": "1", "params": "1"}, "one rank has no communication"),
        ("ddp", {"ranks": "2", "params": "1.5"}, "params=1.5: give a whole number"),
        ("ddp", {"ranks": "2", "params": "1e99"}, "params=1e99: give a whole number"),
        ("ddp", {"ranks": "2", "params": "nan"}, "params=nan: give a whole number"),
        ("ddp", {"ranks": "2", "params": "1e14", "bucket": "1B"}, "make .* calls a step"),
        ("ddp", {"ranks": "2", "params": "1", "dtype": "x"}, "dtype=x is unknown"),
    ],
)
def test_numbers_that_make_no_workload_are_refused(
    name: str, values: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        generate(name, values)
