"""Layer waterfall: the same message through each backend and engine of one machine; what each one adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commbench.core.units import format_seconds

from .axes import WIDTH
from .markup import Markup, element
from .style import BAD, QUIET, ramp

LAYERS = {  # backend and engine -> what a reader calls it
    ("memory_copy", "native"): "memory copy", ("memory_copy", "python"): "memory copy (Python)",
    ("mpi", "native"): "MPI from C (native)", ("mpi", "python"): "MPI from Python (mpi4py)",
    ("tcp", "python"): "plain TCP sockets", ("gloo", "python"): "torch gloo",
    ("cupy_nccl", "python"): "raw NCCL", ("nccl", "python"): "torch NCCL", ("ipc_copy", "python"): "CUDA IPC copy",
}  # fmt: skip
LABELS, NUMBERS, BAR, GAP = 170.0, 150.0, 24.0, 10.0


@dataclass(frozen=True)
class Layer:
    """One way for the message; seconds."""

    backend: str
    engine: str
    median_s: float

    @property
    def name(self) -> str:
        return LAYERS.get((self.backend, self.engine), f"{self.backend} ({self.engine})")


def waterfall(title: str, layers: Sequence[Layer]) -> Markup:
    """A bar a layer, the fastest first: light is what the one above took, dark what this one adds."""
    order = sorted(layers, key=lambda layer: layer.median_s)
    width, most = WIDTH, order[-1].median_s
    scale = (width - LABELS - NUMBERS) / most
    bars = [_bar(layer, previous, LABELS, place * (BAR + GAP), scale)
            for place, (layer, previous) in enumerate(zip(order, [None, *order[:-1]], strict=True))]  # fmt: skip
    height = len(order) * (BAR + GAP)
    return element("svg", element("title", title), bars, viewBox=f"0 0 {width:g} {height:g}", role="img",
                   class_="figure", aria_label=title)  # fmt: skip


def _bar(layer: Layer, previous: Layer | None, left: float, top: float, scale: float) -> Markup:
    before = previous.median_s if previous else 0.0
    more = layer.median_s - before
    tip = f"{layer.name}: {format_seconds(layer.median_s)}"
    tip += f", {format_seconds(more)} more than {previous.name}" if previous else ""
    parts = [element("rect", x=left, y=top, width=before * scale, height=BAR, fill=ramp(0.18)[0])]
    colour = BAD if previous else QUIET
    parts.append(element("rect", x=left + before * scale, y=top, width=max(more * scale, 1.0), height=BAR, fill=colour))
    said = format_seconds(layer.median_s) + (f"  (+{format_seconds(more)})" if previous else "")
    texts = [
        element("text", layer.name, x=left - 8, y=top + BAR * 0.7, text_anchor="end"),
        element("text", said, x=left + layer.median_s * scale + 8, y=top + BAR * 0.7),
    ]
    return element("g", element("title", tip), parts, texts, class_="layer", tabindex="0")
