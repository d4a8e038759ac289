"""What a person reads: a table, a matrix where there are many pairs, and what stands out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commbench.core.columns import CASES
from commbench.writers.console import Console, table_text

WIDTH = 140
RUN = {
    "backend": {"name": "gloo", "library": "x"}, "world": {"size": 8, "nodes": 1}, "timing": "quick", "label": "",
    "folder": "results/r", "cases": 1, "at_most_s": 2.0,
}  # fmt: skip


def row(**more: Any) -> dict[str, Any]:
    values: dict[str, Any] = {column.name: None for column in CASES}
    values |= {"benchmark": "p2p_latency", "layout": "1x8", "dtype": "float32", "engine": "python", "status": "ok"}
    values |= {"message_bytes": 1024, "median_s": 2e-6, "flags": [], "ranks_per_node": 8, "repetitions": 30}
    values |= {"schedule": "serial"} | more
    near = {name: more.get(name, values["median_s"]) for name in ("ci_low_s", "ci_high_s")}
    return values | (near if values["status"] == "ok" else {"median_s": None})


def matrix(size: int, planted: dict[str, Any] | None = None, **more: Any) -> list[dict[str, Any]]:
    more = {"ranks_per_node": size} | more
    pairs = [f"{first}-{second}" for first in range(size) for second in range(size)]
    return [row(pair=pair, **(more | (planted or {}).get(pair, {}))) for pair in pairs]


def lines(*rows: dict[str, Any]) -> list[str]:
    return table_text(RUN, list(rows)).splitlines()


def cells(text: list[str], heading: str) -> list[str]:
    """A column of the table, by the place of its right-aligned heading."""
    at = next(index for index, line in enumerate(text) if line.strip().startswith("benchmark"))
    end = text[at].index(heading) + len(heading)
    return [line[:end].split()[-1] for line in text[at + 1 :] if line.startswith(" ")]


# ---------------------------------------------------------------- table


@pytest.mark.parametrize(
    ("name", "values"),
    [("root", (0, 3)), ("streams", (1, 36)), ("window", (2, 64)), ("schedule", ("rounds", "turns"))],
)
def test_a_variable_is_in_the_title_where_it_is_one_and_a_column_where_it_varies(
    name: str, values: tuple[Any, ...]
) -> None:
    alike = lines(row(**{name: values[0]}), row(**{name: values[0], "message_bytes": 8}), row(message_bytes=16))
    assert f", {name} {values[0]}" in alike[0]
    assert name not in alike[1]
    varying = lines(*(row(**{name: value}) for value in values))
    assert name not in varying[0]
    assert name in varying[1]
    assert [str(value) in line.split() for value, line in zip(values, varying[2:4], strict=True)] == [True, True]


def test_what_says_nothing_is_not_said() -> None:
    barrier = row(benchmark="barrier", dtype="none", message_bytes=0, schedule=None, algbw_gb_per_s=None)
    text = lines(barrier, row(benchmark="all_reduce", schedule=None))
    assert text[0].endswith("dtype float32, engine python")
    assert "serial" not in "".join(lines(row(pair="0-1")))
    assert cells(text, "message")[0] == "KiB"
    assert cells(text, "message")[1] == cells(text, "algbw GB/s")[1] == "-"


def test_progress_of_a_barrier_has_no_size(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.begin(RUN, "results/r")
    console.case(row(benchmark="barrier", dtype="none", message_bytes=0), {}, {})
    assert capsys.readouterr().err.splitlines() == ["1 cases, at most 2.00 s: results/r", "[1/1] barrier 1x8: 2.00 us"]


def test_many_pairs_at_once_are_shortened() -> None:
    pairs = " ".join(f"{rank}-{rank + 32}" for rank in range(32))
    assert "pair 0-32 .. 31-63 (32 at once)" in lines(row(pair=pairs))[0]
    assert "pair 0-2 1-3," in lines(row(pair="0-2 1-3"))[0]


def test_rows_stand_in_the_order_of_numbers() -> None:
    pairs = ["0-1", "0-2", "0-10", "2-0", "10-0"]
    text = lines(*(row(pair=pair, message_bytes=size) for size in (1024, 8) for pair in pairs[::-1]))
    assert [line.split()[1:4] for line in text[2:12]] == [
        [pair, *size] for pair in pairs for size in (["8", "B"], ["1", "KiB"])
    ]


# ---------------------------------------------------------------- matrix


@pytest.mark.parametrize("size", [4, 8, 16])
def test_all_pairs_of_up_to_16_ranks_are_a_matrix_that_fits(size: int) -> None:
    text = lines(*matrix(size, {"0-1": {"median_s": 123e-6}}))
    assert "p2p_latency, 1 KiB: median in us, senders down, receivers across, ! slow" in text
    ranks = [str(rank) for rank in range(size)]
    assert text[2].split() == ranks
    assert [line.split()[0] for line in text[3 : 3 + size]] == ranks
    assert text[3].split()[1:] == ["2.00", "!123", *["2.00"] * (size - 2)]
    assert max(map(len, text)) <= WIDTH
    assert f"  same node: 2.00 in {size * (size - 1)} pairs, fastest 2.00 0-2, slowest 123 0-1" in text
    assert not any(line.startswith(" p2p_latency") for line in text)


def test_beyond_16_ranks_only_the_classes_are_printed() -> None:
    text = lines(*matrix(17))
    assert text[1:4] == [
        "p2p_latency, 1 KiB: median in us",
        "  self: 2.00 in 17 pairs, fastest 2.00 0-0, slowest 2.00 16-16",
        "  same node: 2.00 in 272 pairs, fastest 2.00 0-1, slowest 2.00 16-15",
    ]
    assert len(text) < 10


def test_messages_in_flight_are_shown_as_a_rate() -> None:
    text = lines(*matrix(4, window=64, algbw_gb_per_s=12.5))
    assert "p2p_latency, 1 KiB: median in GB/s, senders down, receivers across" in text
    assert text[3].split() == ["0", *["12.5"] * 4]


def test_a_matrix_that_varies_says_in_what() -> None:
    text = lines(*matrix(4, engine="python"), *matrix(4, engine="native"), *matrix(4, message_bytes=8, engine="native"))
    heads = [line.partition(":")[0] for line in text if "senders down" in line]
    assert heads == [
        f"p2p_latency, {what}" for what in ("8 B, engine native", "1 KiB, engine native", "1 KiB, engine python")
    ]


def test_nine_pairs_and_a_chain_stay_a_table() -> None:
    chain = [row(pair=f"{rank}-{rank + 1}") for rank in range(20)]
    for rows in (matrix(3), chain):
        text = lines(*rows)
        assert "senders" not in "".join(text)
        assert sum(line.startswith(" p2p_latency") for line in text) == len(rows)


def test_other_cases_keep_their_table_beside_a_matrix() -> None:
    text = lines(*matrix(4), row(benchmark="all_reduce", schedule=None), row(pair="0-2 1-3"))
    assert [line.split()[0] for line in text[2:4]] == ["all_reduce", "p2p_latency"]
    assert text[4] == ""
    assert "senders down" in text[5]


def test_a_hole_of_a_matrix_tells_why() -> None:
    selves = {f"{rank}-{rank}": {"status": "skipped", "reason": "no [self] sends"} for rank in range(4)}
    noisy = {"0-1": {"flags": ["noisy"]}, "1-0": {"flags": ["noisy", "drifting"]}}
    text = lines(*matrix(4, selves | noisy))
    assert [line.split()[index + 1] for index, line in enumerate(text[3:7])] == ["skip"] * 4
    assert "  flags: drifting 1, noisy 2" in text
    assert "  skipped 0-0 1-1 2-2 3-3: no [self] sends" in text
    assert any(line.startswith("noisy: ") for line in text)


# ---------------------------------------------------------------- findings


def test_at_most_ten_findings_are_printed_and_the_rest_counted() -> None:
    planted = {f"{rank}-{rank + 1}": {"median_s": 5e-6} for rank in range(0, 8, 2)}
    text = lines(*(one for size in (8, 16, 32) for one in matrix(8, planted, message_bytes=size)))
    at = text.index("slow: above 1.2 x the median of its class (self, same node, other node) and 3 x its spread")
    assert all(line.startswith("  p2p_latency ") for line in text[at + 1 : at + 11])
    assert text[at + 11 :] == ["  ... and 14 more: commbench.slow_pairs('results/r')"]


def test_a_slow_rank_stands_for_its_pairs() -> None:
    planted = {pair: {"median_s": 5e-6} for rank in (0, 1, 2) for pair in (f"{rank}-3", f"3-{rank}")}
    text = lines(*matrix(4, planted))
    assert text[-1] == "  p2p_latency 1 KiB: rank 3 is in all 6 slow pairs: look at the rank, not at the link"
    assert "slow: above" in text[-2]


def test_no_finding_is_no_line() -> None:
    assert lines(*matrix(4))[-1].startswith("median: per message")


def test_a_planted_slow_pair_is_found_end_to_end(world: Callable[..., Any]) -> None:
    """A factor of 3 on 0 -> 2 makes half a round trip of 2 -> 0 -> 2 twice as long, whoever begins."""
    done = world(
        "commbench", "backend=simulated", "layout=2x3", "pairs=all", "benchmark=p2p_latency", "sizes=[8]",
        "timing=quick", "timing.warmup_s=0", "backend.model.slow_pair=0-2", "backend.model.slow_factor=3",
        "backend.model.noise=0.02", "backend.model.other_node_factor=10", "backend.model.call_s=0",
    )  # fmt: skip
    assert done.status == 0, done.explain()
    found = [line for line in done.stdout.splitlines() if "x the typical" in line]
    assert sorted(line.split()[3] for line in found) == ["0-2", "2-0"]
    assert all("of the 11 other pairs on one node" in line for line in found)
    text = done.stdout.splitlines()
    assert max(len(line) for line in text if "typical" in line or "node" in line) <= WIDTH
    assert sum("!" in line for line in text) == 3  # the head and two cells


# ---------------------------------------------------------------- GPUs


def test_clocks_are_never_in_one_table() -> None:
    text = lines(row(timing_mode="host_sync"), row(timing_mode="graph", median_s=1e-6), row(timing_mode="host_sync"))
    heads = [index for index, line in enumerate(text) if line.strip().startswith("benchmark")]
    assert len(heads) == 2
    assert [text[index - 1].split(":")[0] for index in heads] == ["timing_mode host_sync", "timing_mode graph"]
    assert [cells(text[index - 1 :], "median")[:1] for index in heads] == [["us"], ["us"]]
    one = lines(row(timing_mode="graph"))
    assert "timing_mode graph" in one[0] and not any(line.startswith("timing_mode") for line in one)
    assert "timing_mode" not in lines(row(timing_mode="host"))[0]


def test_the_share_of_the_limit_is_told_where_there_is_one() -> None:
    assert cells(lines(row(efficiency=0.9345), row(message_bytes=8)), "of limit") in (["-", "%"], ["%", "-"])
    assert " 93.4 % " in "\n".join(lines(row(efficiency=0.934)))
    assert not any("of limit" in line for line in lines(row()))
