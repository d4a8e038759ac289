"""Launchers are files of the folders `launcher`: the registry finds a new one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from places import LAUNCHERS

from commbench.backends.mpi.backend import Mpi
from commbench.backends.torch.gloo import Gloo
from commbench.backends.torch.nccl import Nccl
from commbench.config.compose import ConfigComposer
from commbench.config.settings import Settings
from commbench.core.errors import ConfigError
from commbench.core.launchers import launchers
from commbench.core.layout import Layout
from commbench.features.cupy.backend import CupyNccl
from commbench.features.ipc_copy.backend import IpcCopy
from commbench.features.simulated.backend import Simulated
from commbench.features.tcp.backend import Tcp
from commbench.runtime.launchers import registry
from commbench.runtime.launchers.srun import ALLOCATED, Srun


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.delenv(ALLOCATED, raising=False)
    with ConfigComposer() as composer:
        return composer.jobs(["layout=1x2"], multirun=False)[0].settings


def test_every_file_is_a_launcher_by_precedence() -> None:
    assert {launcher.name for launcher in launchers()} == LAUNCHERS.keys() - {registry.DEFAULT}
    order = [launcher.precedence for launcher in launchers()]
    assert order == sorted(set(order))


def test_backends_name_no_launcher_but_what_they_need() -> None:
    assert registry.allowed(Gloo()) == [launcher.name for launcher in launchers()]
    assert registry.allowed(Mpi()) == [each.name for each in launchers() if each.starts_mpi]
    assert registry.allowed(Simulated()) == []


def test_the_launcher_is_the_chosen_one_or_the_default_or_that_of_the_allocation(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert registry.launcher_of(settings).name == "local"
    assert registry.launcher_of(replace(settings, backend=Mpi())).name == "mpirun"
    assert registry.launcher_of(replace(settings, launcher=Srun())).name == "srun"
    with pytest.raises(ConfigError, match="launcher=local can't start mpi; allowed: mpirun, srun"):
        registry.launcher_of(replace(settings, backend=Mpi(), launcher=launchers()[0]))
    monkeypatch.setenv(ALLOCATED, "2")
    assert registry.launcher_of(settings).name == "local"
    assert registry.launcher_of(replace(settings, layouts=(Layout(2, 1),))).name == "srun"


def test_on_one_machine_ranks_that_need_no_mpi_are_forked(settings: Settings) -> None:
    for backend in (Gloo(), Tcp(), Nccl(), CupyNccl(), IpcCopy()):
        likely = registry.likely_launcher([f"backend={backend.name}"])
        assert registry.launcher_of(replace(settings, backend=backend)).name == "local"
        assert likely is not None and likely.name == "local"
