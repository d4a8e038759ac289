"""Sentences on soaks from planted stabilities."""

from __future__ import annotations

import pytest

from commbench.features.streams.stability import Stability, Stretch
from commbench.features.streams.stability_text import stability_sentences

STABLE = Stability(0.0, 10_800.0, 0.012)
DIPPED = Stability(1.1, 10_800.0, 0.02, slower=(Stretch(812, 812.3, 0.6), Stretch(2000, 2600, 0.9)))
FASTER = Stability(0.0, 10_800.0, 0.02, faster=(Stretch(0, 600, 1.5),))
VARIED = Stability(0.0, 600.0, 0.23)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (STABLE, "stream 0-1 over 3.0 h: stable, within 1.2 %."),
        (VARIED, "stream 0-1 over 10 min: not stable, within 23 %."),
        (
            DIPPED,
            "stream 0-1 over 3.0 h, after a ramp of 1.10 s: dipped 2 times, farthest to 60 % of its"
            " usual speed, at 812.0 s for 300 ms; else within 2.0 %.",
        ),
        (
            FASTER,
            "stream 0-1 over 3.0 h: was faster once, to 150 % of its usual speed, at 0.0 s for"
            " 10 min; else within 2.0 %.",
        ),
    ],
)
def test_a_soak_has_one_sentence(found: Stability, sentence: str) -> None:
    assert list(stability_sentences(["stream 0-1"], [found])) == [sentence]


def test_of_many_soaks_the_stable_ones_are_counted_and_the_worst_named() -> None:
    names = ["a", "b", "c", "d", "e", "f"]
    deeper = Stability(0.0, 600.0, 0.02, slower=(Stretch(1, 2, 0.1),))
    sentences = list(stability_sentences(names, [STABLE, VARIED, DIPPED, STABLE, deeper, FASTER]))
    assert sentences[0] == "2 of 6 soaks over 3.0 h: stable, within 1.2 %."
    assert [line[0] for line in sentences[1:]] == ["e", "c", "b", "1"]
    assert sentences[-1] == "1 more soak dipped or varied less."


def test_without_soaks_there_is_no_sentence() -> None:
    assert list(stability_sentences([], [])) == []
