"""What the kernel has counted for one TCP connection: struct tcp_info of Linux (include/uapi/linux/tcp.h)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

INFO_BYTES = 512  # more than any kernel fills; it says how much it wrote
UNKNOWN = 0xFFFFFFFF  # min_rtt before the first sample


@dataclass(frozen=True)
class Field:
    """One number: its offset in the struct, its struct format, and what makes it SI units."""

    offset: int
    format: str
    factor: float = 1.0


# the struct only ever grew at its end, so an offset holds for every kernel that has the field
FIELDS = {
    "mss": Field(16, "=I"),
    "rtt_s": Field(68, "=I", 1e-6),
    "cwnd": Field(80, "=I"),  # segments
    "retransmits": Field(100, "=I"),  # segments, since the connection was made
    "bytes_acked": Field(120, "=Q"),
    "bytes_received": Field(128, "=Q"),
    "min_rtt_s": Field(148, "=I", 1e-6),
    "delivery_bytes_per_s": Field(160, "=Q"),  # the kernel's newest estimate
    "busy_s": Field(168, "=Q", 1e-6),  # with data in flight, and of that:
    "receiver_limited_s": Field(176, "=Q", 1e-6),  # ... waiting for the receive window
    "buffer_limited_s": Field(184, "=Q", 1e-6),  # ... waiting for the send buffer
}


def parse_info(raw: bytes) -> dict[str, float]:
    """The fields that lie within `raw`; an older kernel's shorter struct gives fewer."""
    found = {}
    for name, field in FIELDS.items():
        if field.offset + struct.calcsize(field.format) <= len(raw):
            (value,) = struct.unpack_from(field.format, raw, field.offset)
            if value != UNKNOWN:
                found[name] = value * field.factor
    return found
