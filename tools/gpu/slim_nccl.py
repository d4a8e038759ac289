"""`python slim_nccl.py libnccl.so.2 OUT [90]`: NCCL's library for one GPU architecture, which
compresses to a few MB.

The code for other architectures, the code for linking and the debugging information become zeros.
Size and offsets stay, so what is loaded for this architecture is NVIDIA's own code, byte for byte.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# of the ELF header
SECTION_TABLE_AT = 0x28
SECTION_COUNTS_AT = 0x3A
# of a region of device code (fatbin)
REGION_MAGIC = 0xBA55ED50
ARCHITECTURE_AT = 28

Range = tuple[int, int]  # offset, size


def sections(data: bytearray) -> Mapping[str, Range]:
    """The ELF sections by name."""
    (table_at,) = struct.unpack_from("<Q", data, SECTION_TABLE_AT)
    entry_size, count, names_number = struct.unpack_from("<HHH", data, SECTION_COUNTS_AT)
    entries = [
        struct.unpack_from("<IIQQQQ", data, table_at + number * entry_size)
        for number in range(count)
    ]
    names_at = entries[names_number][4]
    ranges = {}
    for entry in entries:
        begin = names_at + entry[0]
        ranges[data[begin : data.index(0, begin)].decode()] = (entry[4], entry[5])
    return ranges


def code_of_architectures(data: bytearray, section: Range) -> Iterator[tuple[int, Range]]:
    """The architecture and the range of each piece of device code."""
    position, size = section
    end = position + size
    while position < end - 16:
        if struct.unpack_from("<I", data, position)[0] != REGION_MAGIC:
            position += 8
            continue
        header_bytes, region_bytes = struct.unpack_from("<HQ", data, position + 6)
        entry = position + header_bytes
        position = entry + region_bytes
        while entry < position:
            own_header, own_bytes = struct.unpack_from("<IQ", data, entry + 4)
            (architecture,) = struct.unpack_from("<I", data, entry + ARCHITECTURE_AT)
            yield architecture, (entry + own_header, own_bytes)
            entry += own_header + own_bytes


def main(words: Sequence[str]) -> None:
    kept = int(words[2]) if len(words) > 2 else 90
    data = bytearray(Path(words[0]).read_bytes())
    known = sections(data)
    unused = [
        known[name] for name in known if name == "__nv_relfatbin" or name.startswith(".debug")
    ]
    unused += [
        code
        for architecture, code in code_of_architectures(data, known[".nv_fatbin"])
        if architecture != kept
    ]
    for at, size in unused:
        data[at : at + size] = bytes(size)
    Path(words[1]).write_bytes(data)


if __name__ == "__main__":
    main(sys.argv[1:])
