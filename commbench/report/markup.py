"""HTML and SVG by hand, safe by construction: what is not Markup is escaped on its way in."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
VOID = {"meta", "br", "input"}
SVG_EMPTY = {"path", "line", "rect", "circle", "polygon", "polyline"}


class Markup(str):
    """Text that is markup already. Joining or formatting gives a plain str again, which is escaped when it is used."""

    __slots__ = ()


Child = str | None | Iterable["str | None"]


def escape(value: object) -> Markup:
    """Any value as text, also between quotes; control characters are shown as the replacement sign."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(UNPRINTABLE.sub("\ufffd", str(value)), quote=True))


def element(name: str, /, *children: Child, **attributes: object) -> Markup:
    """<name ...>children</name>. `class_` is class, `stroke_width` is stroke-width; None leaves an attribute out."""
    head = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Markup(f"<{name}{head}>")
    inside = joined(*children)
    if not inside and name in SVG_EMPTY:
        return Markup(f"<{name}{head}/>")
    return Markup(f"<{name}{head}>{inside}</{name}>")


def joined(*children: Child) -> Markup:
    """One after the other; lists are flattened, None is nothing."""
    parts: list[str] = []
    for child in children:
        if isinstance(child, str):
            parts.append(escape(child))
        elif child is not None:
            parts += [escape(one) for one in child if one is not None]
    return Markup("".join(parts))


def _number(value: object) -> object:
    """A tenth of a pixel is enough."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


def table(heads: Iterable[str], rows: Iterable[Iterable[str]], caption: str | None = None, **more: object) -> Markup:
    """A table with a head; it scrolls by itself where the page is narrow."""
    head = element("thead", element("tr", (element("th", cell, scope="col") for cell in heads)))
    body = element("tbody", (element("tr", (_cell(cell) for cell in row)) for row in rows))
    title = None if caption is None else element("caption", caption)
    return element("div", element("table", title, head, body, **more), class_="scroll")


def _cell(text: str) -> Markup:
    return element("td", text, class_="n" if text[:1].isdigit() or text[:1] == "-" else None)
