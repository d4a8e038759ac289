"""Each statement of docs/security.md has a test, here or elsewhere; those that only advise or that
say what is not protected are listed too."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

import commbench
from commbench.cli.main import main
from commbench.config.compose import ConfigComposer
from commbench.core.errors import ConfigError
from commbench.hardware import machine_facts
from commbench.world import rank_server

FILES = "unit/config/test_fuzz_files.py::"
SECRETS = "unit/core/test_secrets.py::"
HERE = "project/test_security.py::"
LISTENING = "worlds/test_listening.py::"
ADVICE = "advice"
OTHERS = "other programs"
UNPROTECTED = "not protected"
# the beginning of each statement -> the test that holds it
PROOFS = {
    "commbench is made for clusters": ADVICE,
    "This page says": ADVICE,
    "| listener": ADVICE,
    "| rank 0's store with `launcher=local`": HERE + "test_ranks_of_this_machine_meet_on_loopback",
    "| rank 0's store under mpirun": LISTENING + "test_the_meeting_address_of_an_mpi_world",
    "| rank 0's store with `MASTER_ADDR`": LISTENING
    + "test_a_name_that_is_loopback_only_here_is_reached_from_elsewhere",
    "| a node's own store": "unit/world/test_node_control.py::"
    "test_only_large_worlds_of_shared_nodes_have_two_levels",
    "| `backend=tcp`": "unit/world/test_rendezvous.py::test_one_node_talks_over_loopback",
    "| `sync=window`": "unit/measure/test_window.py::"
    "test_nodes_meet_over_sockets_while_a_stranger_waits_at_every_port",
    "| rank 0's store under srun": "unit/launchers/test_srun.py::"
    "test_jobs_and_steps_that_may_share_a_node_do_not_share_a_port",
    "| torchrun's agent": OTHERS,
    "| mpirun's daemons": OTHERS,
    "Anyone who can reach a store": UNPROTECTED,
    "They can end a run and falsify its numbers": "unit/world/test_store.py::"
    "test_a_stranger_is_hung_up_on_and_changes_nothing",
    "Use a network that you trust": ADVICE,
    "A foreign connection": "unit/world/test_peer_listener.py::"
    "test_a_stranger_is_dropped_and_a_peer_does_not_wait_for_that",
    "It changes nothing": LISTENING
    + "test_a_stranger_at_a_tcp_port_of_a_real_run_changes_nothing_and_is_told_once",
    "The payload on the wire": UNPROTECTED,
    "`run.json` and the parquet files contain": HERE + "test_what_a_run_records_of_its_environment",
    "If the name of a variable": SECRETS + "test_an_override_as_it_is_written_down",
    "The same holds for": SECRETS + "test_options_of_a_launcher_are_recorded_without_credentials",
    "The user part of a URL": SECRETS + "test_credentials_in_a_text_are_masked",
    "To compare such values": SECRETS + "test_no_file_of_a_run_holds_a_credential",
    "`commbench resume` reads": SECRETS
    + "test_a_recorded_mapping_takes_its_values_from_the_environment",
    "`label` and the messages": HERE + "test_what_a_run_records_of_its_environment",
    "Command lines are visible": ADVICE,
    "The command lines of ranks": SECRETS
    + "test_command_lines_of_ranks_have_no_credential_even_where_a_run_goes_on",
    "Files get the permissions": HERE + "test_files_get_the_permissions_of_the_umask",
    "The pages of parquet files": "unit/results/test_load.py::"
    "test_a_flipped_bit_is_never_another_number",
    "- A `_target_` is instantiated": FILES + "test_a_hostile_configuration_runs_nothing",
    "`allow` is accepted": FILES + "test_a_hostile_configuration_runs_nothing",
    "A module that you allow": UNPROTECTED,
    "- `${oc.env:NAME}` is refused": FILES + "test_a_hostile_configuration_runs_nothing",
    "- A file in `--config-dir` cannot set": HERE
    + "test_a_file_names_no_program_and_no_path_of_a_library",
    "- Below `hydra`": FILES + "test_a_file_sets_nothing_below_hydra_but_a_sweep",
    "Hydra's logging": FILES + "test_a_file_sets_nothing_below_hydra_but_a_sweep",
    "The command line may set all": FILES + "test_the_user_sets_what_a_file_may_not",
    "- Of environment variables": FILES + "test_a_file_sets_the_values_of_communication_libraries",
    "Any other may load code": FILES
    + "test_a_file_sets_no_variable_that_may_load_code_or_name_a_file",
    "- Only `output`": HERE + "test_no_value_but_output_becomes_part_of_a_path",
    "Without HOME": "unit/cli/test_main.py::test_a_home_that_another_user_has_planted_is_not_taken",
    "git, which names": "unit/hardware/test_machine_facts.py::"
    "test_no_configuration_of_git_outside_the_checkout_runs_a_program",
    "`replay` reads traces": "unit/workloads/readers/test_flight_recorder.py::"
    "test_a_pickle_of_something_else_is_refused_in_one_line",
    "A pickle (Flight Recorder)": "unit/workloads/readers/test_flight_recorder.py::"
    "test_a_pickle_that_would_run_code_is_refused_and_runs_none",
    "A job.json": "unit/workloads/test_workload_file.py::"
    "test_no_name_of_a_trace_and_no_absolute_time_is_in_the_file",
    "`report`, `compare`, `export`": FILES + "test_a_hostile_file_of_cases",
    "Their output is safe": FILES + "test_runs_of_wrong_types_and_hostile_texts",
    "The page of `report`": "unit/report/test_page.py::test_texts_stay_texts_and_tags_are_balanced",
    "`export` writes text": "unit/cli/test_export.py::"
    "test_what_a_spreadsheet_would_run_gets_a_quote",
    "What you may not read": "unit/cli/test_no_permission.py::"
    "test_each_command_says_the_same_of_a_run_that_may_not_be_read",
    "- The stores": UNPROTECTED,
    "- `commbench resume RUN`": UNPROTECTED,
    "- Very large files": UNPROTECTED,
    "- Root": UNPROTECTED,
}
# a paragraph, an item, a row, or what begins after a full stop
BREAKS = r"\n(?=\n|- |\| )|(?<=\.)\s(?=[A-Z`]|git)"
WORDS = ("backend=simulated", "benchmark=all_reduce", "sizes=[8]", "timing=fixed")
RUN = (*WORDS, "timing.repetitions=5", "writer=[parquet,jsonl]")


def statements() -> list[str]:
    text = (ROOT / "docs" / "security.md").read_text()
    parts = (" ".join(part.split()) for part in re.split(BREAKS, text))
    return [part for part in parts if part and not part.startswith("#")]


def test_each_statement_has_its_test() -> None:
    without = [each for each in statements() if not each.startswith(tuple(PROOFS))]
    stale = [key for key in PROOFS if not any(each.startswith(key) for each in statements())]
    assert (without, stale) == ([], [])


@pytest.mark.parametrize("proof", sorted({proof for proof in PROOFS.values() if "::" in proof}))
def test_the_test_of_a_statement_exists(proof: str) -> None:
    file, _, name = proof.partition("::")
    assert f"def {name}(" in (ROOT / "tests" / file).read_text()


# ---------------------------------------------------------------- statements without another test


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outside_any_world: None) -> None:
    monkeypatch.chdir(tmp_path)


def test_ranks_of_this_machine_meet_on_loopback() -> None:
    assert rank_server.LOOPBACK == "127.0.0.1"


def test_what_a_run_records_of_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("UNRELATED", "hunter2")
    folder = commbench.run(*RUN, "label='token=of my own'")
    record = json.loads((folder / "run.json").read_text())
    (node,) = record["provenance"]["nodes"]
    assert node["environment.NCCL_ALGO"] == "Ring" and "host.kernel" in node
    assert not machine_facts.is_recorded("UNRELATED")
    assert "hunter2" not in (folder / "run.json").read_text()
    assert commbench.load(folder).label[0] == "token=of my own"


@pytest.mark.parametrize("umask", [0o077, 0o022, 0o027])
def test_files_get_the_permissions_of_the_umask(umask: int) -> None:
    before = os.umask(umask)
    try:
        folder = commbench.run(*RUN)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o777 & ~umask
    files = [path for path in folder.rglob("*") if path.is_file()]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files}
    assert len(files) >= 4 and set(modes.values()) == {0o666 & ~umask}, modes


def write(name: str, text: str) -> None:
    path = Path("conf", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("group", "text", "message"),
    [
        ("launcher", "mpirun.Mpirun\nagent: /bin/sh\nhosts: [a]\n", "launcher.agent=/bin/sh"),
        ("launcher", "mpirun.Mpirun\noptions: [--x]\n", "launcher.options=['--x']"),
        ("launcher", "srun.Srun\noptions: [--x]\n", "launcher.options=['--x']"),
        ("backend", "mpi.backend.Mpi\nlibrary: /tmp/x.so\n", "backend.library=/tmp/x.so"),
        ("backend", "mpi.backend.Mpi\nlibrary: ./x.so\n", "backend.library=./x.so"),
    ],
)
def test_a_file_names_no_program_and_no_path_of_a_library(
    group: str, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(f"{group}/mine.yaml", f"_target_: commbench.{group}s.{text}")
    words = [f"{group}=mine", "sizes=[8]", "plan=true"]
    assert main(["--config-dir", "conf", *words]) == 2
    assert f"a file sets {message}, which " in capsys.readouterr().err


def paths_below(root: Path) -> set[Path]:
    return {path.relative_to(root) for path in root.rglob("*")}


def test_no_value_but_output_becomes_part_of_a_path(tmp_path: Path) -> None:
    """Values that would leave the folder if they were."""
    climbing = "../../climbed"
    values: dict[str, Any] = {"label": climbing, "env": {"NCCL_ALGO": climbing}}
    folder = commbench.run(*RUN, values, f"output={tmp_path / 'here'}")
    assert folder.parent == tmp_path / "here"
    outside = {path for path in paths_below(tmp_path) if path.parts[0] != "here"}
    assert outside == set() and not (tmp_path.parent / "climbed").exists()
    for word in (f"stage={climbing}", f"experiment={climbing}", f"benchmark={climbing}"):
        with ConfigComposer() as composer, pytest.raises(ConfigError):
            composer.jobs([word], False)
