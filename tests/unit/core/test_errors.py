"""What an error says of many ranks."""

from __future__ import annotations

import errno
import os

import pytest

from commbench.core.errors import Missing, process_limit


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3 did not arrive at 'the start' within 60 s"),
        ([1, 2], "rank 1, 2 did not arrive at 'the start' within 60 s"),
        (
            range(1, 4096),
            "rank 1, 2, 3, 4, 5, 6, 7, 8 and 4087 more did not arrive at 'the start' within 60 s",
        ),
    ],
)
def test_missing_ranks_are_named_up_to_eight(ranks: list[int], text: str) -> None:
    assert str(Missing(ranks, "the start", 60.0)) == text
    assert Missing(ranks, "the start", 60.0, "gone").ranks == tuple(ranks)
    assert str(Missing(ranks, "the start", 60.0, "rank 3 has ended")) == f"{text}: rank 3 has ended"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start new thread"),
        BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)),
        RuntimeError("[enforce fail at listener.cc:95] Resource temporarily unavailable"),
    ],
)
def test_a_limit_on_threads_and_processes_is_told_from_other_errors(error: Exception) -> None:
    limit = process_limit(error)
    assert limit is not None and limit.exit_status == 3
    assert f"no more threads or processes can be started ({error}): raise the limit" in str(limit)
    assert process_limit(RuntimeError("Connection refused")) is None
