from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import timeit
from importlib import metadata
from pathlib import Path

import pytest
from shown_gpus import hgx, shown

from commbench.core import secrets
from commbench.hardware import machine_facts
from commbench.hardware.machine_facts import differences, facts_by_node
from commbench.hardware.sources import gather

KEY = re.compile(r"[a-z0-9_]+(\.[A-Za-z0-9_\-:@]+)+")
MULTI_LINE = {"topology.nvidia_smi_topo_m", "topology.rocm_smi_showtopo"}


def test_every_fact_of_this_machine_is_well_formed():
    facts = machine_facts.collect()
    assert not [key for key in facts if not KEY.fullmatch(key)]
    errors = [text for key, text in facts.items() if key.endswith(".error")]
    assert all(text.startswith("git ") for text in errors), "git waits 2 s for a busy disk"
    for key, value in facts.items():
        assert isinstance(value, str | int | float | bool) or key in MULTI_LINE, key
        assert key in MULTI_LINE or len(str(value).splitlines()) <= 1, key
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert {key.partition(".")[0] for key in facts} >= {
        "host",
        "limits",
        "versions",
        "network",
        "topology",
    }


@pytest.mark.long
@pytest.mark.serial
def test_the_facts_of_a_machine_are_read_in_a_third_of_a_second():
    """The best of three: this machine has other work, too."""
    if machine_facts.collect()["topology.nvidia_smi_topo_m"]:
        pytest.skip("nvidia-smi takes its own time")
    assert min(timeit.repeat(machine_facts.collect, number=1, repeat=3)) < 0.3


def test_nvml_holds_the_gpus_open_when_nvidia_smi_is_asked(tmp_path: Path) -> None:
    """Without persistence mode nvidia-smi would have to initialise each of them."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho GPU0 $(grep -c libnvidia-ml /proc/$PPID/maps)\n")
    program.chmod(0o755)
    code = (
        "from commbench.hardware import machine_facts;"
        "print(machine_facts.collect()['topology.nvidia_smi_topo_m'])"
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    environment = {**os.environ, **shown(tmp_path, hgx(1)), "PATH": path}
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    name, mappings = answer.stdout.split()
    assert name == "GPU0"
    assert int(mappings) > 0


def test_no_library_under_test_is_imported():
    code = (
        "import sys; from commbench.hardware import machine_facts; machine_facts.collect();"
        "print([name for name in ('torch', 'mpi4py', 'numba', 'pandas') if name in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
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
    return [{"host.boot_id": "a"} | rank_facts for rank_facts in facts]


def test_equal_ranks_do_not_differ():
    assert differences(ranks({"host.kernel": "6"}, {"host.kernel": "6"})) == {}
    assert differences([]) == {}


def test_a_different_value_and_a_missing_one():
    differing = differences(
        ranks({"v.torch": "2.6", "e.X": "1"}, {"v.torch": "2.7", "e.X": "1"}, {"v.torch": "2.6"})
    )
    assert differing == {
        "v.torch": {'"2.6"': [0, 2], '"2.7"': [1]},
        "e.X": {'"1"': [0, 1], "missing": [2]},
    }


def test_true_and_one_and_the_word_missing_are_different_values():
    differing = differences(ranks({}, {"a.b": True}, {"a.b": 1}, {"a.b": "missing"}))
    assert differing == {"a.b": {"missing": [0], "true": [1], "1": [2], '"missing"': [3]}}


def test_what_a_rank_could_not_read_is_no_difference():
    slow = {"versions.git_commit": "a", "versions.error": "git status did not answer within 2 s"}
    quick = {"versions.git_commit": "a", "versions.git_dirty": False}
    assert set(differences(ranks(slow, quick))) == {"versions.error"}
    changed = quick | {"versions.git_dirty": True}
    assert differences(ranks(slow, quick, changed))["versions.git_dirty"] == {
        "false": [1],
        "true": [2],
    }


@pytest.mark.parametrize(
    ("fact", "rest"),
    [
        ("versions.torch", {"versions.error": "OSError()"}),
        ("gpu.driver_version", {"gpu.reason": "NVML: driver not loaded"}),
        ("gpu.own.driver_version", {}),
        ("host.cpu_model", {}),
        ("a.b", {"a.b": None}),
    ],
)
def test_unknown_is_no_difference(fact, rest):
    assert fact not in differences(ranks({fact: "1"}, rest))


@pytest.mark.parametrize("fact", ["environment.NCCL_ALGO", "versions.numba", "run.bind"])
def test_what_is_known_to_be_absent_is_a_difference(fact):
    assert differences(ranks({fact: "1"}, {"host.error": "OSError()"}))[fact] == {
        '"1"': [0],
        "missing": [1],
    }


@pytest.mark.parametrize("key", ["host.load_1min", "limits.shm_free_bytes"])
def test_what_always_varies_is_ignored(key):
    assert differences(ranks({key: 1}, {key: 2})) == {}


@pytest.mark.parametrize(
    "key",
    ["host.hostname", "host.cpu_affinity", "network.interface.eth0.ipv4", "gpu.0.uuid"],
)
def test_what_belongs_to_a_node_must_agree_only_inside_it(key):
    first, other, alien = (
        {"host.boot_id": node, key: value} for node, value in (("a", 1), ("b", 2), ("b", 1))
    )
    assert differences([first, first, other, other]) == {}
    assert differences([first, other, alien]) == {key: {"1": [0, 2], "2": [1]}}


def test_values_that_are_no_json_do_not_break_the_comparison():
    assert list(differences(ranks({"a.b": {1, 2}}, {"a.b": 3}))) == ["a.b"]


def test_by_node_takes_the_first_rank_of_each():
    facts = [{"rank": rank} for rank in range(4)]
    assert facts_by_node(facts, [0, 0, 1, 1]) == [{"rank": 0}, {"rank": 2}]
    assert facts_by_node(facts, [1, 0, 1, 0]) == [{"rank": 1}, {"rank": 0}]


# ---------------------------------------------------------------- software


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "commbench").mkdir()
    (tmp_path / "commbench/a.py").write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_installed_packages():
    facts = machine_facts.version_facts()
    assert "versions.error" not in facts
    assert facts["versions.numpy"] == metadata.version("numpy")
    assert facts["versions.python"].startswith("3.")
    assert facts["versions.python_implementation"] == "CPython"


def test_first_installed_distribution_counts():
    assert machine_facts.installed_version(("no-such-package-here", "numpy")) == metadata.version(
        "numpy"
    )
    assert machine_facts.installed_version(("no-such-package-here",)) is None


def git_facts(tree: Path) -> dict[str, object]:
    sources = (machine_facts.git_commit_facts, machine_facts.git_change_facts)
    return gather("versions", sources, tree)


def test_nccl_of_the_system_is_known_by_the_name_of_its_file(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{tmp_path}/none:{tmp_path}")
    monkeypatch.setattr(machine_facts, "LIBRARY_FOLDERS", ())
    assert machine_facts.nccl_facts(tmp_path) == {"versions.nccl_system": None}
    (tmp_path / "libnccl.so.2.27.7").touch()
    (tmp_path / "libnccl.so.2").symlink_to("libnccl.so.2.27.7")
    assert machine_facts.nccl_facts(tmp_path) == {"versions.nccl_system": "2.27.7"}


def test_a_clean_and_a_changed_checkout(checkout):
    clean = git_facts(checkout)
    assert len(clean["versions.git_commit"]) == 40
    assert clean["versions.git_dirty"] is False
    (checkout / "results").write_text("not code")
    assert git_facts(checkout)["versions.git_dirty"] is False
    (checkout / "commbench/new.py").write_text("2\n")
    assert git_facts(checkout)["versions.git_dirty"] is True


@pytest.mark.parametrize("place", ["HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_SYSTEM"])
def test_no_configuration_of_git_outside_the_checkout_runs_a_program(
    place: str, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    monitor = tmp_path / "monitor"
    monitor.write_text(f"#!/bin/sh\ntouch {ran}\n")
    monitor.chmod(0o755)
    files = {"HOME": ".gitconfig", "XDG_CONFIG_HOME": "git/config", "GIT_CONFIG_SYSTEM": "system"}
    file = tmp_path / "planted" / files[place]
    file.parent.mkdir(parents=True)
    file.write_text(f"[core]\n\tfsmonitor = {monitor}\n")
    is_folder = place != "GIT_CONFIG_SYSTEM"
    monkeypatch.setenv(place, str(tmp_path / "planted" if is_folder else file))
    git(checkout, "status")
    assert ran.exists(), "git by itself runs it"
    ran.unlink()
    assert git_facts(checkout)["versions.git_dirty"] is False
    assert not ran.exists()


def test_a_git_hook_does_not_point_elsewhere(checkout, monkeypatch):
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert git_facts(checkout)["versions.git_commit"]


def test_the_commit_is_known_where_looking_for_changes_takes_too_long(
    checkout, tmp_path, monkeypatch
):
    slow = tmp_path / "git"
    slow.write_text(
        f'#!/bin/sh\ncase "$*" in *status*) sleep 9;; esac\nexec {shutil.which("git")} "$@"\n'
    )
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert len(git_facts(checkout)["versions.git_commit"]) == 40
    monkeypatch.setattr(machine_facts, "GIT_TIMEOUT_S", 0.2)
    facts = gather("versions", [machine_facts.git_change_facts], checkout)
    assert facts == {"versions.error": "git status did not answer within 0.2 s"}


def test_a_repository_without_a_commit_is_an_error_in_the_facts(tmp_path):
    git(tmp_path, "init", "-q")
    facts = gather("versions", [machine_facts.git_commit_facts], tmp_path)
    assert facts == {"versions.error": "git rev-parse failed: fatal: Needed a single revision"}


def test_not_a_checkout_or_no_git(tmp_path, checkout, monkeypatch):
    assert git_facts(tmp_path / "elsewhere") == {}
    monkeypatch.setenv("PATH", "/nowhere")
    assert git_facts(checkout) == {
        "versions.error": "git rev-parse is not installed; git status is not installed"
    }


def test_only_variables_with_known_prefixes_are_recorded():
    environ = {
        "NCCL_DEBUG": "INFO",
        "HOME": "/root",
        "MASTER_ADDR": "10.0.0.1",
        "NCCLX": "1",
        "GLOO_SOCKET_IFNAME": "",
    }
    assert machine_facts.environment_facts(environ) == {
        "environment.GLOO_SOCKET_IFNAME": "",
        "environment.MASTER_ADDR": "10.0.0.1",
        "environment.NCCL_DEBUG": "INFO",
    }


@pytest.mark.parametrize(
    "name",
    [
        *(
            "RANK",
            "LOCAL_RANK",
            "GROUP_RANK",
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "PMI_FD",
        ),
        *(
            "SLURM_PROCID",
            "SLURM_LOCALID",
            "SLURM_NODEID",
            "SLURM_TASK_PID",
            "SLURM_GTIDS",
            "OMPI_MCA_ess_base_vpid",
        ),
    ],
)
def test_variables_that_differ_from_rank_to_rank_are_left_out(name):
    assert machine_facts.environment_facts({name: "3"}) == {}


@pytest.mark.parametrize(
    "name", ["OMPI_COMM_WORLD_SIZE", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES", "UCX_TLS"]
)
def test_variables_that_resemble_those_of_ranks_are_recorded(name):
    assert machine_facts.environment_facts({name: "3"}) == {f"environment.{name}": "3"}


@pytest.mark.parametrize(
    "name",
    [
        *(
            "NCCL_TOKEN",
            "SLURM_JWT",
            "COMMBENCH_API_KEY",
            "TORCH_secret_x",
            "UCX_PASSWORD",
            "OMPI_MCA_Passwd",
        ),
        *(
            "FI_CREDENTIALS",
            "SLURM_AUTH_PLUGIN",
            "MKL_COOKIE",
            "CUDA_KEYRING",
            "COMMBENCH_PASSPHRASE",
        ),
    ],
)
def test_values_of_variables_with_a_secret_name_are_masked(name):
    """The name stays; ranks with different values can still be told apart, but not in the
    record."""
    (recorded,), (other,) = (
        machine_facts.environment_facts({name: value}).values() for value in ("hunter2", "hunter3")
    )
    assert recorded.startswith("*** sha256:") and "hunter2" not in recorded
    assert recorded != other and machine_facts.environment_facts({name: "hunter2"}) == {
        f"environment.{name}": recorded
    }
    assert machine_facts.without_digests(recorded) == machine_facts.without_digests(other) == "***"


@pytest.mark.parametrize(
    ("value", "masked"),
    [
        ("http://me:hunter2@proxy:3128/x", "http://***@proxy:3128/x"),
        ("https://hunter2@host/repo", "https://***@host/repo"),
        ("https://me:hunter2/with@both@host", "https://***@host"),
        ("me:hunter2@host", "***@host"),
        ("a=1,me:hunter2@host", "a=1,***@host"),
        ("--token=hunter2 --size 3", "--token=*** --size 3"),
        ('{"password": "hunter2"}', '{"password": ***}'),
        ("eyJhbGciOi.eyJzdWIiOi.SflKxw", "***"),
        ("eth0,eth1", "eth0,eth1"),
        ("/opt/ucx:/opt/gcc@12/lib", "/opt/ucx:/opt/gcc@12/lib"),
        ("mlx5_0:1,mlx5_1:1", "mlx5_0:1,mlx5_1:1"),
        ("tcp://10.0.0.1:29500", "tcp://10.0.0.1:29500"),
    ],
)
def test_secrets_inside_a_value_are_masked(value, masked):
    recorded = machine_facts.environment_facts({"NCCL_X": value})["environment.NCCL_X"]
    assert machine_facts.without_digests(recorded) == masked
    assert (recorded == masked) == (value == masked), (
        "a digest where something was hidden, and only there"
    )
    assert "hunter2" not in recorded


def test_odd_names_and_values_become_plain_keys_and_lines():
    facts = machine_facts.environment_facts({"OMPI_a b%%": "x\ny\t\0z \udcff", "FI_.": "1"})
    assert facts == {"environment.OMPI_a_b__": "x y z ?", "environment.FI_._": "1"}
    json.dumps(facts).encode()


def test_the_real_environment_is_read_when_asked(monkeypatch):
    monkeypatch.setenv("COMMBENCH_COLOUR", "blue")
    assert machine_facts.collect()["environment.COMMBENCH_COLOUR"] == "blue"


def test_long_host_lists_are_masked_quickly():
    value = ",".join(f"node{number}:8" for number in range(20_000))
    assert secrets.mask(value) == value
