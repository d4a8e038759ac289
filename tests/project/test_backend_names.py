"""No backend is named outside of backends/ and the features that have one."""

from __future__ import annotations

from pathlib import Path

from places import BACKENDS, PACKAGES, ROOT
from source_texts import texts

FILES = {
    str(file.relative_to(package.parent)): file.read_text()
    for package in PACKAGES
    for file in sorted(package.rglob("*.py"))
}
# of a feature: FOLDER/backend/NAME.yaml
FOLDERS = {str(file.parents[1].relative_to(ROOT)) for file in BACKENDS.values()}
OUTSIDE = [
    name
    for name in FILES
    if not name.startswith("commbench/backends/") and str(Path(name).parent) not in FOLDERS
]


# files whose texts mean something else than a backend that is asked for its name
OTHERWISE = {
    "commbench/core/extras.py": "an extra of the distribution",
    "commbench/core/suggestions.py": "what users type for one",
    "commbench/hardware/mpi_library.py": "a transport of UCX",
    "commbench/hardware/mpi_transports.py": "a transport of Open MPI",
    "commbench/measure/nccl_evidence.py": "a key of run.json",
    "commbench/measure/transport_facts.py": "the protocol, as a library reports it",
    "commbench/measure/transports.py": "the protocol, in the name of a transport",
    "commbench/features/documents/layers.py": "which library lies on which",
    "commbench/features/documents/reference.py": "a library in the text of a row",
    "commbench/features/other_tools/readers/aiconfigurator.py": "of the rows that are read",
    "commbench/features/other_tools/readers/all_reduce_bench.py": "of the rows that are read",
    "commbench/features/other_tools/readers/iperf3_json.py": "of the rows that are read",
    "commbench/features/other_tools/readers/nccl_inspector.py": "of the rows that are read",
    "commbench/features/other_tools/readers/nccl_tests.py": "of the rows that are read",
    "commbench/features/other_tools/readers/osu_text.py": "of the rows that are read",
}


def test_no_backend_is_named_outside_of_its_folder() -> None:
    found = {file for file in OUTSIDE if not {*BACKENDS}.isdisjoint(texts(FILES[file]))}
    assert found == {*OTHERWISE}, "let the class say it: Backend in core/protocols.py"


def test_no_benchmark_speaks_of_a_backend() -> None:
    for file, source in FILES.items():
        if file.startswith("commbench/benchmarks/"):
            assert {*BACKENDS}.isdisjoint(texts(source)), file


def test_what_the_simulated_world_is_stands_in_one_place() -> None:
    """`Case.has_model_clock`, `Backend.hosts_ranks`, `World.is_hosted`."""
    words = ('"virtual"', 'launchers == "none"', 'launchers != "none"')
    places = {file for file, source in FILES.items() for word in words if word in source}
    expected = {"core/variables.py", "core/protocols.py", "features/simulated/backend.py"}
    assert places == {f"commbench/{file}" for file in expected}
