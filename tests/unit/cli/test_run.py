"""What the command says of a run whose worlds it starts, with worlds that break at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from commbench.cli.run import run
from commbench.core.errors import WorldBroken
from commbench.core.run_folder import write_json
from commbench.world import launch


@pytest.mark.parametrize("begun", [True, False])
def test_a_run_that_lost_its_ranks_says_how_to_finish_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """Unless nothing was measured."""

    def start(spec: launch.WorldSpec) -> int:
        if begun:
            write_json(Path(spec.folder) / "run.json", {"status": "broken", "exit_status": 3})
        error = WorldBroken("rank 1 was killed")
        error.stacks = ("rank 1: case.py:1 measure",)
        raise error

    monkeypatch.setattr(launch, "start", start)
    with pytest.raises(WorldBroken) as broken:
        run(["backend=gloo", "layout=1x2", f"output={tmp_path}"])
    hint = str(broken.value).removeprefix("rank 1 was killed")
    assert (
        hint.startswith(f"; finish it with: commbench resume {tmp_path}/") if begun else hint == ""
    )
    assert broken.value.stacks == ("rank 1: case.py:1 measure",)
