from __future__ import annotations

import pytest

from commbench.hardware.machine_facts import by_node, differences


def ranks(*facts: dict[str, object]) -> list[dict[str, object]]:
    """Ranks on node a unless they say otherwise."""
    return [{"host.boot_id": "a"} | one for one in facts]


def test_equal_ranks_do_not_differ():
    assert differences(ranks({"host.kernel": "6"}, {"host.kernel": "6"})) == {}
    assert differences([]) == {}


def test_a_different_value_and_a_missing_one():
    found = differences(ranks({"v.torch": "2.6", "e.X": "1"}, {"v.torch": "2.7", "e.X": "1"}, {"v.torch": "2.6"}))
    assert found == {"v.torch": {'"2.6"': [0, 2], '"2.7"': [1]}, "e.X": {'"1"': [0, 1], "missing": [2]}}


def test_null_true_and_one_are_different_values():
    found = differences(ranks({"a.b": None}, {"a.b": True}, {"a.b": 1}, {"a.b": "missing"}))
    assert found == {"a.b": {"null": [0], "true": [1], "1": [2], '"missing"': [3]}}


@pytest.mark.parametrize("key", ["host.load_1min", "host.cpu_affinity", "host.memory_available_bytes"])
def test_what_always_varies_is_ignored(key):
    assert differences(ranks({key: 1}, {key: 2})) == {}


@pytest.mark.parametrize(
    "key", ["host.hostname", "ipc.platform.pid_namespace", "network.interface.eth0.ipv4", "gpu.0.uuid"]
)
def test_what_belongs_to_a_node_must_agree_only_inside_it(key):
    one, other, alien = ({"host.boot_id": node, key: value} for node, value in (("a", 1), ("b", 2), ("b", 1)))
    assert differences([one, one, other, other]) == {}
    assert differences([one, other, alien]) == {key: {"1": [0, 2], "2": [1]}}


def test_values_that_are_no_json_do_not_break_the_comparison():
    assert list(differences(ranks({"a.b": {1, 2}}, {"a.b": 3}))) == ["a.b"]


def test_by_node_takes_the_first_rank_of_each():
    facts = [{"rank": rank} for rank in range(4)]
    assert by_node(facts, [0, 0, 1, 1]) == [{"rank": 0}, {"rank": 2}]
    assert by_node(facts, [1, 0, 1, 0]) == [{"rank": 1}, {"rank": 0}]
    with pytest.raises(ValueError):
        by_node(facts, [0])
