from __future__ import annotations

import json
import re
import subprocess
import sys
import timeit

import pytest

from commbench.hardware import host, machine_facts

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

    monkeypatch.setattr(host, "collect", broken)
    facts = machine_facts.collect()
    assert facts["host.error"] == r"RuntimeError('two\nlines')"
    assert "limits.cpu_cores" in facts
