"""What the columns of a row say of its traffic."""

from __future__ import annotations

from gpu_cases import planned as planned_of

from commbench.features.traffic.columns import traffic_columns


def test_what_ranks_send_is_within_or_between_nodes_and_a_rank_sends_itself_nothing() -> None:
    planned = planned_of("all_to_all_v", "1x4", "traffic=incast", "sizes=[60000]", device="cpu")
    assert traffic_columns(planned, lambda rank: rank // 2) == {
        "busiest_bytes": 180_000,
        "imbalance": 180_000 / ((180_000 + 3 * 60_000) / 4),
        "within_nodes_bytes": 60_000,
        "between_nodes_bytes": 120_000,
    }
    on_one = traffic_columns(planned, lambda rank: 0)
    assert (on_one["within_nodes_bytes"], on_one["between_nodes_bytes"]) == (180_000, 0)


def test_an_operation_without_traffic_of_its_own_has_no_such_columns() -> None:
    assert traffic_columns(planned_of("all_reduce", "1x4", device="cpu"), lambda rank: 0) == {}
