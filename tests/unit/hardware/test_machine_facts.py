from __future__ import annotations

import json
import re
import subprocess
import sys
import timeit

import pytest

from commbench.hardware import machine_facts
from commbench.hardware.machine_facts import by_node, differences

KEY = re.compile(r"[a-z0-9_]+(\.[A-Za-z0-9_\-:@]+)+")
MULTI_LINE = {"topology.nvidia_smi_topo_m"}


def test_every_fact_of_this_machine_is_well_formed():
    facts = machine_facts.collect()
    assert not [key for key in facts if not KEY.fullmatch(key)]
    assert not [key for key in facts if key.endswith(".error")]
    for key, value in facts.items():
        assert isinstance(value, str | int | float | bool) or key in MULTI_LINE | {"ipc.effective"}, key
        assert key in MULTI_LINE or len(str(value).splitlines()) <= 1, key
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert {key.partition(".")[0] for key in facts} >= {"host", "limits", "versions", "network", "topology", "ipc"}


def test_it_is_quick():
    """The best of three: this machine has other work, too."""
    if machine_facts.collect()["topology.nvidia_smi_topo_m"]:
        pytest.skip("nvidia-smi takes its own time")
    assert min(timeit.repeat(machine_facts.collect, number=1, repeat=3)) < 0.3


def test_no_library_under_test_is_imported():
    code = (
        "import sys; from commbench.hardware import machine_facts; machine_facts.collect();"
        "print([name for name in ('torch', 'mpi4py', 'numba', 'pandas') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"


def test_a_module_that_fails_is_one_line(monkeypatch):
    def broken():
        raise RuntimeError("two\nlines")

    monkeypatch.setitem(machine_facts.COLLECTORS, "host", broken)
    facts = machine_facts.collect()
    assert facts["host.error"] == r"RuntimeError('two\nlines')"
    assert "limits.cpu_cores" in facts


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
