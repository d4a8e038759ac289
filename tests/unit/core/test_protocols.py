"""What a backend declares has defaults in the protocol; what it must define is required."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from commbench.core.case import World
from commbench.core.program import Program
from commbench.core.protocols import Backend, Control
from commbench.core.variables import Case


@dataclass(frozen=True)
class Smallest(Backend):
    name: ClassVar[str] = "smallest"
    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    launchers: ClassVar[str] = "none"

    def missing(self, device: str) -> str | None:
        return None

    def supports(self, case: Case, size: int, program: Program) -> str | None:
        return None

    def open(self, world: World, control: Control, device: str) -> Any: ...


@dataclass(frozen=True)
class WithLibrary(Smallest):
    library: str = "auto"


def test_a_backend_inherits_what_it_does_not_declare() -> None:
    backend = Smallest()
    assert isinstance(backend, Backend)
    assert (backend.engines, backend.axes, backend.threads_per_rank) == (("python",), (), 1)
    assert backend.sharing_refusal({}) is None
    assert (backend.library, backend.threads, backend.staging(Program())) == (
        None,
        "funneled",
        "none",
    )
    assert backend.environment("off", "lo") == {}


def test_a_setting_of_the_backend_replaces_the_default() -> None:
    assert (WithLibrary().library, WithLibrary("mpich").library) == ("auto", "mpich")
