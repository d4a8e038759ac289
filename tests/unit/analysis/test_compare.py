"""Verdicts from data frames: planted changes, thresholds, the join, and what is refused; sides from
folders and files, and which of their rows belong together."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from generated_results import relaunched, with_column
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_cases import case_row
from simulated_words import NOISY_RUN

import commbench
from commbench.analysis.compare import (
    COMPARISON_COLUMNS,
    PAYLOAD,
    ComparedVariable,
    Side,
    by_each_value,
    compare,
    key_of,
    parse_by,
    read_side,
    save,
    select_rows,
    variable_text,
)
from commbench.core.errors import ConfigError
from commbench.core.variables import NAMES
from commbench.report.compare_text import side_lines
from commbench.results.columns import CASES, VARIABLES
from commbench.results.row import Row, plain_values

VALUES: dict[str, Any] = {
    "benchmark": "all_reduce",
    "backend": "gloo",
    "engine": "python",
    "timer": "host",
    "timing": "default",
    "sync": "barrier",
    "device": "cpu",
    "dtype": "float32",
    "layout": "1x2",
    "pair": None,
    "message_bytes": 8,
    "elements": 2,
    "window": None,
    "in_place": True,
    "reduction": "sum",
    "root": None,
    "schedule": None,
    "streams": None,
    "staging": "none",
    "cache": "warm",
    "cuda_ipc": "auto",
    "interface": None,
    "env": {},
}
QUIET = [1.000e-3, 1.001e-3, 1.002e-3, 0.999e-3, 1.003e-3]
TRIALS = 200


def row(launch: int, median_s: float | None, **more: Any) -> dict[str, Any]:
    """An all_reduce over two ranks, unless told otherwise; the case_id is the text of its
    variables."""
    values = plain_values(case_row(**VALUES, run_id=f"r{launch:03d}", trial=launch, status="ok"))
    values |= {"median_s": median_s, "clock": "monotonic", "operations_per_sample": 1}
    values |= {
        "algbw_gb_per_s": more.get("message_bytes", 8) / median_s / 1e9 if median_s else None
    }
    values |= more
    return values | {"case_id": str([values[column.name] for column in VARIABLES])}


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=[column.name for column in CASES])


def launches(medians: Sequence[float | None], **more: Any) -> pd.DataFrame:
    """One case, a launch a median."""
    return frame(row(launch, median_s, **more) for launch, median_s in enumerate(medians))


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


def test_a_number_may_be_what_is_compared() -> None:
    single, four = (
        launches([factor * value for value in QUIET], streams=n) for factor, n in ((1, 1), (0.5, 4))
    )
    (record,) = compare(single, four, by="streams").to_dict("records")
    assert (record["streams"], record["verdict"]) == ("1 -> 4", "FASTER")


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


# ---------------------------------------------------------------- sides from folders and files


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five launches of six cases."""
    output = tmp_path_factory.mktemp("results")
    run = commbench.run(*NOISY_RUN, f"output={output}", "trial=0")
    for launch in range(1, 5):
        relaunched(run, launch)
    return output


def copied(results: Path, target: Path) -> list[Path]:
    """The runs of the results, in a folder that may be broken."""
    for file in results.rglob("*"):
        if file.is_file():
            to = target / file.relative_to(results)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(file.read_bytes())
    return sorted(target.iterdir())


def test_a_folder_is_all_its_runs(results: Path) -> None:
    side = read_side("NEW", [results])
    assert (len(side.rows), len(side.runs), side.problems) == (30, 5, ())
    assert side.label == str(results)
    assert len(read_side("NEW", [results, results]).rows) == 30


def test_unreadable_runs_are_named_and_the_others_used(results: Path, tmp_path: Path) -> None:
    runs = copied(results, tmp_path)
    (runs[0] / "cases.parquet").write_bytes(b"PAR1 this is not parquet PAR1")
    (runs[1] / "run.json").write_text("{")
    record = json.loads((runs[2] / "run.json").read_text())
    (runs[2] / "run.json").write_text(json.dumps(record | {"schema_version": 0}))
    side = read_side("NEW", [tmp_path])
    assert len({row.run_id for row in side.rows}) == 2
    assert len(side.problems) == 3
    for run, problem in zip(runs, side.problems, strict=False):
        assert str(run) in problem and "\n" not in problem
    assert (
        "schema version 0, this commbench reads 4; read it with the commbench that wrote it"
        in side.problems[2]
    )
    with pytest.warns(UserWarning, match=runs[0].name):
        table = compare(results, [str(run) for run in (runs[0], runs[4])])
    assert set(table.new_launches) == {1}


def test_a_saved_side_is_a_base(results: Path, tmp_path: Path) -> None:
    side = read_side("NEW", [results])
    save(side, tmp_path / "baseline.parquet")
    again = read_side("BASE", [tmp_path / "baseline.parquet"])
    assert again.runs == side.runs and again.problems == ()
    assert again.rows == side.rows
    table = compare(tmp_path / "baseline.parquet", results)
    assert set(table.verdict) == {"SAME"}


def test_the_cases_of_a_run_are_a_side(results: Path) -> None:
    file = sorted(results.iterdir())[0] / "cases.parquet"
    side = read_side("BASE", [file])
    assert len(side.rows) == 6 and len(side.runs) == 1


def test_a_table_without_a_version_is_used_and_told(results: Path, tmp_path: Path) -> None:
    file = tmp_path / "plain.parquet"
    cases = commbench.load(results)
    cases["env"] = [list(json.loads(text).items()) for text in cases["env"]]
    cases.to_parquet(file)
    side = read_side("BASE", [file])
    assert side.problems == (f"{file} names no schema version: taken as 4",)
    with pytest.warns(UserWarning, match="names no schema version"):
        assert set(compare(file, results).sides) == {"both"}


def test_bad_files_are_refused(results: Path, tmp_path: Path) -> None:
    table = pq.read_table(sorted(results.iterdir())[0] / "cases.parquet")
    (tmp_path / "empty.parquet").touch()
    (tmp_path / "text.parquet").write_text("median_s,1\n")
    pq.write_table(pa.table({"city": ["x"], "people": [1]}), tmp_path / "foreign.parquet")
    pq.write_table(table.slice(0, 0), tmp_path / "rowless.parquet")
    pq.write_table(table.replace_schema_metadata({"schema_version": "0"}), tmp_path / "old.parquet")
    words = table.set_column(
        table.schema.get_field_index("median_s"), "median_s", pa.array(["fast"] * 6)
    )
    pq.write_table(words, tmp_path / "words.parquet")
    pq.write_table(with_column(table, "run_id", None), tmp_path / "nameless.parquet")
    lines = {
        "empty": "empty.parquet is empty",
        "text": "text.parquet can't be read: ",
        "foreign": (
            "is not a table of cases: it has the columns city, people, but not benchmark, backend"
        ),
        "rowless": "rowless.parquet has no cases",
        "old": (
            "schema version 0, this commbench reads 4; read it with the commbench that wrote it"
        ),
        "words": "column median_s is not of type double",
        "nameless": "has rows without run_id or case_id",
        "absent": "neither a folder with runs",
    }
    for name, line in lines.items():
        with pytest.raises(ConfigError, match=f"BASE.*{line}"):
            read_side("BASE", [tmp_path / f"{name}.parquet"])


def test_mixed_units_are_refused(results: Path, tmp_path: Path) -> None:
    table = pq.read_table(sorted(results.iterdir())[0] / "cases.parquet")
    at = table.schema.get_field_index("median_s")
    scaled = pa.array([1e6 * median_s for median_s in table["median_s"].to_pylist()])
    other = pa.field("median_s", pa.float64(), metadata={"unit": "us"})
    pq.write_table(table.set_column(at, other, scaled), tmp_path / "us.parquet")
    with pytest.raises(
        ConfigError, match=r"us.parquet: column median_s is in us, commbench's in s; mixed units"
    ):
        compare(results, tmp_path / "us.parquet")
    runs = copied(results, tmp_path / "runs")
    (runs[2] / "cases.parquet").write_bytes((tmp_path / "us.parquet").read_bytes())
    with pytest.raises(ConfigError, match="mixed units"):
        compare(results, tmp_path / "runs")


def test_a_run_that_goes_on_is_read_from_its_parts(results: Path, tmp_path: Path) -> None:
    runs = copied(results, tmp_path)
    for run in runs:
        (run / "parts").mkdir()
        (run / "cases.parquet").rename(run / "parts" / "000000.cases.parquet")
    assert len(read_side("NEW", [tmp_path]).rows) == 30


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        ((), "none"),
        (0, "0"),
        (8.0, "8"),
        (0.5, "0.5"),
        (True, "true"),
        ((("A", "1"), ("B", "2")), "A=1 B=2"),
    ],
)
def test_a_value_has_one_text(value: object, text: str) -> None:
    assert variable_text(value) == text


@given(
    st.fixed_dictionaries({name: st.none() | st.integers() | st.text(max_size=5) for name in NAMES})
)
def test_a_key_sees_all_variables_but_those_that_are_compared(values: dict[str, Any]) -> None:
    row = Row(**values)
    for name in NAMES:
        other = replace(row, **{name: "another value"})
        assert key_of(row, ()) != key_of(other, ())
        assert key_of(row, [name]) == key_of(other, [name])


def test_each_side_counts_its_own_rows_and_runs() -> None:
    """Of one folder with two backends, of which one has an engine more."""
    gloo = launches(QUIET, backend="gloo")
    mpi = [
        launches(QUIET, backend="mpi", engine=engine).assign(run_id=[f"m{n}" for n in range(5)])
        for engine in ("python", "native")
    ]
    both = pd.concat([gloo, *mpi])
    by = parse_by(["backend=gloo:mpi"])
    records = tuple({"run_id": f"{run}{n}"} for run in ("r00", "m") for n in range(5))
    base, new = (
        select_rows(replace(read_side(name, both), runs=records), by) for name in ("BASE", "NEW")
    )
    assert [line.split(": ")[1] for line in side_lines(base, new)] == [
        "5 launches, 5 rows",
        "5 launches, 10 rows",
    ]
    assert {run["run_id"][0] for run in base.runs} == {"r"}
    assert {run["run_id"][0] for run in new.runs} == {"m"}
    table = compare(both, both, by="backend=gloo:mpi")
    assert table[["sides", "engine", "reason"]].fillna("").to_numpy().tolist() == [
        ["both", "python", ""],
        ["new", "native", "engine native, in BASE python"],
    ]


def test_the_variable_that_keeps_all_rows_apart_is_named() -> None:
    base = pd.concat(
        [launches(QUIET, dtype="int8", root=0), launches(QUIET, dtype="float32", root=1)]
    )
    new = pd.concat(
        [launches(QUIET, dtype="int8", root=1), launches(QUIET, dtype="float32", root=0)]
    )
    with pytest.raises(ConfigError, match="they differ in: root 0, in NEW 1; name what is"):
        compare(base, new)


def test_what_may_differ_is_parsed() -> None:
    assert parse_by(["backend=gloo:mpi", " engine ", ""]) == (
        ComparedVariable("backend", "gloo", "mpi"), ComparedVariable("engine"),
    )  # fmt: skip


@given(st.text(max_size=30))
def test_any_other_word_is_refused(word: str) -> None:
    name = word.strip().partition("=")[0]
    is_entry = name.startswith(("env.", "backend_options."))
    if name in set(NAMES) - set(PAYLOAD) or is_entry or not word.strip():
        return
    with pytest.raises(ConfigError, match="--by"):
        parse_by([word])


@pytest.mark.parametrize(
    ("values", "base", "settings"),
    [
        (["65536", "null", "16384"], "null", ["16384", "65536"]),
        (["9", "10", "8"], "8", ["9", "10"]),
    ],
)
def test_several_settings_are_compared_with_none_or_with_the_first(
    values: list[str], base: str, settings: list[str]
) -> None:
    rows = tuple(case_row(backend_options={"buffer_bytes": value}) for value in values)
    compared = by_each_value(Side("NEW", rows), parse_by(["backend_options.buffer_bytes"]))
    assert [(each.base, each.new) for (each,) in compared] == [(base, new) for new in settings]
