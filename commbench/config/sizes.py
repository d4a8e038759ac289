"""Message sizes: presets, lists, and ranges such as 8..8GiB, 8..1MiB*4 and 8..max."""

from __future__ import annotations

import re
from typing import Any

from commbench.core.errors import ConfigError
from commbench.core.payload import dtype
from commbench.core.units import parse_bytes
from commbench.core.variables import INT64_MAX

PRESETS = {  # elements: 40 B to 40 MB, and to 4 GB, for float32
    "decades": tuple(10**k for k in range(1, 8)),
    "mlbench": tuple(10**k for k in range(1, 10)),
}
OCTAVES_BYTES = tuple(2**k for k in range(3, 25))  # 8 B to 16 MiB
SIZE_RANGE = re.compile(
    r"(?P<first>[^.*]+(?:\.\d[^.*]*)?)\.\.(?P<last>[^.*][^*]*)(?:\*(?P<factor>[^*]*))?"
)
OTHER_RANGE = re.compile(r"-|:|~|\.{3}|to")  # between the ends, where two dots are meant
TO_MEMORY = "max"  # the end of a range: what the memory of the nodes allows, which the plan knows
MAX_RANGE_BYTES = 2**45  # of a range to TO_MEMORY
EXAMPLES = (
    "a list like '[8,1KiB,4MB]' or a range like 8..8GiB (times 2), '8..1MiB*4' (times 4), 8..max"
    " (quotes for zsh)"
)


def sizes_bytes(spec: Any, name: str) -> tuple[int, ...]:
    """Message sizes in bytes for elements of that dtype; raises ConfigError."""
    itemsize = dtype(name).itemsize
    if isinstance(spec, str) and spec in PRESETS:
        return tuple(count * itemsize for count in PRESETS[spec])
    if spec == "octaves":
        return tuple(size for size in OCTAVES_BYTES if size % itemsize == 0)
    if isinstance(spec, str) and not spec[:1].isdigit():
        raise ConfigError(
            f"sizes={spec} is unknown; allowed: {', '.join(PRESETS)}, octaves, {EXAMPLES}"
        )
    values = spec if isinstance(spec, list) else [spec]
    if not values:
        raise ConfigError("sizes=[] measures nothing; give at least one size")
    sizes = list[int]()
    for value in values:
        if isinstance(value, str) and (span := SIZE_RANGE.fullmatch(value)) is not None:
            sizes += _range_bytes(span, itemsize)
            continue
        size = _parsed_size(value)
        if not 1 <= size <= INT64_MAX:
            raise ConfigError(
                f"sizes=[{value}] is not from 1 to 2^63-1 bytes; write e.g. 64, 1KiB or 4MB"
            )
        if size % itemsize:
            near = max(itemsize, size // itemsize * itemsize)
            each = f"{name} elements ({itemsize} B each)"
            raise ConfigError(
                f"sizes=[{value}] is not a whole number of {each}; write e.g. [{near}]"
            )
        sizes.append(size)
    return tuple(dict.fromkeys(sizes))


def _range_bytes(span: re.Match[str], itemsize: int) -> list[int]:
    """The sizes of a range that are whole numbers of elements."""
    first = _parsed_size(span["first"])
    last_text = span["last"].strip()
    last = MAX_RANGE_BYTES if last_text == TO_MEMORY else _parsed_size(last_text)
    factor = span["factor"] and span["factor"].strip()
    if factor is not None and not (factor.isdecimal() and 2 <= int(factor) <= 1024):
        raise ConfigError(
            f"sizes={span[0]}: the factor {factor!r} is not a whole number from 2 to 1024"
        )
    if not 1 <= first <= last <= INT64_MAX:
        raise ConfigError(f"sizes={span[0]} does not rise from at least 1 B; write e.g. 8..1MiB")
    sizes = [first]
    while sizes[-1] * int(factor or 2) <= last:
        sizes.append(sizes[-1] * int(factor or 2))
    if last_text != TO_MEMORY and sizes[-1] != last:  # an end that the steps miss
        sizes.append(last)
    whole = [size for size in sizes if size % itemsize == 0]
    if not whole:
        raise ConfigError(
            f"sizes={span[0]} has no whole number of elements of {itemsize} B each; begin at"
            f" {itemsize}"
        )
    return whole


def _parsed_size(value: Any) -> int:
    try:
        return parse_bytes(value)
    except ConfigError as error:
        first, *rest = map(str.strip, OTHER_RANGE.split(str(value), maxsplit=1))
        if first[:1].isdigit() and rest and (rest[0] == TO_MEMORY or rest[0][:1].isdigit()):
            raise ConfigError(
                f"sizes={value}: a range has two dots: sizes={first}..{rest[0]}"
            ) from error
        raise ConfigError(f"sizes: {error}; a range is written 8..1MiB") from error
