"""Verdicts from data frames: planted changes, thresholds, the join, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launch_frames import QUIET, frame, launches, row

from commbench.analysis.compare import COMPARISON_COLUMNS, Rules, compare, compare_sides
from commbench.analysis.sides import parse_by, read_side
from commbench.core.errors import ConfigError

TRIALS = 200


def many(count: int, shift: float, seed: int, trials: int = TRIALS) -> pd.DataFrame:
    """200 cases of 8, 16, ... B around 1 ms, in which every launch has a luck of 2 %."""
    times = 1e-3 * np.exp(shift + np.random.default_rng(seed).normal(0, 0.02, (trials, count)))
    sizes = [
        {"message_bytes": 8 * (case + 1), "elements": 2 * (case + 1)} for case in range(trials)
    ]
    return frame(
        row(n, float(times[case, n]), **sizes[case]) for case in range(trials) for n in range(count)
    )


# ---------------------------------------------------------------- verdicts


def test_equal_sides_differ_in_at_most_5_percent_of_200_cases() -> None:
    table = compare(many(4, 0, 1), many(4, 0, 2))
    assert len(table) == TRIALS and table.verdict.notna().all()
    assert table.verdict.isin(["FASTER", "SLOWER"]).sum() <= 0.05 * TRIALS


def test_ten_launches_find_10_percent_in_at_least_95_percent_of_200_cases() -> None:
    table = compare(many(10, 0, 3), many(10, math.log(1.1), 4))
    assert (table.verdict == "SLOWER").sum() >= 0.95 * TRIALS
    assert table.ratio.median() == pytest.approx(1.1, rel=0.01)
    assert ((table.ratio_low < 1.1) & (table.ratio_high > 1.1)).mean() > 0.9
    assert list(table.message_bytes) == [8 * (case + 1) for case in range(TRIALS)]


def test_the_row_says_what_was_compared() -> None:
    new = launches([1.2 * median_s for median_s in QUIET], p95_s=3e-3)
    (record,) = compare(launches(QUIET, p95_s=2e-3), new).to_dict("records")
    assert tuple(record) == COMPARISON_COLUMNS
    assert (record["verdict"], record["sides"]) == ("SLOWER", "both")
    assert (record["base_launches"], record["new_launches"]) == (5, 5)
    assert (record["base_median_s"], record["new_median_s"]) == pytest.approx((1.001e-3, 1.2012e-3))
    assert (record["ratio"], record["p95_ratio"]) == pytest.approx((1.2, 1.5))
    assert record["ratio_low"] <= record["ratio"] <= record["ratio_high"]
    assert record["p_value"] == record["p_holm"] == pytest.approx(2 / 252)
    assert math.isnan(record["p99_ratio"]) and record["delta"] == 0.02


def test_a_percentile_is_compared_over_the_launches_that_have_one() -> None:
    base = launches(QUIET).assign(p95_s=[None, 2e-3, 3e-3, 7e-3, None], p99_s=[9e-3] * 5)
    new = launches(QUIET).assign(p95_s=[4e-3, 6e-3, 9e-3, None, None])
    (record,) = compare(base, new).to_dict("records")
    assert record["p95_ratio"] == pytest.approx(6 / 3)
    assert math.isnan(record["p99_ratio"]), "no launch of NEW has one"


@pytest.mark.parametrize(
    ("base", "new", "verdict"), [(5, 1, "SUSPECT"), (5, 2, "SUSPECT"), (1, 5, "UNDECIDED")]
)
def test_too_few_launches_on_one_side_give_no_interval(base: int, new: int, verdict: str) -> None:
    sides = launches(QUIET[:base]), launches([2 * median_s for median_s in QUIET[:new]])
    (record,) = compare(*sides).to_dict("records")
    assert record["ratio"] == pytest.approx(2, rel=0.01)
    assert record["verdict"] == verdict
    assert math.isnan(record["ratio_low"]) and math.isnan(record["p_value"])


def test_holm_counts_all_cases() -> None:
    base = pd.concat([launches(QUIET, message_bytes=size) for size in (8, 16, 32)])
    new = pd.concat(
        [launches([2 * median_s for median_s in QUIET], message_bytes=size) for size in (8, 16, 32)]
    )
    assert list(compare(base, new).p_holm) == pytest.approx([3 * 2 / 252] * 3)


def test_noise_between_equal_launches_raises_the_threshold() -> None:
    new = launches([1.1 * median_s for median_s in QUIET])
    loud = launches([1e-3 * factor for factor in (0.8, 0.9, 1.0, 1.1, 1.2, 1.3)])
    assert list(compare(launches(QUIET), new).verdict) == ["SLOWER"]
    (record,) = compare(launches(QUIET), new, aa=loud).to_dict("records")
    assert record["delta"] > 0.11 and record["verdict"] == "SAME"
    assert list(compare(launches(QUIET), new, aa=launches(QUIET[:4])).delta) == [0.02]
    with pytest.raises(ConfigError, match="no case with 4 measured launches"):
        compare(launches(QUIET), new, aa=launches(QUIET[:3]))


def test_a_case_without_noise_of_its_own_has_the_largest_of_the_others() -> None:
    """A/A launches at 8, 16 and 24 B, of which those at 16 B are the loudest."""
    shares = {8: 0.1, 16: 0.2, 24: 0.05}
    aa = pd.concat(
        launches([1e-3 * (1 + step * share) for step in range(5)], message_bytes=size)
        for size, share in shares.items()
    )
    base = pd.concat([launches(QUIET, message_bytes=size) for size in (8, 16, 24, 32)])
    delta = compare(base, base, aa=aa).set_index("message_bytes").delta
    assert 0.02 < delta[24] < delta[8] < delta[16] == delta[32]
    of_two = [aa, launches([1e-3] * 4, message_bytes=16, engine="virtual")]
    deltas = []
    for parts in (of_two, of_two[::-1]):  # the louder side of what is compared
        (record,) = compare(
            launches(QUIET, message_bytes=16), launches(QUIET, message_bytes=16, engine="native"),
            by="engine", aa=pd.concat(parts),
        ).to_dict("records")  # fmt: skip
        deltas.append(record["delta"])
    assert deltas[0] == deltas[1] > delta[8]


def test_a_rigorous_run_is_several_launches_but_one_of_a_pair() -> None:
    """Three fresh worlds of two visits each in every run."""
    numbers = [1, 1, 2, 2, 3, 3]
    visits = [1.0, 1.0, 1.01, 1.01, 1.02, 1.02]
    base, new = (
        launches([1.01 * factor] * 2).assign(
            visit_medians_s=[[factor * median for median in visits]] * 2,
            visit_launches=[numbers] * 2,
            algbw_gb_per_s=None,
        )
        for factor in (1e-3, 1.5e-3)
    )
    (record,) = compare(base, new).to_dict("records")
    assert (record["base_launches"], record["new_launches"], record["verdict"]) == (6, 6, "SLOWER")
    assert (record["base_unmeasured"], record["new_unmeasured"]) == (0, 0)
    (record,) = compare(base, new, paired=True).to_dict("records")
    assert (record["base_launches"], record["verdict"]) == (2, "UNDECIDED")


def test_sides_of_different_days_say_how_much_days_alone_may_differ() -> None:
    """One day each: 3 % for both levels, exceeded in 5 %."""
    monday, tuesday = (pd.Timestamp(f"2026-11-{day} 12:00", tz="UTC") for day in (23, 24))
    new = [1.1 * median_s for median_s in QUIET]
    apart = compare(launches(QUIET, started_at=monday), launches(new, started_at=tuesday))
    assert apart.day_ratio[0] == pytest.approx(math.exp(1.96 * math.sqrt(2) * 0.03), rel=1e-3)
    same = compare(launches(QUIET, started_at=monday), launches(new, started_at=monday))
    assert math.isnan(same.day_ratio[0])
    assert math.isnan(compare(launches(QUIET), launches(new)).day_ratio[0])


def test_the_p_value_of_pairs_is_that_of_pairs() -> None:
    """Under a drift that both share the sides overlap: Mann-Whitney has p = 0.6."""
    drift = [1e-3 * (1 + step / 5) for step in range(10)]
    base = launches(drift)
    new = launches([1.1 * median_s for median_s in drift])
    assert compare(base, new).p_value[0] > 0.3
    (record,) = compare(base, new, paired=True).to_dict("records")
    assert (record["verdict"], record["p_value"]) == ("SLOWER", pytest.approx(2 / 2**10))


def test_pairs_of_launches_share_their_drift() -> None:
    drift = [1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 6e-3]
    base = launches(drift)
    new = launches([1.1 * median_s for median_s in drift])
    assert list(compare(base, new).verdict) == ["UNDECIDED"]
    (record,) = compare(base, new, paired=True).to_dict("records")
    assert record["verdict"] == "SLOWER"
    assert [record["ratio_low"], record["ratio"], record["ratio_high"]] == pytest.approx([1.1] * 3)
    (record,) = compare(base, new.iloc[1:], paired=True).to_dict("records")
    assert (record["base_launches"], record["new_launches"], record["base_unmeasured"]) == (5, 5, 1)
    assert math.isnan(record["p_value"]), "six pairs are needed"
    twice = frame([row(0, 1e-3), row(0, 1e-3, run_id="other")])
    with pytest.raises(ConfigError, match="NEW has a trial twice in all_reduce 1x2 8 B"):
        compare(base, twice, paired=True)


# ---------------------------------------------------------------- what may differ


def test_backends_are_compared_by_name() -> None:
    slow = launches([2 * median_s for median_s in QUIET], backend="mpi", engine="native")
    both = pd.concat([launches(QUIET), slow.assign(run_id="m" + slow.run_id)])
    with pytest.raises(
        ConfigError, match=r"have no case in common; they differ in: backend \(gloo / mpi\); engine"
    ):
        compare(launches(QUIET), slow)
    (record,) = compare(launches(QUIET), slow, by="backend,engine").to_dict("records")
    assert (record["backend"], record["engine"], record["verdict"]) == (
        "gloo -> mpi",
        "python -> native",
        "SLOWER",
    )
    (record,) = compare(both, both, by=["backend=mpi:gloo", "engine"]).to_dict("records")
    assert (record["backend"], record["verdict"]) == ("mpi -> gloo", "FASTER")


def test_the_usual_payload_is_compared_by_its_name() -> None:
    base = launches(QUIET, payload=None)
    (record,) = compare(base, launches(QUIET, payload="rounding"), by=["payload"]).to_dict(
        "records"
    )
    assert record["payload"] == "integers -> rounding"
    both = pd.concat([base, launches(QUIET, payload="rounding", run_id="later")])
    by = ["payload=rounding:integers"]
    assert set(compare(both, both, by=by).payload) == {"rounding -> integers"}


def test_a_number_may_be_what_is_compared() -> None:
    single, four = (
        launches([factor * value for value in QUIET], streams=n) for factor, n in ((1, 1), (0.5, 4))
    )
    (record,) = compare(single, four, by="streams").to_dict("records")
    assert (record["streams"], record["verdict"]) == ("1 -> 4", "FASTER")


@pytest.mark.parametrize(
    ("variable", "values", "name"),
    [
        ("node", ("0", "1"), "all_reduce 1x2 node 0 -> node 1 8 B"),
        ("node", ("0", "0 1"), "all_reduce 1x2 node 0 -> 2 nodes at once 8 B"),
        ("pair", ("0-1 2-3", "0-2 1-3"), "all_reduce 1x2 0-1 2-3 -> 0-2 1-3 8 B"),
        ("layout", ("1x2", "2x1"), "all_reduce 1x2 -> 2x1 8 B"),
        ("late", (None, "1:2ms"), "all_reduce 1x2 8 B, none -> late 1:2ms"),
    ],
)
def test_a_case_is_named_by_both_sides(
    variable: str, values: tuple[str | None, str], name: str
) -> None:
    sides = [read_side("A", launches(QUIET, **{variable: value})) for value in values]
    (case,) = compare_sides(*sides, Rules(parse_by([variable])))
    assert case.name == name


def test_the_environment_is_a_variable() -> None:
    ring, tree = (launches(QUIET, env={"NCCL_ALGO": algorithm}) for algorithm in ("Ring", "Tree"))
    (record,) = compare(ring, tree, by="env").to_dict("records")
    assert record["env"] == "NCCL_ALGO=Ring -> NCCL_ALGO=Tree"
    with pytest.raises(ConfigError, match=r"env \(NCCL_ALGO=Ring / NCCL_ALGO=Tree\)"):
        compare(ring, tree)


def test_one_variable_of_the_environment_is_compared_and_the_others_must_be_alike() -> None:
    one, four, other = (
        launches(QUIET, env={"LINKS": links, "PROTO": proto})
        for links, proto in (("1", "Simple"), ("4", "Simple"), ("4", "LL"))
    )
    (record,) = compare(one, four, by="env.LINKS").to_dict("records")
    assert (record["sides"], record["env"]) == ("both", "PROTO=Simple")
    every = pd.concat([one, four.assign(run_id=lambda rows: "n" + rows["run_id"])])
    (record,) = compare(every, every, by="env.LINKS=1:4").to_dict("records")
    assert (record["base_launches"], record["new_launches"]) == (len(one), len(four))
    with pytest.raises(ConfigError, match=r"env\.LINKS=2; it has 1, 4"):
        compare(every, every, by="env.LINKS=2:4")
    with pytest.raises(ConfigError, match=r"env \(PROTO=Simple / PROTO=LL\)"):
        compare(one, other, by="env.LINKS")


@pytest.mark.parametrize(
    ("by", "line"),
    [
        ("env.", "--by env. is not a variable"),
        ("layout.nodes", "--by layout.nodes is not a variable"),
        ("message_bytes", "different payloads can't be compared; allowed: backend"),
        ("dtype", "different payloads"),
        ("benchmark", "different payloads"),
        ("colour", "--by colour is not a variable; allowed: backend"),
        ("backend=gloo", r"is not NAME or NAME=BASE:NEW, e\.g\."),
        ("backend=:", "is not NAME or NAME=BASE:NEW"),
        ("backend=nccl:gloo", "BASE has no case with backend=nccl; it has gloo"),
    ],
)
def test_what_can_not_be_compared_is_said(by: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        compare(launches(QUIET), launches(QUIET), by=by)


@pytest.mark.parametrize("run_id", ["r000", "another"])
def test_a_side_with_both_values_is_ambiguous(run_id: str) -> None:
    both = pd.concat([launches(QUIET), frame([row(0, 1e-3, engine="native", run_id=run_id)])])
    with pytest.raises(
        ConfigError, match=r"NEW has engine python and native.*--by engine=BASE:NEW"
    ):
        compare(launches(QUIET), both, by="engine")


def test_unlike_payloads_and_clocks_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="all_reduce 1x2 8 B: different payloads, 8 B and 16 B per operation"
    ):
        compare(
            launches(QUIET), launches(QUIET, algbw_gb_per_s=16 / 1e-3 / 1e9).assign(median_s=1e-3)
        )
    with pytest.raises(ConfigError, match=r"different clocks \(monotonic, virtual\)"):
        compare(launches(QUIET), launches(QUIET, clock="virtual"))


# ---------------------------------------------------------------- the join


def test_cases_of_one_side_and_launches_without_a_number_are_kept() -> None:
    base = pd.concat([launches(QUIET[:4]), launches(QUIET, message_bytes=16)])
    new = pd.concat([launches(QUIET), launches(QUIET, message_bytes=32)])
    words = {"status": "failed", "reason": "a call failed", "algbw_gb_per_s": None}
    failed = frame([row(7, 9e-3, **words), row(8, 0.0)])
    table = compare(pd.concat([base, failed[1:]]), pd.concat([new, failed]))
    table = table.set_index("message_bytes")
    assert (table.base_launches[8], table.base_unmeasured[8]) == (4, 1)
    assert dict(table.sides) == {8: "both", 16: "base", 32: "new"}
    assert (table.new_launches[8], table.new_unmeasured[8], table.reason[8]) == (
        5,
        2,
        "a call failed",
    )
    assert table.ratio[[16, 32]].isna().all() and table.verdict[[16, 32]].isna().all()


def test_of_two_attempts_of_a_run_at_a_case_the_later_counts() -> None:
    twice = pd.concat([launches([9e-3] * 5), launches(QUIET)])
    (record,) = compare(launches(QUIET), twice).to_dict("records")
    assert (record["ratio"], record["new_launches"]) == (1.0, 5)


def test_a_library_is_taken_as_upgraded_only_where_no_version_is_on_both_sides() -> None:
    old, new = (
        launches(QUIET, message_bytes=size, library=library)
        for size, library in ((8, "a"), (16, "b"))
    )
    upgraded = [launches(QUIET, message_bytes=size, library="b") for size in (8, 16)]
    assert set(compare(old, upgraded[0]).sides) == {"both"}
    table = compare(pd.concat([old, new]), pd.concat(upgraded))
    assert sorted(zip(table.message_bytes, table.sides, strict=True)) == [
        (8, "base"), (8, "new"), (16, "both"),
    ]  # fmt: skip


def test_a_case_that_failed_everywhere_has_a_row_without_numbers() -> None:
    failed = launches([None] * 4, status="invalid", reason="3 elements are wrong")
    (record,) = compare(launches(QUIET), failed).to_dict("records")
    assert (record["sides"], record["new_launches"], record["new_unmeasured"]) == ("both", 0, 4)
    assert math.isnan(record["ratio"]) and pd.isna(record["verdict"])


CELLS = st.sets(st.tuples(st.sampled_from([0, 8, 16, 24]), st.integers(0, 5)), min_size=1)


@settings(max_examples=8)
@given(CELLS, CELLS, st.randoms(use_true_random=False))
def test_every_row_is_counted_once_in_any_order(
    base: set[tuple[int, int]], new: set[tuple[int, int]], chance: Any
) -> None:
    """Cells are (message_bytes, launch); rows come twice, shuffled and with other kinds of
    nulls."""
    sides = [
        frame(
            row(n, 1e-3 * (1 + n / 100), message_bytes=size, count=None)
            for size, n in sorted(cells)
        )
        for cells in (base, new)
    ]
    sizes = [{size for size, _ in cells} for cells in (base, new)]
    if not sizes[0] & sizes[1]:
        with pytest.raises(ConfigError, match=r"they differ in: message_bytes"):
            compare(*sides)
        return
    table = compare(*sides)
    messy = [
        shuffled(pd.concat([side, side.iloc[::2]]), chance).assign(window=np.nan) for side in sides
    ]
    pd.testing.assert_frame_equal(table, compare(*messy))
    by_size = table.set_index("message_bytes")
    assert set(by_size.index) == sizes[0] | sizes[1] and by_size.index.is_unique
    for size, record in by_size.iterrows():
        counts = [sum(cell[0] == size for cell in cells) for cells in (base, new)]
        assert [record.base_launches, record.new_launches] == counts
        assert record.sides == ("both" if all(counts) else "base" if counts[0] else "new")
        assert pd.notna(record.verdict) == all(counts)


def shuffled(cases: pd.DataFrame, chance: Any) -> pd.DataFrame:
    order = list(range(len(cases)))
    chance.shuffle(order)
    return cases.iloc[order]


def test_rows_do_not_depend_on_one_another() -> None:
    base = many(5, 0, 5, trials=20)
    new = many(5, 0.05, 6, trials=20)
    together_only = ["p_holm", "verdict"]  # what is certain depends on the number of cases
    alone = compare(base[base.message_bytes == 80], new[new.message_bytes == 80])
    alone = alone.drop(columns=together_only)
    together = compare(base, new).drop(columns=together_only)
    pd.testing.assert_frame_equal(
        alone, together[together.message_bytes == 80].reset_index(drop=True)
    )


def test_nothing_to_compare_is_said(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"neither a folder with runs \(run.json\) nor a parquet file"
    ):
        compare(launches(QUIET), tmp_path)
    with pytest.raises(ConfigError, match="NEW has nothing to compare: a data frame has no cases"):
        compare(launches(QUIET), launches([]))
    with pytest.raises(
        ConfigError, match="is not a table of cases: it has the columns a, but not benchmark"
    ):
        compare(pd.DataFrame({"a": [1]}), launches(QUIET))
