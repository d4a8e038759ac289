"""Settings of MPI libraries: as the installed ones read them, and which have no effect."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from loops import for_each

from commbench.hardware.library_settings import (
    Setting,
    effect_text,
    judged,
    problem_texts,
    settings_of,
)
from commbench.hardware.mpi_library import MpiKind, MpiLibrary, find

LINKS = Setting("btl_tcp_links", "4", "environment")


def settings(kind: MpiKind, environ: Mapping[str, str]) -> dict[str, Setting]:
    library = find(kind)
    assert library is not None, "make test installs both wheels"
    return {each.name: each for each in settings_of(library, environ)}


def test_open_mpi_tells_value_and_source(tmp_path: Path) -> None:
    file = tmp_path / ".openmpi" / "mca-params.conf"
    file.parent.mkdir()
    file.write_text("# mine\nbtl_tcp_sndbuf = 65536\nbtl_tcp_link = 2\n")
    environ = {
        "HOME": str(tmp_path),
        "OMPI_MCA_btl_tcp_links": "4",
        "OMPI_MCA_btl_tcp_rcvbuff": "5",
        "OMPI_MCA_plm_rsh_agent": "ssh",  # the launcher's
        "OMPI_MCA_num_procs": "2",
        "OMPI_MCA_mpi_oversubscribe": "0",
        "OMPI_MCA_PREFIXES": "mca,opal",
    }
    told = settings("openmpi", environ)
    assert told["btl_tcp_links"] == LINKS
    assert (told["btl_tcp_sndbuf"].value, told["btl_tcp_sndbuf"].source) == (
        "65536",
        f"file {file}:2",
    )
    assert {name for name, each in told.items() if each.problem} == {
        "btl_tcp_link",
        "btl_tcp_rcvbuff",
    }
    misspelt = told["btl_tcp_link"]
    assert (misspelt.value, misspelt.source) == ("2", f"file {file}:3")
    assert "does not know it; did you mean btl_tcp_links?" in str(misspelt.problem)
    assert "btl_tcp_rcvbuf" in str(told["btl_tcp_rcvbuff"].problem)
    assert {"plm_rsh_agent", "num_procs"}.isdisjoint(told)


def test_the_number_of_connections_is_told_with_its_default_where_messages_take_tcp(
    tmp_path: Path,
) -> None:
    told = settings("openmpi", {"HOME": str(tmp_path)})
    assert told["btl_tcp_links"] == Setting("btl_tcp_links", "1", "default")
    assert "btl_tcp_sndbuf" not in told
    assert list(judged(told.values(), ["ob1/tcp"], (), ())) == [told["btl_tcp_links"]]
    assert list(judged(told.values(), ["ob1/sm"], (), ())) == []


def test_mpich_knows_the_names_in_its_file() -> None:
    names = ("MPIR_CVAR_CH4_CMA_ENABLE", "MPICH_CH4_CMA_ENABLE", "MPIR_CVAR_CH4_CMA_ENABLED")
    told = settings("mpich", dict.fromkeys(names, "0"))
    assert [told[name].problem is None for name in names] == [True, True, False]
    assert "MPIR_CVAR_CH4_CMA_ENABLE" in str(told[names[2]].problem)


def test_without_ompi_info_nothing_is_called_unknown(tmp_path: Path) -> None:
    library = MpiLibrary("openmpi", str(tmp_path / "lib" / "libmpi.so.40"))
    told = settings_of(library, {"OMPI_MCA_btl_tcp_link": "4", "UCX_TLS": "tcp"})
    assert [each.name for each in told] == ["btl_tcp_link", "UCX_TLS"]
    assert [each.problem for each in told] == [None, None]


def test_credentials_are_masked() -> None:
    assert Setting("UCX_API_TOKEN", "abc", "environment").record()["value"] == "***"


@for_each(
    ("name", "used", "has_effect"),
    [
        ("btl_tcp_links", ["ob1/tcp"], True),
        ("btl_tcp_links", ["ob1/sm", "ob1/openib+tcp"], True),
        ("btl_tcp_links", ["ob1/sm"], False),
        ("btl_tcp_links", ["ucx/tcp:eth0"], False),
        ("btl_tcp_links", ["cm/ofi"], False),
        ("btl_tcp_links", [], True),  # not known
        ("btl_base_verbose", ["ob1/sm"], True),
        ("mtl_ofi_provider_include", ["cm/ofi"], True),
        ("mtl_ofi_provider_include", ["ob1/tcp"], False),
        ("pml_ob1_matching", ["ob1/sm"], True),
        ("UCX_TLS", ["ucx/rc_mlx5:mlx5_0:1"], True),
        ("UCX_TLS", ["ch4:ucx"], True),
        ("UCX_TLS", ["ob1/tcp"], False),
    ],
)
def test_a_setting_of_another_transport_has_no_effect(
    name: str, used: list[str], has_effect: bool
) -> None:
    (each,) = judged([Setting(name, "1", "environment")], used, (), ())
    assert (each.problem is None) == has_effect
    assert has_effect or f"messages take {used[0]}" in str(each.problem)


def test_what_is_in_effect_is_told_by_its_source() -> None:
    idle = Setting("btl_tcp_link", "3", "environment", "unknown")
    more = [Setting("pml", "ob1", "environment"), Setting("UCX_TLS", "tcp", "file f:2")]
    records = [each.record() for each in (*more, idle, LINKS, LINKS)]
    assert effect_text(records) == (
        "in effect: btl_tcp_links=4 pml=ob1 (environment); UCX_TLS=tcp (file f:2)"
    )
    assert effect_text([idle.record()]) == ""


def test_what_commbench_exports_for_all_libraries_is_no_problem() -> None:
    unknown = Setting("MPIR_CVAR_NETWORK_IFACE", "eth0", "environment", "MPICH does not know it")
    exported = {"MPIR_CVAR_NETWORK_IFACE", "OMPI_MCA_btl_tcp_links"}
    told = judged([unknown, LINKS], ["ob1/sm"], (), exported)
    assert [each.problem for each in told] == [None, None]


def test_ucx_names_what_it_has_not_used() -> None:
    told = list(judged([Setting("UCX_FOO", "1", "environment")], ["ucx/tcp"], {"UCX_FOO"}, ()))
    assert problem_texts(each.record() for each in told) == [
        "UCX_FOO=1 (environment): UCX does not know it"
    ]
    assert problem_texts([LINKS.record()]) == []


@pytest.mark.parametrize(
    ("words", "environ", "expected"),
    [
        (
            ["backend.library=openmpi", "env.OMPI_MCA_btl_tcp_links=4"],
            {"OMPI_MCA_btl_tcp_link": "3"},
            {"btl_tcp_links": "messages take ob1/sm", "btl_tcp_link": "did you mean"},
        ),
        pytest.param(
            ["backend.library=mpich", "env.UCX_FOO=1"],
            {"MPIR_CVAR_CH4_CMA_ENABLED": "0"},
            {"MPIR_CVAR_CH4_CMA_ENABLED": "does not know it", "UCX_FOO": "UCX does not know it"},
            marks=pytest.mark.long,
        ),
    ],
    ids=["openmpi", "mpich"],
)
def test_a_run_says_what_has_no_effect(
    world: Any, words: list[str], environ: dict[str, str], expected: dict[str, str]
) -> None:
    run = world(
        "commbench",
        "backend=mpi",
        *words,
        *("layout=1x2", "benchmark=p2p_latency", "sizes=[8]"),
        *("timing=fixed", "timing.repetitions=5"),
        env=environ,
    )
    problems = {each["name"]: each.get("problem", "") for each in run.record["settings"]}
    assert problems.keys() >= expected.keys()
    for name, text in expected.items():
        assert text in problems[name]
        assert f"{name}=" in " ".join(run.stdout.split())
