from __future__ import annotations

import json
import re
import subprocess
import sys
import timeit

import pytest

from commbench.hardware import host, machine_facts, sources

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


def test_a_broken_module_is_one_line(monkeypatch):
    def broken():
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(host, "collect", broken)
    facts = machine_facts.collect()
    assert facts["host.error"] == r"RuntimeError('two\nlines')"
    assert "limits.cpu_cores" in facts


def test_a_broken_source_leaves_the_others(tmp_path):
    def good(root):
        return {"x.a": 1, "x.b": None}

    def broken(root):
        raise ValueError("no\nway")

    facts = sources.gather("x", [good, broken], tmp_path)
    assert facts == {"x.a": 1, "x.error": r"broken: ValueError('no\nway')"}


def test_reading_what_cannot_be_read(tmp_path):
    assert sources.read_text(tmp_path) is None  # a folder
    assert sources.read_line(tmp_path / "nothing") is None
    assert sources.read_int(tmp_path / "a\0b") is None
    assert sources.children(tmp_path / "nothing") == []
    (tmp_path / "bytes").write_bytes(b"\xff\xfe 12")
    assert sources.read_line(tmp_path / "bytes") == "\ufffd\ufffd 12"


def test_numbers_in_names_sort_as_numbers(tmp_path):
    for name in ("node10", "node2", "has_cpu", "node2x"):
        (tmp_path / name).mkdir()
    assert [path.name for path in sources.children(tmp_path, r"node\d+")] == ["node2", "node10"]
    assert len(sources.children(tmp_path)) == 4


@pytest.mark.parametrize(
    ("name", "part"), [("eth0.100", "eth0.100"), ("a b/c", "a_b_c"), ("..", "_._._"), ("", "_"), ("x@if2:1", "x@if2:1")]
)
def test_key_parts(name, part):
    assert sources.key_part(name) == part


def test_a_command_that_runs(tmp_path):
    assert sources.run_command(["sh", "-c", "echo a; echo b >&2; exit 3"], 5) == (3, "a\n", "b\n")
