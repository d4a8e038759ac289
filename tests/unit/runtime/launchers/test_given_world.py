"""Whose the variables of a process are: a rank's own, or left over from a shell that a launcher has
started. The shells and their ancestors are real."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from connected_ranks import on_ranks
from places import DATA

from commbench.backends.torch.gloo import Gloo
from commbench.core.case import RankIdentity
from commbench.core.errors import ConfigError
from commbench.runtime.control import StoreControl
from commbench.runtime.exit_protocol import FOLDER
from commbench.runtime.launchers.given_world import UNREAD_RANKS, world_note
from commbench.runtime.launchers.join import connect
from commbench.runtime.launchers.registry import detect, settle_world
from commbench.runtime.rendezvous import assemble, check_layouts

Environment = dict[str, str]
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x",
    "RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
PMI = {"PMI_RANK": "0", "PMI_SIZE": "1"}
FLUX = PMI | {"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "1", "FLUX_JOB_ID": "f2aKx"}
PALS = PMI | {"PALS_RANKID": "0", "PALS_LOCAL_RANKID": "0", "PALS_APID": "7d2c"}
STEP = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0"}
PROGRAM = """
import os
from commbench.runtime.launchers.registry import detect, settle_world
print(settle_world(os.environ))
print(detect(os.environ))
"""


def saved(name: str) -> list[Environment]:
    ranks: list[Environment] = json.loads((DATA / "environments" / f"{name}.json").read_text())
    return ranks


def seen_from(shell: list[str], environ: Environment, typed: str) -> list[str]:
    """The note and the identity in a command that this shell runs."""
    ended = subprocess.run(
        shell, input=typed, env=environ, capture_output=True, text=True, timeout=30, check=True
    )
    return ended.stdout.splitlines()


@pytest.fixture
def command(tmp_path: Path) -> str:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    return f"{sys.executable} {program}\n"


@pytest.mark.parametrize("environ", [TORCHRUN, PMI, FLUX, PALS, STEP])
def test_a_world_of_one_rank_is_left_to_the_shell_that_it_was_started_for(
    environ: Environment, command: str
) -> None:
    note, identity = seen_from(["bash", "--norc"], environ, command)
    assert identity == "None"
    assert "are ignored: they are of the shell" in note
    assert "(bash, pid " in note and note.endswith("commbench starts its own ranks")


def test_a_script_that_a_launcher_starts_is_the_rank(command: str, tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text(command)
    for shell in (["bash", str(script)], ["bash", "-c", f"{command} true"]):
        note, identity = seen_from(shell, TORCHRUN, "")
        assert identity.startswith("RankIdentity(launcher='torchrun', rank=0, size=1")
        assert note == (
            "this is rank 0 of 1 rank of torchrun (RANK=0, WORLD_SIZE=1); to let commbench"
            " start ranks of its own: env -u RANK commbench ..."
        )


def test_a_launcher_inside_of_the_shell_starts_ranks(command: str) -> None:
    inner = "TORCHELASTIC_RUN_ID=y MASTER_PORT=29501"
    note, identity = seen_from(["bash", "--norc"], TORCHRUN, f"{inner} {command}")
    assert "RankIdentity" in identity and "of torchrun" in note


def test_one_rank_of_several_in_a_shell_waits_for_the_others_and_says_so(command: str) -> None:
    environ = TORCHRUN | {"WORLD_SIZE": "2"}
    note, identity = seen_from(["bash", "--norc"], environ, command)
    assert "size=2" in identity and "the other 1 must be started, too" in note


def test_the_shell_of_a_terminal_step_has_no_other_tasks_to_wait_for(command: str) -> None:
    environ = STEP | {"SLURM_NTASKS": "2", "SLURM_PTY_PORT": "1"}
    assert seen_from(["bash", "--norc"], environ, command)[1] == "None"
    assert detect(environ) is not None, "srun --pty -n 2 commbench"


def test_a_step_of_one_interactive_task_is_no_world_whatever_runs_in_it() -> None:
    [environ] = saved("srun_pty")
    assert detect(environ) is None
    note = settle_world(dict(environ))
    assert note is not None and "a step of one interactive task (srun --pty)" in note


def test_ranks_of_a_parent_are_in_its_world_wherever_it_was_typed() -> None:
    environ = saved("srun_pty")[0] | {FOLDER: "/results/x"}
    assert detect(environ) == RankIdentity("srun", 0, 1, 0, "0")
    assert settle_world(environ) is None


def test_a_world_by_env_is_announced_by_rank_0_alone() -> None:
    notes = [settle_world(environ) for environ in saved("env_pytorchjob")]
    assert notes == [
        "this is rank 0 of 2 ranks of torch's env:// at job-master-0:23456 (RANK=0,"
        " WORLD_SIZE=2); to let commbench start ranks of its own: env -u RANK commbench ...",
        None,
    ]


def test_a_world_by_env_without_other_ranks_is_none() -> None:
    environ = saved("env_pytorchjob")[0] | {"WORLD_SIZE": "1"}
    assert detect(environ) is None
    note = settle_world(environ)
    assert note is not None and "no launcher has started this process" in note
    assert "RANK" not in environ, "fresh ranks would take themselves for rank 0"


def test_an_incomplete_world_by_env_is_named() -> None:
    environ = saved("env_pytorchjob")[0]
    del environ["MASTER_PORT"]
    assert world_note(None, None, environ) == (
        "RANK=0, WORLD_SIZE=2 are ignored without MASTER_PORT; commbench starts its own ranks"
    )


def test_a_rank_alone_is_named() -> None:
    assert world_note(None, None, {"RANK": "3"}) == (
        "RANK=3 is ignored without WORLD_SIZE and MASTER_ADDR and MASTER_PORT; commbench starts its"
        " own ranks"
    )


@pytest.mark.parametrize("ask", [detect, settle_world])
@pytest.mark.parametrize("name", UNREAD_RANKS)
def test_a_rank_that_is_not_told_of_how_many_starts_no_world(
    name: str, ask: Callable[[Environment], object]
) -> None:
    with pytest.raises(ConfigError, match=f"{name}=1: .* has started this process as a rank"):
        ask({name: "1"})
    assert detect(saved("torchrun")[1] | {name: "7"}) == RankIdentity("torchrun", 1, 2, 1, "0")


def test_prterun_exports_no_number_of_ranks() -> None:
    with pytest.raises(ConfigError, match=r"PMIX_RANK=0: prterun has .* --personality ompi"):
        settle_world(saved("prterun")[0])


def test_the_shell_of_a_launcher_that_is_not_read_is_no_rank(command: str) -> None:
    """As that of salloc, where Slurm's default is PMIx."""
    note, identity = seen_from(["bash", "--norc"], {"PMIX_RANK": "0"}, command)
    assert identity == "None"
    assert note.startswith("PMIX_RANK=0 is ignored: it is of the shell that this command was typed")


@pytest.mark.parametrize("name", ["none", "torchrun", "openmpi5", "mpich_hydra", "srun_step"])
def test_a_world_that_a_launcher_started_is_taken_without_a_message(name: str) -> None:
    assert [settle_world(environ) for environ in saved(name)] == [None] * len(saved(name))


def test_worlds_of_one_rank_may_run_side_by_side_at_one_exported_address() -> None:
    place = RankIdentity("torchrun", 0, 1, 0)
    controls = [connect(place, Gloo(), environ=TORCHRUN) for _ in range(2)]
    assert [control.decide(number, 5.0) for number, control in enumerate(controls)] == [0, 1]


def test_a_misfit_is_an_error_that_rank_0_prints_for_all() -> None:
    def misfit(control: StoreControl) -> tuple[str, bool]:
        world = assemble(RankIdentity("torchrun", control.rank, 3, 0), control)
        from commbench.core.layout import Layout

        with pytest.raises(ConfigError) as caught:
            check_layouts([Layout(1, 8)], world)
        return str(caught.value), caught.value.shared

    text = (
        "layout 1x8 does not fit into this world of 1 node(s) with 3 rank(s), taken from torchrun's"
        " variables; start more ranks or choose a smaller layout"
    )
    assert on_ranks(3, misfit) == [(text, True)] * 3
