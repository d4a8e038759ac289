"""Message sizes as people write them: ranges, their factor, what the memory allows, and units that
are ambiguous."""

from __future__ import annotations

from typing import Any

import pytest

from commbench.cli.main import main
from commbench.config.sizes import sizes_bytes
from commbench.core.errors import ConfigError


@pytest.mark.parametrize(
    ("spec", "sizes"),
    [
        ("8..64", (8, 16, 32, 64)),
        ("8..100", (8, 16, 32, 64, 100)),
        ("8..1KiB*4", (8, 32, 128, 512, 1024)),  # its end, too
        ("1MB..5MB", (1_000_000, 2_000_000, 4_000_000, 5_000_000)),
        ("1..16", (4, 8, 16)),  # whole float32 elements
        ("0.5KiB..1KiB", (512, 1024)),
        (["8..32", "1MB", 16], (8, 16, 32, 1_000_000)),
        ("8..8", (8,)),
    ],
)
def test_a_range_rises_by_its_factor(spec: Any, sizes: tuple[int, ...]) -> None:
    assert sizes_bytes(spec, "float32") == sizes


def test_a_large_range_ends_where_it_says() -> None:
    assert (
        sizes_bytes("8..8GiB", "float32")[-1] == 8 * 2**30
        and len(sizes_bytes("8..8GiB", "float32")) == 31
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("1K", "'1K' is ambiguous: write 1KiB (binary) or 1kB (decimal)"),
        ("2.5M", "2.5MiB (binary) or 2.5MB (decimal)"),
        ("8..1g", "1GiB (binary) or 1GB (decimal)"),
        ("8..4", "does not rise"),
        ("0..8", "does not rise"),
        ("8..64*1", "the factor '1' is not a whole number from 2 to 1024"),
        ("8..64*", "the factor '' is not"),
        ("1..3", "begin at 4"),
        ("64mb", "write 64MiB (binary) or 64MB (decimal); a range is written 8..1MiB"),
        ("64mib", "write 64MiB;"),
        ("1MiB-64MiB", "sizes=1MiB-64MiB: a range has two dots: sizes=1MiB..64MiB"),
        ("1MiB:64MiB", "two dots: sizes=1MiB..64MiB"),
        ("8 to max", "two dots: sizes=8..max"),
        ("8...64", "two dots: sizes=8..64"),
        ("8..x", "'x' is not a number of bytes"),
    ],
)
def test_what_is_no_size_is_refused_in_one_line(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match="sizes") as error:
        sizes_bytes(spec, "float32")
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_range_can_end_at_what_the_memory_allows(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("backend=simulated", "benchmark=p2p_latency", "plan=true")
    assert main([*words, "sizes=8..max", "budget.memory_share=0.05"]) == 0
    few = capsys.readouterr().out.splitlines()
    assert main([*words, "sizes=8..max", "budget.memory_share=0.5"]) == 0
    many = capsys.readouterr().out.splitlines()
    assert 10 < len(few) < len(many) < 50
    assert not any("budget.memory_share" in line for line in many), "what does not fit is left out"
