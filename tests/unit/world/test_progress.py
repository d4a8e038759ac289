"""Where a rank is, told by another thread."""

from __future__ import annotations

import threading
import time

import numpy as np

from commbench.world.heartbeat import Progress, main_stack


class Runner:
    engine = "native"

    def __init__(self, repetition: int, step: int, *calls: str) -> None:
        self.progress, self.calls = np.array([repetition, step], dtype=np.int64), calls

    def __call__(self, n: int) -> np.ndarray:  # type: ignore[type-arg]
        raise AssertionError


def test_a_phase_is_told_with_the_repetition_and_the_call() -> None:
    progress = Progress()
    assert progress.text() == "starting"
    progress.enter("measure of a case", Runner(16, 1, "MPI_Send", "MPI_Recv"))
    assert progress.text() == "repetition 17, call 2 of 2 (MPI_Recv) of measure of a case"
    progress.enter("measure of a case", Runner(16, -1))
    assert progress.text() == "repetition 17 of measure of a case"
    progress.enter("the check")
    assert progress.text() == "the check"


def test_a_phase_is_late_after_its_limit_only() -> None:
    progress = Progress()
    assert progress.late_s() is None
    progress.enter("quick", limit_s=0.01)
    time.sleep(0.02)
    late_s = progress.late_s()
    assert late_s is not None and late_s > 0.01
    progress.enter("slow", limit_s=60)
    assert progress.late_s() is None


def test_another_thread_sees_where_the_main_thread_is() -> None:
    seen: list[list[str]] = []
    other = threading.Thread(target=lambda: seen.append(main_stack()))

    def waits_here() -> None:
        other.start()
        other.join()

    waits_here()
    assert any(line.endswith(" waits_here") and "test_progress.py:" in line for line in seen[0]), seen
