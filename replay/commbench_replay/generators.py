"""Workloads of one training step made from the numbers of a model, without a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from commbench.core.errors import ConfigError
from commbench.core.units import parse_bytes

from .operations import ITEM_BYTES
from .workload import (
    GAPS_UNKNOWN,
    SEND_RECV,
    TIMES_UNKNOWN,
    RankOrder,
    Workload,
    WorkloadCall,
    WorkloadOperation,
)

MOST_OF_A_NUMBER = 10**15
MOST_GENERATED_CALLS = 10**6


@dataclass(frozen=True)
class ModelNumbers:
    """The numbers of a model and of how it is divided. `tokens` are of one rank and one
    micro-batch, `bucket` is in bytes."""

    ranks: int = 0
    params: int = 0
    layers: int = 0
    hidden: int = 0
    bucket: int = 25 * 2**20
    tokens: int = 4096
    microbatches: int = 8
    tensor_ranks: int = 2
    top_k: int = 8
    dtype: str = "bfloat16"


@dataclass(frozen=True)
class Generator:
    """`needed` and `optional` are fields of ModelNumbers; all generators take `ranks` and
    `dtype`."""

    make: Callable[[ModelNumbers], Workload]
    needed: tuple[str, ...]
    optional: tuple[str, ...] = ()

    @property
    def allowed(self) -> tuple[str, ...]:
        return ("ranks", *self.needed, *self.optional, "dtype")

    def workload(self, values: Mapping[str, str]) -> Workload:
        """Raises ConfigError."""
        unknown = [key for key in values if key not in self.allowed]
        if unknown:
            raise ConfigError(f"{unknown[0]} is unknown; allowed: {', '.join(self.allowed)}")
        lacking = [key for key in ("ranks", *self.needed) if key not in values]
        if lacking:
            raise ConfigError(f"it needs {', '.join(lacking)}; give {lacking[0]}=NUMBER")
        dtype = values.get("dtype", ModelNumbers.dtype)
        if dtype not in ITEM_BYTES:
            raise ConfigError(f"dtype={dtype} is unknown; allowed: {', '.join(ITEM_BYTES)}")
        numbers = {key: _model_number(key, text) for key, text in values.items() if key != "dtype"}
        model = ModelNumbers(dtype=dtype, **numbers)
        if model.ranks < 2:
            raise ConfigError(
                f"ranks={model.ranks}: one rank has no communication; give at least 2"
            )
        return self.make(model)


def generate(name: str, values: Mapping[str, str]) -> Workload:
    """The workload of one of GENERATORS; raises ConfigError, whose text begins with its name."""
    try:
        return GENERATORS[name].workload(values)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def _model_number(key: str, text: str) -> int:
    if key == "bucket":
        size = parse_bytes(text)
        if not 1 <= size <= MOST_OF_A_NUMBER:
            raise ConfigError(f"bucket={text} is no size of a bucket; give one like 25MiB")
        return size
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal(0)
    in_range = value.is_finite() and 1 <= value <= MOST_OF_A_NUMBER
    if not in_range or value != int(value):
        raise ConfigError(f"{key}={text}: give a whole number from 1 to 10^15, like 8192 or 70e9")
    return int(value)


def ddp(model: ModelNumbers) -> Workload:
    """One all_reduce a bucket of gradients."""
    item_bytes = ITEM_BYTES[model.dtype]
    total = model.params * item_bytes
    bucket = max(item_bytes, model.bucket // item_bytes * item_bytes)
    full = total // bucket
    _check_calls(full)
    sizes = [bucket] * full + ([total % bucket] if total % bucket else [])
    return _same_on_all_ranks(model, [("all_reduce", size, size) for size in sizes])


def fsdp(model: ModelNumbers) -> Workload:
    """An all_gather of each layer forward and again backward, a reduce_scatter of its gradients."""
    _check_calls(3 * model.layers)
    shard = _divided(_divided(model.params, model.layers), model.ranks) * ITEM_BYTES[model.dtype]
    layer = shard * model.ranks
    forward = [("all_gather", shard, layer)] * model.layers
    backward = [("all_gather", shard, layer), ("reduce_scatter", layer, shard)] * model.layers
    return _same_on_all_ranks(model, forward + backward)


def tensor_parallel(model: ModelNumbers) -> Workload:
    """Two all_reduces of the activations a layer, forward and backward."""
    _check_calls(4 * model.layers)
    size = model.tokens * model.hidden * ITEM_BYTES[model.dtype]
    return _same_on_all_ranks(model, [("all_reduce", size, size)] * 4 * model.layers)


def moe(model: ModelNumbers) -> Workload:
    """A dispatch and a combine a layer, forward and backward, with even routing."""
    _check_calls(4 * model.layers)
    copies = _divided(model.tokens * model.top_k, model.ranks) * model.ranks
    size = copies * model.hidden * ITEM_BYTES[model.dtype]
    return _same_on_all_ranks(model, [("all_to_all", size, size)] * 4 * model.layers)


def pipeline(model: ModelNumbers) -> Workload:
    """A stage a rank: activations of all micro-batches forward, then their gradients backward."""
    _check_calls(4 * model.microbatches)
    size = model.tokens * model.hidden * ITEM_BYTES[model.dtype]
    last = model.ranks - 1
    forward = [(stage, stage + 1) for stage in range(last)]
    backward = [(stage + 1, stage) for stage in range(last)]
    operations = tuple(
        WorkloadOperation(0, SEND_RECV, model.dtype, (size,), (size,), peers=peers)
        for peers in (*forward, *backward)
    )
    orders = []
    for stage in range(model.ranks):
        ahead = [stage - 1] if stage > 0 else []
        ahead += [stage] if stage < last else []
        back = [last + stage] if stage < last else []
        back += [last + stage - 1] if stage > 0 else []
        indices = ahead * model.microbatches + back * model.microbatches
        orders.append(RankOrder((stage,), tuple(map(WorkloadCall, indices))))
    return Workload(
        model.ranks,
        (tuple(range(model.ranks)),),
        operations,
        tuple(orders),
        unknown=(GAPS_UNKNOWN, TIMES_UNKNOWN),
    )


def tensor_and_data_parallel(model: ModelNumbers) -> Workload:
    """Groups of `tensor_ranks` neighbours with two all_reduces of activations a layer, forward and
    backward, and groups of the ranks at the same place in these, with an all_reduce of the
    gradients of each layer that runs while the next layer computes."""
    _check_calls(5 * model.layers)
    if model.ranks % model.tensor_ranks or model.ranks < 2 * model.tensor_ranks:
        raise ConfigError(
            f"tensor_ranks={model.tensor_ranks} does not divide ranks={model.ranks} into two groups"
            " or more"
        )
    item_bytes = ITEM_BYTES[model.dtype]
    activations = model.tokens * model.hidden * item_bytes
    shard = _divided(_divided(model.params, model.layers), model.tensor_ranks) * item_bytes
    world = range(model.ranks)
    places = range(model.tensor_ranks)
    tensor_groups = [
        tuple(world[first : first + model.tensor_ranks])
        for first in range(0, model.ranks, model.tensor_ranks)
    ]
    data_groups = [tuple(world[place :: model.tensor_ranks]) for place in places]
    operations = [
        WorkloadOperation(group, "all_reduce", model.dtype, (size,), (size,))
        for group, size in enumerate(
            [activations] * len(tensor_groups) + [shard] * len(data_groups)
        )
    ]
    orders = []
    for rank in world:
        tensor, place = divmod(rank, model.tensor_ranks)
        gradients = len(tensor_groups) + place
        forward = [WorkloadCall(tensor)] * 2 * model.layers
        first_layer = [WorkloadCall(tensor), WorkloadCall(tensor), WorkloadCall(gradients)]
        # beside the gradients of the layer before
        layer = [
            WorkloadCall(tensor, concurrent=1), WorkloadCall(tensor), WorkloadCall(gradients),
        ]  # fmt: skip
        calls = (*forward, *first_layer, *layer * (model.layers - 1))
        orders.append(RankOrder((rank,), calls))
    return Workload(
        model.ranks,
        (*tensor_groups, *data_groups),
        tuple(operations),
        tuple(orders),
        unknown=(GAPS_UNKNOWN, TIMES_UNKNOWN),
    )


def _divided(total: int, parts: int) -> int:
    """Rounded up: libraries pad what does not divide."""
    return -(-total // parts)


def _check_calls(count: int) -> None:
    if count > MOST_GENERATED_CALLS:
        raise ConfigError(
            f"these numbers make {count} calls a step, of at most {MOST_GENERATED_CALLS}; give"
            " fewer layers or micro-batches, or larger buckets"
        )


def _same_on_all_ranks(model: ModelNumbers, calls: list[tuple[str, int, int]]) -> Workload:
    """All ranks are in one group and call the same operations (name, bytes in and out)."""
    index = {call: number for number, call in enumerate(dict.fromkeys(calls))}
    world = tuple(range(model.ranks))
    operations = tuple(
        WorkloadOperation(0, name, model.dtype, (input_bytes,), (output_bytes,))
        for name, input_bytes, output_bytes in index
    )
    order = RankOrder(world, tuple(WorkloadCall(index[call]) for call in calls))
    return Workload(
        model.ranks, (world,), operations, (order,), unknown=(GAPS_UNKNOWN, TIMES_UNKNOWN)
    )


GENERATORS = {
    "ddp": Generator(ddp, ("params",), ("bucket",)),
    "fsdp": Generator(fsdp, ("params", "layers")),
    "tensor_parallel": Generator(tensor_parallel, ("layers", "hidden"), ("tokens",)),
    "pipeline": Generator(pipeline, ("hidden",), ("tokens", "microbatches")),
    "tp_dp": Generator(
        tensor_and_data_parallel, ("params", "layers", "hidden"), ("tokens", "tensor_ranks")
    ),
    "moe": Generator(moe, ("layers", "hidden"), ("tokens", "top_k")),
}
