"""Launchers are the files of conf/launcher: the registry finds a new one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest
from places import ROOT

from commbench.backends.cuda_ipc.backend import IpcCopy
from commbench.backends.cupy.backend import CupyNccl
from commbench.backends.mpi.backend import Mpi
from commbench.backends.simulated.backend import Simulated
from commbench.backends.tcp.backend import Tcp
from commbench.backends.torch.gloo import Gloo
from commbench.backends.torch.nccl import Nccl
from commbench.config.compose import ConfigComposer
from commbench.config.settings import Settings
from commbench.core.case import RankIdentity
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.runtime.launchers import registry
from commbench.runtime.launchers.srun import ALLOCATED, Srun
from commbench.runtime.rendezvous import exported_identity


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.delenv(ALLOCATED, raising=False)
    with ConfigComposer() as composer:
        return composer.jobs(["layout=1x2"], multirun=False)[0].settings


def test_every_file_is_a_launcher_by_precedence() -> None:
    names = {file.stem for file in (ROOT / "conf" / "launcher").glob("*.yaml")} - {registry.DEFAULT}
    assert {launcher.name for launcher in registry.launchers()} == names
    assert [launcher.name for launcher in registry.launchers()] == [
        "local",
        "torchrun",
        "mpirun",
        "srun",
        "ssh",
    ]


def test_backends_name_no_launcher_but_what_they_need() -> None:
    assert registry.allowed(Gloo()) == ["local", "torchrun", "mpirun", "srun", "ssh"]
    assert registry.allowed(Mpi()) == ["mpirun", "srun"]
    assert registry.allowed(Simulated()) == []


def test_the_launcher_is_the_chosen_one_or_the_default_or_that_of_the_allocation(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert registry.launcher_of(settings).name == "local"
    assert registry.launcher_of(replace(settings, backend=Mpi())).name == "mpirun"
    assert registry.launcher_of(replace(settings, launcher=Srun())).name == "srun"
    with pytest.raises(ConfigError, match="launcher=local can't start mpi; allowed: mpirun, srun"):
        registry.launcher_of(replace(settings, backend=Mpi(), launcher=registry.launchers()[0]))
    monkeypatch.setenv(ALLOCATED, "2")
    assert registry.launcher_of(settings).name == "local"
    assert registry.launcher_of(replace(settings, layouts=(Layout(2, 1),))).name == "srun"


def test_on_one_machine_ranks_that_need_no_mpi_are_forked(settings: Settings) -> None:
    for backend in (Gloo(), Tcp(), Nccl(), CupyNccl(), IpcCopy()):
        likely = registry.likely_launcher([f"backend={backend.name}"])
        assert registry.launcher_of(replace(settings, backend=backend)).name == "local"
        assert likely is not None and likely.name == "local"


@dataclass(frozen=True)
class Grid(Srun):
    name: ClassVar[str] = "grid"
    precedence: ClassVar[int] = 15

    def detect(self, environ: object) -> RankIdentity | None:
        assert isinstance(environ, dict)
        if "GRID_RANK" not in environ:
            return None
        return exported_identity("grid", environ, "GRID_RANK", "GRID_SIZE", "GRID_LOCAL_ID")


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """launchers/grid.py and conf/launcher/grid.yaml, as somebody else would add them."""
    module = ModuleType("commbench.runtime.launchers.grid")
    module.Grid = Grid  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "commbench.runtime.launchers.grid", module)
    folder = tmp_path / "launcher"
    folder.mkdir()
    for name in (*(launcher.name for launcher in registry.launchers()), registry.DEFAULT, "grid"):
        (folder / f"{name}.yaml").write_text("")
    monkeypatch.setattr(registry, "files", lambda _: tmp_path)
    registry.launchers.cache_clear()
    yield
    registry.launchers.cache_clear()


@pytest.mark.usefixtures("grid")
def test_a_new_launcher_is_found_recognised_and_offered(settings: Settings) -> None:
    environ = {
        "GRID_RANK": "1",
        "GRID_SIZE": "2",
        "GRID_LOCAL_ID": "1",
        "PMI_RANK": "1",
        "PMI_SIZE": "2",
    }
    assert registry.detect(environ) == RankIdentity("grid", 1, 2, 1)
    assert registry.allowed(Mpi()) == ["grid", "mpirun", "srun"]
    assert registry.launcher_of(replace(settings, backend=Mpi())).name == "mpirun", (
        "not every machine has a scheduler"
    )
    assert registry.mpi_library(SimpleNamespace(launchers="any", library="auto"), Grid()) is None  # type: ignore[arg-type]
