"""Traffic matrices: patterns of any size, and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.benchmarks.all_to_all_v import rank_loads
from commbench.core.errors import ConfigError, Unsupported
from commbench.features.traffic.matrices import (
    PATTERNS,
    parse_traffic,
    recorded_traffic,
    traffic_elements,
)

RANKS = st.integers(2, 40)
ELEMENTS = st.integers(1, 10**6)


@given(name=st.sampled_from(sorted(PATTERNS)), ranks=RANKS, elements=ELEMENTS)
def test_the_rank_that_sends_most_sends_the_size(name: str, ranks: int, elements: int) -> None:
    matrix = PATTERNS[name](ranks, elements)
    assert matrix.shape == (ranks, ranks)
    assert (matrix >= 0).all()
    assert matrix.sum(axis=1).max() == elements


@given(ranks=RANKS, elements=ELEMENTS)
def test_uniform_traffic_is_alike_for_all_ranks(ranks: int, elements: int) -> None:
    matrix = PATTERNS["uniform"](ranks, elements)
    assert (matrix.sum(axis=0) == elements).all()
    assert (matrix.sum(axis=1) == elements).all()
    assert matrix.max() - matrix.min() <= 1
    assert (np.diag(matrix) == matrix.min()).all()


@given(name=st.sampled_from(["ring", "permutation"]), ranks=RANKS, elements=ELEMENTS)
def test_in_a_ring_and_a_permutation_each_rank_has_one_receiver_and_one_sender(
    name: str, ranks: int, elements: int
) -> None:
    matrix = PATTERNS[name](ranks, elements)
    assert not np.diag(matrix).any()
    assert ((matrix > 0).sum(axis=0) == 1).all()
    assert ((matrix > 0).sum(axis=1) == 1).all()


@given(ranks=RANKS, elements=ELEMENTS)
def test_in_incast_and_outcast_rank_0_is_the_only_receiver_and_sender(
    ranks: int, elements: int
) -> None:
    incast = PATTERNS["incast"](ranks, elements)
    assert rank_loads(incast).max() == incast[:, 0].sum() == (ranks - 1) * elements
    outcast = PATTERNS["outcast"](ranks, elements)
    assert rank_loads(outcast).max() == outcast[0].sum() == outcast.sum() == elements
    assert outcast[0, 1:].max() - outcast[0, 1:].min() <= 1


# ---------------------------------------------------------------- files


def written(folder: Path, text: str) -> str:
    path = folder / "matrix.txt"
    path.write_text(text)
    return str(path)


def test_a_file_is_read_with_suffixes_and_empty_lines(tmp_path: Path) -> None:
    path = written(tmp_path, "0 4K 2M\n\n1g\t0 8\n  16 1kB 0  \n")
    traffic = parse_traffic(path)
    assert traffic.matrix(3, 1).tolist() == [[0, 4096, 2 << 20], [1 << 30, 0, 8], [16, 1024, 0]]
    assert traffic.text.startswith(f"{path}@")


def test_the_mark_of_a_windows_editor_is_no_number(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("0 8\n16 0\n", encoding="utf-8-sig")
    assert parse_traffic(str(tmp_path / "t")).matrix(2, 0).tolist() == [[0, 8], [16, 0]]


def test_the_digest_of_a_file_is_of_its_numbers(tmp_path: Path) -> None:
    text = parse_traffic(written(tmp_path, "0 4K\n0 0\n")).text
    assert parse_traffic(written(tmp_path, "0  4096 \n\n0 0")).text == text
    assert parse_traffic(written(tmp_path, "0 4095\n0 0")).text != text


def test_a_file_that_changes_after_the_start_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "0 8\n4 0\n")
    text = parse_traffic(path).text
    assert recorded_traffic(text).matrix(2, 1).tolist() == [[0, 8], [4, 0]]
    recorded_traffic.cache_clear()
    written(tmp_path, "0 4\n4 0\n")
    with pytest.raises(ConfigError, match="the file changed"):
        recorded_traffic(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0 1 2\n3 0\n4 5 0\n", "line 2 has 2 numbers of the 3 lines'"),
        ("0 1.5\n1 0\n", "line 1 has '1.5', which is no whole number of bytes"),
        ("0 -1\n1 0\n", "line 1 has '-1', which is no whole number of bytes"),
        ("0 1\n9999999999999G 0\n", "which is no whole number of bytes up to 2\\^53"),
        ("0 0\n0 0\n", "moves nothing"),
        ("0\n", "has 1 lines; allowed: 2 to"),
        ("", "has 0 lines"),
        ("\0\x01\xff\n\x02\n", "line 1 has"),
    ],
)
def test_a_file_that_is_no_matrix_is_refused_in_one_line(
    tmp_path: Path, text: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        parse_traffic(written(tmp_path, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "nowhere.txt", "moee", "ring seed=1", "/", "a\0b"])
def test_a_traffic_that_is_neither_a_name_nor_a_file_names_what_is_allowed(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"uniform, incast, .*moe, W0_balanced.* path of a matrix"
    ):
        parse_traffic(text)


def test_a_matrix_of_another_size_or_of_broken_elements_is_refused(tmp_path: Path) -> None:
    text = parse_traffic(written(tmp_path, "0 8\n6 0\n")).text
    assert traffic_elements(text, 2, 1, itemsize=2).tolist() == [[0, 4], [3, 0]]
    with pytest.raises(Unsupported, match="is for 2 ranks, the layout has 4"):
        traffic_elements(text, 4, 1, itemsize=2)
    with pytest.raises(Unsupported, match="6 B from rank 1 to 0 are no whole number of elements"):
        traffic_elements(text, 2, 1, itemsize=4)
