"""What is said of slow ranks, slow pairs and asymmetric pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from commbench.analysis.case_names import differing
from commbench.core.layout import Pair, pairs_text
from commbench.core.texts import setting_texts
from commbench.core.units import format_bytes, format_factor, format_seconds
from commbench.stats.outliers import SlowPart

from .judgement import Excess
from .matrix import CLASSES, MATRIX_VARIABLES, Matrix
from .slow_ranks import SlowLinks


def matrix_name(matrix: Matrix, compared: Iterable[Matrix]) -> str:
    """`p2p_latency 1 KiB, native`: with what tells it from the others of its benchmark and size."""
    shared = matrix.shared
    place = shared.benchmark, shared.message_bytes
    rows = (each.shared for each in compared)
    alike = [row for row in rows if (row.benchmark, row.message_bytes) == place]
    settings = setting_texts(shared, differing(alike, MATRIX_VARIABLES))
    return ", ".join([f"{shared.benchmark} {format_bytes(shared.message_bytes)}", *settings])


def rank_text(rank: int, found: SlowPart | SlowLinks) -> str:
    if isinstance(found, SlowLinks):
        is_all = found.own == found.every
        share = f"all {found.own}" if is_all else f"{found.own} of {found.every}"
        return f"rank {rank} is in {share} slow pairs: look at the rank, not at the link"
    return (
        f"rank {rank} takes {100 * (found.ratio - 1):.0f} % longer with its pairs than the median"
        f" rank, {found.spreads:.1f} spreads of the ranks (the limit is {found.limit:.1f}): look at"
        " the rank, not at a link; commbench locate tells more"
    )


def slow_link_text(matrix: Matrix, directions: Mapping[Pair, Excess], ratio: float) -> str:
    """Of the slow directions of a link, one or both, and the larger of their ratios."""
    times = [
        f"{pairs_text([pair])} takes {format_seconds(excess.median_s)}"
        for pair, excess in directions.items()
    ]
    pair = next(iter(directions))
    text = (
        f"{' and '.join(times)}, {format_factor(ratio)} the"
        f" {format_seconds(directions[pair].reference_s)} of the other pairs"
        f" {CLASSES[matrix.layout.link(pair)]}"
    )
    if len(directions) == 2 and not matrix.is_one_way:
        text += " (a round trip has both directions: p2p_bandwidth shows which is slow)"
    return text


def asymmetry_text(pair: Pair, excess: Excess) -> str:
    return (
        f"{pairs_text([pair])} takes {format_factor(excess.ratio)} the time of"
        f" {pairs_text([pair[::-1]])} ({format_seconds(excess.median_s)},"
        f" {format_seconds(excess.reference_s)})"
    )
