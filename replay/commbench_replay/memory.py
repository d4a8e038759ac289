"""The memory of a rank's calls in a replay: inputs that start alike are one buffer, and what a call
writes to is used again by calls after it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from commbench.core.program import BufferSpec, Copy, Pattern
from commbench_replay.workload import WorkloadCall, runs_beside_next

from .parts import Part

Names = Mapping[str, str]  # of the memory, by the name that a benchmark gives to its buffer


@dataclass(frozen=True)
class Use:
    """Operation `number` uses the first `count` elements of a memory as its `buffer`."""

    number: int
    buffer: str
    count: int


@dataclass
class Memory:
    """`last_uses` are in their order: each operation's last one."""

    spec: BufferSpec
    largest: Use
    last_uses: dict[Use, None] = field(default_factory=dict)

    def use(self, use: Use) -> None:
        self.last_uses.pop(use, None)
        self.last_uses[use] = None
        if use.count > self.spec.count:
            self.spec = replace(self.spec, count=use.count)
            self.largest = use


@dataclass(frozen=True)
class RankMemory:
    """Of one rank: its memories by name, those of each of its calls, and what makes inputs of those
    that are input and result at once."""

    parts: Mapping[int, Part]
    rank: int
    memories: Mapping[str, Memory]
    names: Sequence[Names]
    reset: tuple[Copy, ...]

    @property
    def buffers(self) -> tuple[BufferSpec, ...]:
        return tuple(memory.spec for memory in self.memories.values())

    def fill(self, name: str, salt: int) -> Pattern | None:
        """Before the calls: inputs that share a memory are the beginning of its largest one."""
        use = self.memories[name].largest
        return self.parts[use.number].fill(self.rank, use.buffer, salt)

    def expected(self, name: str, salt: int) -> Pattern | None:
        """After the calls: what the last one left, and behind that what is longer of those before
        it. None where nothing is known."""
        whole: Pattern | None = None
        for use in reversed(self.memories[name].last_uses):
            if whole is not None and use.count <= whole.count:
                continue
            own = self.parts[use.number].expected(self.rank, use.buffer, salt)
            if own is None:
                continue
            rest = own.segments if whole is None else own.part(whole.count).segments
            known = () if whole is None else whole.segments
            whole = replace(own, segments=(*known, *rest))
        return whole


def rank_memory(parts: Mapping[int, Part], rank: int, calls: Sequence[WorkloadCall]) -> RankMemory:
    """A call writes to the smallest memory that is large enough, of those that no call uses which
    still runs; if none is, the largest of them grows."""
    memories: dict[str, Memory] = {}
    slots: dict[str, list[str]] = {}
    names: list[Names] = []
    running: deque[Names] = deque()
    for place, call in enumerate(calls):
        for _ in range(len(running) - call.concurrent):
            running.popleft()
        busy = {name for own in running for name in own.values()}
        own_names = {}
        for spec, kind in parts[call.operation].memory_kinds(rank):
            use = Use(call.operation, spec.name, spec.count)
            name = kind.name
            if kind.is_written:
                own_slots = slots.setdefault(kind.name, [])
                free = [slot for slot in own_slots if slot not in busy]
                name = _best_fit(free, memories, spec.count) or f"{kind.name}.{len(own_slots)}"
                if name not in memories:
                    own_slots.append(name)
            if name not in memories:
                memories[name] = Memory(replace(spec, name=name), use)
            memories[name].use(use)
            own_names[spec.name] = name
        names.append(own_names)
        if runs_beside_next(calls, place):
            running.append(own_names)
    reset = tuple(_reset(parts, rank, calls, names, memories))
    return RankMemory(parts, rank, memories, names, reset)


def _reset(
    parts: Mapping[int, Part],
    rank: int,
    calls: Sequence[WorkloadCall],
    names: Sequence[Names],
    memories: Mapping[str, Memory],
) -> Iterator[Copy]:
    """Of the largest operation in each memory."""
    done: set[str] = set()
    for call, own_names in zip(calls, names, strict=True):
        if done.issuperset(own_names.values()):
            continue
        for step in parts[call.operation].reset(rank, own_names):
            name = step.target.buffer
            if name not in done and memories[name].largest.number == call.operation:
                done.add(name)
                yield step


def _best_fit(free: Sequence[str], memories: Mapping[str, Memory], count: int) -> str | None:
    if not free:
        return None
    sizes = {name: memories[name].spec.count for name in free}
    enough = [name for name in free if sizes[name] >= count]
    return min(enough, key=sizes.__getitem__) if enough else max(free, key=sizes.__getitem__)
