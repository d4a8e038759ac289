"""Every launcher: a command line for this machine, and a real world for every backend
that allows it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from composed import written_in
from places import BACKENDS, LAUNCHERS

from commbench.cli.main import main
from commbench.config.compose import ConfigComposer, resolved
from commbench.config.targets import construct
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.runtime.launchers.registry import allowed

QUICK = (
    "benchmark=barrier",
    "sizes=[8]",
    "timing=fixed",
    "timing.repetitions=6",
    "timing.warmup_s=0",
)


def built(group: str, files: Mapping[str, Path]) -> list[Any]:
    """What the files of a group make, without composing: this is asked at each collection of
    tests."""
    return [
        construct(written_in(file), group, ()) for name, file in files.items() if name != "auto"
    ]


def launchers() -> list[str]:
    return [launcher.name for launcher in built("launcher", LAUNCHERS)]


def pairs() -> list[tuple[str, list[str]]]:
    """Launchers that need no cluster, with the backends that they start here by the backends' own
    tables."""
    here = [launcher.name for launcher in built("launcher", LAUNCHERS) if launcher.is_local]
    known = built("backend", BACKENDS)
    usable = [backend for backend in known if backend.missing(backend.devices[0]) is None]
    return [
        (name, [backend.name for backend in usable if name in allowed(backend)]) for name in here
    ]


@pytest.mark.parametrize("name", launchers())
def test_it_makes_a_command_line(name: str) -> None:
    with ConfigComposer() as composer:
        launcher = construct(
            resolved(composer.config([f"launcher={name}"]))["launcher"], "launcher", ()
        )
    try:
        command = launcher.command(Layout(1, 3), ["backend=gloo", "label=a b"], None, [])
    except ConfigError as error:
        pytest.skip(str(error))  # its program is not installed
    assert launcher.name == name
    if launcher.forks:  # it is told by a socket what to start
        assert command[0] == sys.executable
        return
    assert command[-2:] == ["backend=gloo", "label=a b"], "the overrides come last and unchanged"
    assert any("3" in word for word in command) and sys.executable in command
    assert all(isinstance(text, str) for pair in launcher.environment(3).items() for text in pair)


@pytest.mark.long
@pytest.mark.parametrize(("launcher", "backends"), pairs())
def test_it_starts_a_real_world(
    started_world: Callable[..., Any], world: Callable[..., Any], launcher: str, backends: list[str]
) -> None:
    """The first backend as a user starts it."""
    for start, started in ((started_world, backends[:1]), (world, backends[1:])):
        run = start(
            "commbench", "-m", f"launcher={launcher}", f"backend={','.join(started)}", *QUICK
        )
    cases = run.cases
    assert (
        sorted(cases.backend) == sorted(backends)
        and set(cases.status) == {"ok"}
        and set(cases.world_size) == {2}
    )


def test_a_backend_refuses_a_launcher_that_it_can_not_live_under(
    outside_any_world: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launcher=torchrun", "backend=mpi", *QUICK]) == 2
    assert "launcher=torchrun can't start mpi; allowed: mpirun" in capsys.readouterr().err
