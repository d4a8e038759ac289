"""The one style of all pictures: colours, ticks with units, numbers.

Colours are those of Okabe and Ito (Color Universal Design, 2008), told apart with any colour vision; lines that share
one differ in their dashes as well. Yellow is left out: it vanishes on white.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from commbench.core.units import format_bytes, format_rate, format_seconds

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("", "7 3", "2 3", "9 3 2 3")
GOOD, BAD, QUIET = "#009E73", "#D55E00", "#8A8F98"
LINKS = {  # how two devices are wired, or a pair's class -> fill and ink: near is green, far is red
    "X": ("#E5E7EB", "#374151"), "NV": ("#009E73", "#FFFFFF"), "PIX": ("#56B4E9", "#000000"),
    "PXB": ("#0072B2", "#FFFFFF"), "PHB": ("#F0E442", "#000000"), "NODE": ("#E69F00", "#000000"),
    "SYS": ("#D55E00", "#FFFFFF"), "NET": ("#CC79A7", "#000000"),
}  # fmt: skip
UNKNOWN_LINK = ("#FFFFFF", "#374151")
RAMP = ((247, 251, 255), (158, 202, 225), (49, 130, 189), (8, 48, 107))  # light is fast, dark is slow
LINK_CLASSES = {  # of pairs: grey for a rank and itself, green within a node, orange between nodes; fast to slow
    "self": ((249, 250, 251), (209, 213, 219), (107, 114, 128), (31, 41, 55)),
    "same node": ((236, 253, 245), (140, 214, 190), (0, 158, 115), (0, 68, 50)),
    "other node": ((255, 247, 236), (253, 205, 140), (230, 130, 30), (110, 50, 0)),
}
INK_CHANGES = 0.5  # of the ramp, from which on white text is read better
MOST_TICKS = 8


class Colours:
    """A colour and dashes for each name, the same in all pictures of a page.

    Names that begin with the same two words (backend and engine) share a colour and differ in their dashes, as long as
    there are several such beginnings and dashes for all.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._shades: dict[str, dict[str, int]] = {}
        listed = list(dict.fromkeys(names))
        counts = Counter(_beginning(name) for name in listed)
        self._shared = len(counts) > 1 and max(counts.values()) <= len(DASHES)
        for name in listed:
            self.of(name)

    def of(self, name: str) -> tuple[str, str]:
        """Colour and stroke-dasharray."""
        shades = self._shades.setdefault(_beginning(name) if self._shared else name, {})
        place, shade = list(self._shades.values()).index(shades), shades.setdefault(name, len(shades))
        more = 0 if self._shared else place // len(PALETTE)
        return PALETTE[place % len(PALETTE)], DASHES[(shade + more) % len(DASHES)]


def _beginning(name: str) -> str:
    return " ".join(name.split(" ")[:2])


def link_colours(link: str) -> tuple[str, str]:
    """Fill and ink of a cell of the topology matrix: NV18 is an NV."""
    return LINKS.get(link.rstrip("0123456789"), UNKNOWN_LINK)


def ramp(share: float, stops: Sequence[tuple[int, int, int]] = RAMP) -> tuple[str, str]:
    """Fill and ink for a place between 0 (light) and 1 (dark)."""
    place = min(max(share, 0.0), 1.0) * (len(stops) - 1)
    left = min(int(place), len(stops) - 2)
    mixed = (round(a + (b - a) * (place - left)) for a, b in zip(stops[left], stops[left + 1], strict=True))
    return "#{:02X}{:02X}{:02X}".format(*mixed), "#FFFFFF" if share > INK_CHANGES else "#111827"


# ---------------------------------------------------------------- ticks


def byte_ticks(low: float, high: float) -> list[float]:
    """Powers of two that format_bytes writes short, at most MOST_TICKS of them."""
    first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
    step = next(step for step in (1, 2, 5, 10, 20, 40) if (last - first) // step < MOST_TICKS)
    return [2.0**exponent for exponent in range(first, last + 1) if exponent % step == 0]


def log_ticks(low: float, high: float) -> list[float]:
    """Decades; 1, 2 and 5 of them where there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    each = (1,) if last - first > 3 else (1, 2, 5)
    step = max(1, math.ceil((last - first) / MOST_TICKS))
    ticks = (digit * 10.0**exponent for exponent in range(first, last + 1, step) for digit in each)
    return [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


def linear_ticks(low: float, high: float) -> list[float]:
    """Round numbers, at most MOST_TICKS of them."""
    rough = (high - low) / (MOST_TICKS - 2)
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(one * scale for one in (1, 2, 5, 10) if one * scale >= rough * (1 - 1e-9))
    return [index * step for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def bytes_text(value: float) -> str:
    return format_bytes(round(value))


def seconds_text(value: float) -> str:
    """A tick has few digits: 1 ms, not 1.00 ms."""
    number, _, unit = format_seconds(value).partition(" ")
    return f"{float(number):g} {unit}"


def rate_text(value: float) -> str:
    return f"{float(format_rate(value)):g}".replace("e-0", "e-")


def percent_text(value: float) -> str:
    return f"{100 * value:.3g} %"


def interval_text(low: float, high: float) -> str:
    """Both ends of an interval of seconds, or what stands for none."""
    return "no interval" if math.isnan(low) or math.isnan(high) else f"{format_seconds(low)} .. {format_seconds(high)}"
