"""What several groups of ranks run at once, as a text: `all_reduce@tp2 + all_gather@dp2`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from commbench.core.errors import ConfigError
from commbench.core.program import Group
from commbench.core.units import parse_bytes, parse_ranges
from commbench.core.variables import BY_NAME

DEFAULT_GROUPS = str(BY_NAME["groups"].null)
AT_ONCE = " + "
UNDER_LOAD = " beside "
ENTRY = re.compile(
    r"(?P<operation>[a-z]\w*)@(?P<place>world|(?:tp|dp)[1-9]\d{0,5}|\d[\d,-]*)(?:=(?P<size>\S+))?"
)
TIMED_ENTRY = re.compile(r"\[(?P<entry>[^][]*)\]")
MOST_ENTRIES = 4
PAIRED = ("p2p_latency", "p2p_bandwidth")
COPIES = ("copy_h2d", "copy_d2h")  # of each rank by itself
GROUP_OPERATION_NAMES = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", *PAIRED, *COPIES
)  # fmt: skip
GRAMMAR = (
    "write OPERATION@GROUPS, where GROUPS is world, tp4 (neighbours by 4), dp4 (the ranks with the"
    " same place in these) or ranks such as 0-3, and =SIZE for another size, and several with + or"
    " beside, like all_reduce@tp2 + all_gather@dp2"
)


@dataclass(frozen=True)
class GroupEntry:
    """An operation, on groups of ranks that run it at the same time. `size_bytes`: of its message;
    None for that of the case."""

    text: str
    operation: str
    place: str
    size_bytes: int | None

    @classmethod
    def parse(cls, text: str) -> GroupEntry:
        """Raises ConfigError."""
        match = ENTRY.fullmatch(text.strip())
        if match is None or match["operation"] not in GROUP_OPERATION_NAMES:
            raise ConfigError(
                f"groups={text}: {GRAMMAR}; operations: {', '.join(GROUP_OPERATION_NAMES)}"
            )
        size_bytes = None if match["size"] is None else parse_bytes(match["size"])
        return cls(text.strip(), match["operation"], match["place"], size_bytes)

    def groups(self, size: int) -> tuple[Group, ...]:
        """Those of a layout with so many ranks that have at least two of them; of a copy each rank
        of these."""
        groups = self._all_groups(size)
        if self.is_copy:
            return tuple((rank,) for group in groups for rank in group)
        return tuple(group for group in groups if len(group) > 1)

    @property
    def is_copy(self) -> bool:
        return self.operation in COPIES

    def _all_groups(self, size: int) -> Iterator[Group]:
        ranks = range(size)
        if self.place == "world":
            yield tuple(ranks)
        elif self.place.startswith("tp"):
            width = int(self.place[2:])
            yield from (tuple(ranks[first : first + width]) for first in ranks[::width])
        elif self.place.startswith("dp"):
            width = int(self.place[2:])
            yield from (tuple(ranks[first::width]) for first in ranks[:width])
        else:
            yield tuple(dict.fromkeys(parse_ranges(self.place)))


@dataclass(frozen=True)
class GroupOperations:
    """`entries` run at once. `timed` is the index of the one whose ranks and time count; None for
    all. `free`: each rank repeats on its own, so the timed entry always has the others beside
    it."""

    entries: tuple[GroupEntry, ...]
    timed: int | None = None
    free: bool = False

    @property
    def text(self) -> str:
        if len(self.entries) == 1 or self.free:
            return UNDER_LOAD.join(entry.text for entry in self.entries)
        return AT_ONCE.join(
            f"[{entry.text}]" if number == self.timed else entry.text
            for number, entry in enumerate(self.entries)
        )

    def variants(self) -> Iterator[GroupOperations]:
        """Each entry alone, each of them beside the others, and all together; of a load, the timed
        entry alone and beside it."""
        alone = self.entries[:1] if self.free else self.entries
        for entry in alone:
            yield GroupOperations((entry,), 0, self.free)
        if self.free:
            yield self
        elif len(self.entries) > 1:
            yield GroupOperations(self.entries)
            for number in range(len(self.entries)):
                yield GroupOperations(self.entries, number)


@lru_cache(maxsize=64)
def parse_group_operations(text: str) -> GroupOperations:
    """The text of a key or a case; raises ConfigError."""
    timed = TIMED_ENTRY.search(text)
    plain = text if timed is None else text.replace(timed[0], timed["entry"])
    free = UNDER_LOAD in plain
    parts = plain.split(UNDER_LOAD if free else AT_ONCE)
    entries = tuple(map(GroupEntry.parse, parts))
    if len(entries) > MOST_ENTRIES:
        raise ConfigError(f"groups={text} has {len(entries)} operations; at most {MOST_ENTRIES}")
    if len({entry.text for entry in entries}) < len(entries):
        raise ConfigError(
            f"groups={text} names an operation twice; give each other groups or sizes"
        )
    if timed is not None:
        return GroupOperations(entries, entries.index(GroupEntry.parse(timed["entry"])))
    return GroupOperations(entries, 0 if free or len(entries) == 1 else None, free)
