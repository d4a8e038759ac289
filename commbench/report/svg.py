"""Charts drawn by matplotlib as inline SVG: marks show a text on hover, points can be links, series
can be hidden."""

from __future__ import annotations

import functools
import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from .figures import (
    BAND_OPACITY,
    GRID,
    bytes_text,
    line_style,
    linear_ticks,
    log_ticks,
    set_ticks,
    size_ticks,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from matplotlib.artist import Artist

WIDTH = 600.0
HEIGHT = 330.0  # SVG user units, which are matplotlib's points
LEFT = 78.0
RIGHT_MARGIN = 16.0
TOP_MARGIN = 12.0
BOTTOM = 48.0  # of the axes
POINTS_PER_INCH = 72
ROOM = 0.04  # of an axis, beyond the data
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "commbench",  # the same data, the same file
    "text.parse_math": False,  # a $ in a name is a $
    "lines.scale_dashes": False,
    "font.size": 9.5,
    "axes.edgecolor": "none",
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "grid.color": GRID,
}


def clean(text: object) -> str:
    """The text with the characters that HTML and XML forbid shown as the replacement sign."""
    return FORBIDDEN.sub("\ufffd", str(text))


class Chart:
    """Two axes of matplotlib in the style of the page; see svg()."""

    def __init__(
        self, title: str, width: float = WIDTH, height: float = HEIGHT, left: float = LEFT
    ) -> None:
        from matplotlib.figure import Figure

        self.title = clean(title)
        # id -> what its SVG element needs
        self._changes: dict[str, Callable[[ElementTree.Element], None]] = {}
        with _settings():
            self._figure = Figure(
                figsize=(width / POINTS_PER_INCH, height / POINTS_PER_INCH), facecolor="none"
            )
            box = (
                left / width,
                BOTTOM / height,
                (width - left - RIGHT_MARGIN) / width,
                (height - TOP_MARGIN - BOTTOM) / height,
            )
            self.axes = self._figure.add_axes(box)
            self.axes.grid(True)
            self.axes.tick_params(length=0, pad=6)
            inside = width - left - RIGHT_MARGIN, height - TOP_MARGIN - BOTTOM
            self.axes.xaxis.set_label_coords(0.5, (12 - BOTTOM) / inside[1])
            self.axes.yaxis.set_label_coords((20 - left) / inside[0], 0.5)

    def log(
        self, name: str, label: str, values: Iterable[float], text: Callable[[float], str]
    ) -> tuple[float, float]:
        """Make `x` or `y` logarithmic, with all positive values, at least a factor of two wide;
        returns its ends.

        With bytes_text its ticks are the sizes, or powers of two where these are many.
        """
        known = [value for value in values if 0 < value < math.inf] or [1.0]
        is_size = text is bytes_text
        low = min(known)
        high = max(known)
        spread = max(math.log(high / low), math.log(2))
        room = spread * ROOM + max(math.log(2) - math.log(high / low), 0) / 2
        low = low * math.exp(-room)
        high = high * math.exp(room)
        getattr(self.axes, f"set_{name}scale")("log")
        self._limits(
            name,
            label,
            (low, high),
            size_ticks(known, low, high) if is_size else log_ticks(low, high),
            text,
        )
        return low, high

    def linear(
        self,
        name: str,
        label: str,
        values: Iterable[float],
        text: Callable[[float], str],
        whole: bool = False,
    ) -> None:
        """Make `x` or `y` linear, from 0 to the largest value; `whole`: ticks at whole numbers
        only."""
        high = (
            max([value for value in values if math.isfinite(value)], default=0.0) * (1 + ROOM)
            or 1.0
        )
        ticks = [tick for tick in linear_ticks(0.0, high) if not whole or tick.is_integer()]
        self._limits(name, label, (0.0, high), ticks, text)

    def categories(self, label: str, names: Sequence[str]) -> None:
        """An x axis with a tick per name at 0, 1, 2 ..."""
        self._limits(
            "x",
            label,
            (-0.5, len(names) - 0.5),
            range(len(names)),
            lambda at: clean(names[round(at)]),
        )

    def _limits(
        self, name: str, label: str, ends: tuple[float, float], ticks: Sequence[float], text: Any
    ) -> None:
        with _settings():
            axis = self.axes.xaxis if name == "x" else self.axes.yaxis
            set_ticks(axis, ticks, text)
            getattr(self.axes, f"set_{name}lim")(*ends)
            axis.set_label_text(clean(label))

    def line(
        self,
        xs: Sequence[float],
        ys: Sequence[float],
        colour: str,
        dashes: str = "",
        series: str = "",
    ) -> None:
        """Straight lines through the points; a gap where a value is NaN."""
        (line,) = self.axes.plot(
            xs, ys, color=colour, linestyle=line_style(dashes), linewidth=2, clip_on=False
        )
        self._change(line, functools.partial(_label, attributes=_series(series)))

    def band(
        self,
        xs: Sequence[float],
        lows: Sequence[float],
        highs: Sequence[float],
        colour: str,
        series: str = "",
    ) -> None:
        """The area between lows and highs, in one piece per stretch of neighbours that have
        both."""
        known = np.flatnonzero(np.isfinite(np.add(lows, highs)))
        for at in np.split(known, np.flatnonzero(np.diff(known) > 1) + 1):
            if at.size > 1:
                there_and_back = [xs[i] for i in (*at, *at[::-1])]
                outline = [lows[i] for i in at] + [highs[i] for i in at[::-1]]
                (area,) = self.axes.fill(
                    there_and_back,
                    outline,
                    color=colour,
                    alpha=BAND_OPACITY,
                    linewidth=0,
                    clip_on=False,
                )
                self._change(
                    area, functools.partial(_label, attributes={"class": "band"} | _series(series))
                )

    def points(
        self,
        xs: Sequence[float],
        ys: Sequence[float],
        tips: Sequence[str],
        colour: str,
        series: str = "",
        links: Sequence[str | None] = (),
        radius: float = 3.4,
    ) -> None:
        """Points that show their tip and, with a link, lead to more; a value that is NaN has
        none."""
        at = [index for index, y in enumerate(ys) if math.isfinite(y)]
        (dots,) = self.axes.plot(
            [xs[i] for i in at],
            [ys[i] for i in at],
            "o",
            markersize=2 * radius,
            color=colour,
            clip_on=False,
            zorder=3,
        )
        circle = {"r": f"{radius:g}", "fill": colour, "class": "dot", "tabindex": "0"}
        texts = [(tips[i], links[i] if links else None) for i in at]
        self._change(
            dots,
            functools.partial(
                _draw_circles, attributes=_series(series), circle=circle, texts=texts
            ),
        )

    def bar(
        self,
        left: float,
        bottom: float,
        width: float,
        height: float,
        colour: str,
        tip: str,
        group: str = "",
        series: str = "",
    ) -> None:
        """A rectangle that shows its tip; `group` is its class, for the script."""
        from matplotlib.patches import Rectangle

        bar = self.axes.add_patch(
            Rectangle((left, bottom), width, height, color=colour, linewidth=0, clip_on=False)
        )
        self._change(
            bar,
            functools.partial(
                _label,
                attributes={"class": group or "bar", "tabindex": "0"} | _series(series),
                tip=tip,
            ),
        )

    def text(
        self, x: float, y: float, text: str, offset: float = 0.0, anchor: str = "left"
    ) -> None:
        """A text beside a place, `offset` points to the right."""
        with _settings():
            self.axes.annotate(
                clean(text),
                (x, y),
                (offset, 0),
                textcoords="offset points",
                va="center",
                ha=anchor,
                annotation_clip=False,
            )

    def _change(self, artist: Artist, change: Callable[[ElementTree.Element], None]) -> None:
        """Have svg() apply a change to the element of the artist, which it finds by its id."""
        name = f"mark-{len(self._changes)}"
        artist.set_gid(name)
        self._changes[name] = change

    def svg(self) -> str:
        """The chart as an <svg> element without ids, style sheets or links to elsewhere."""
        file = io.BytesIO()
        with _settings(), warnings.catch_warnings():
            # the browser has fonts of its own
            warnings.filterwarnings("ignore", "Glyph", UserWarning)
            self._figure.savefig(
                file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
            )
        root = ElementTree.fromstring(file.getvalue())
        for parent in list(root.iter()):
            parent.tag = parent.tag.rpartition("}")[2]
            for child in [node for node in parent if node.tag.endswith(("}defs", "}metadata"))]:
                parent.remove(child)
        for node in list(root.iter()):
            change = self._changes.get(node.attrib.pop("id", ""))
            node.attrib.pop("clip-path", None)
            node.text = node.text.strip() if node.text and node.tag != "text" else node.text
            node.tail = None
            if node.tag == "text":  # the page's style sheet has the font
                style = node.attrib.pop("style", "")
                node.set(
                    "style",
                    "; ".join(part for part in style.split("; ") if not part.startswith("font")),
                )
            elif "d" in node.attrib:
                node.set("d", re.sub(r"\.(\d)\d*", r".\1", " ".join(node.attrib["d"].split())))
            if change is not None:
                change(node)
        view = root.attrib["viewBox"]
        root.attrib.clear()
        root.attrib |= {"class": "figure", "role": "img", "viewBox": view, "aria-label": self.title}
        _insert_title(root, self.title)
        return ElementTree.tostring(root, encoding="unicode")


def _settings() -> AbstractContextManager[None]:
    import matplotlib

    return matplotlib.rc_context(SETTINGS)


def _series(name: str) -> dict[str, str]:
    return {"data-series": clean(name)} if name else {}


def _insert_title(node: ElementTree.Element, text: str) -> None:
    title = ElementTree.Element("title")
    title.text = clean(text)
    node.insert(0, title)


def _label(node: ElementTree.Element, attributes: Mapping[str, str], tip: str = "") -> None:
    """Give an element attributes, and a text that is shown on hover."""
    node.attrib |= attributes
    if tip:
        _insert_title(node, tip)


def _draw_circles(
    node: ElementTree.Element,
    attributes: Mapping[str, str],
    circle: Mapping[str, str],
    texts: Sequence[tuple[str, str | None]],
) -> None:
    """Replace matplotlib's <use> of a marker by a <circle> with these attributes; `texts`: tip and
    link of each."""
    node.attrib |= attributes
    uses = list(node.iter("use"))
    for child in list(node):
        node.remove(child)
    for use, (tip, link) in zip(uses, texts, strict=True):
        place = {"cx": f"{float(use.attrib['x']):.1f}", "cy": f"{float(use.attrib['y']):.1f}"}
        parent = node if link is None else ElementTree.SubElement(node, "a", {"href": link})
        _insert_title(ElementTree.SubElement(parent, "circle", {**place, **circle}), tip)
