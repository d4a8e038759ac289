"""AMD's GPUs as the two programs describe them. The texts are written after published outputs of
ROCm 5 to 7; no AMD GPU was at hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commbench.hardware import amd, gpu
from commbench.hardware.topology import ROCM_TOPOLOGY_FACT, matrix_text

NAME = "AMD Instinct MI300X"
DRIVER = "6.10.5"
BYTES = 196592 * 2**20
PCI = ("0000:05:00.0", "0000:c9:00.0")
AMD_SMI: list[dict[str, Any]] = [
    {
        "gpu": number,
        "asic": {"market_name": NAME, "vendor_id": "0x1002", "target_graphics_version": "gfx942"},
        "bus": {"bdf": pci, "max_pcie_width": 16},
        "vram": {"type": "HBM3", "size": {"value": 196592, "unit": "MB"}},
        "driver": {"name": "amdgpu", "version": DRIVER},
    }
    for number, pci in enumerate(PCI)
]
# before ROCm 6.1 the key is `Card series`
ROCM_SMI: dict[str, dict[str, str]] = {
    f"card{number}": {
        "PCI Bus": pci.upper(),
        "VRAM Total Memory (B)": str(BYTES),
        series: NAME,
        "Card Model": "0x74a1",
    }
    for number, (pci, series) in enumerate(zip(PCI, ("Card Series", "Card series"), strict=True))
} | {"system": {"Driver version": DRIVER}}
WARNING = "WARNING: AMD GPU device(s) is/are in a low-power state.\n"
TOPOLOGY = """======== Link Type between two GPUs ========
       GPU0         GPU1
GPU0   0            XGMI
GPU1   XGMI         0
"""
FACTS = {
    "gpu.count": 2,
    "gpu.driver_version": DRIVER,
    **{f"gpu.{number}.name": NAME for number in range(2)},
    **{f"gpu.{number}.pci_bus_id": pci for number, pci in enumerate(PCI)},
    **{f"gpu.{number}.memory_total_bytes": BYTES for number in range(2)},
}
NO_LINKS = "links of the GPUs: rocm-smi is not installed"
Install = Callable[[str, str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """A machine with AMD's driver, on which programs with these names print a text if their
    arguments contain a word."""
    (tmp_path / "kfd").touch()
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(amd, "DRIVER", tmp_path / "kfd")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in amd.VISIBLE_DEVICES:
        monkeypatch.delenv(name, raising=False)

    def install(name: str, word: str, text: str) -> None:
        program = tmp_path / "bin" / name
        before = program.read_text() if program.exists() else "#!/bin/sh\n"
        answer = f"cat <<'END'\n{text}\nEND\nexit 0"
        program.write_text(f'{before}case " $* " in *" {word} "*)\n{answer}\n;; esac\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")

    amd.listing.cache_clear()
    yield install
    amd.listing.cache_clear()


@pytest.mark.parametrize("text", [json.dumps(AMD_SMI), json.dumps({"gpu_data": AMD_SMI})])
def test_amd_smi_describes_the_gpus(install: Install, text: str) -> None:
    install("amd-smi", "static", text)
    assert gpu.collect() == FACTS | {"gpu.reason": NO_LINKS}


def test_rocm_smi_answers_where_amd_smi_does_not(install: Install) -> None:
    install("amd-smi", "static", "AMDSMI_STATUS_NOT_INIT")
    install("rocm-smi", "--showtopo", TOPOLOGY)
    install("rocm-smi", "--showproductname", WARNING + json.dumps(ROCM_SMI))
    facts = gpu.collect()
    assert str(matrix_text(facts)).split() == TOPOLOGY.split()
    assert facts.pop(ROCM_TOPOLOGY_FACT)
    assert facts == FACTS


BEFORE = "WARNING: User is missing the following required groups: render, video [sudo].\n"


@pytest.mark.parametrize("before", [BEFORE, f"[WARN] {BEFORE}", BEFORE.strip()])
def test_warnings_before_the_json_do_no_harm(install: Install, before: str) -> None:
    install("amd-smi", "static", before + json.dumps({"gpu_data": AMD_SMI}, indent=4))
    assert gpu.collect() == FACTS | {"gpu.reason": NO_LINKS}


@pytest.mark.parametrize(
    ("size", "size_bytes"),
    [
        ("196592 MB", BYTES),
        ("196592MiB", BYTES),
        ({"value": 192, "unit": "GiB"}, 192 * 2**30),
        ({"value": "0.25", "unit": "TB"}, 2**38),
        ({"value": 4096, "unit": "kB"}, 2**22),
        (str(BYTES), BYTES),
        (BYTES, BYTES),
    ],
)
def test_memory_is_read_in_every_unit(install: Install, size: object, size_bytes: int) -> None:
    install("amd-smi", "static", json.dumps([{**AMD_SMI[0], "vram": {"size": size}}]))
    assert gpu.collect()["gpu.0.memory_total_bytes"] == size_bytes


@pytest.mark.parametrize(
    ("values", "key", "missing"),
    [
        ({"bus": "N/A"}, "pci_bus_id", "PCI bus id"),
        ({"bus": {"bdf": ["x"]}}, "pci_bus_id", "PCI bus id"),
        ({"vram": {"size": {"value": 9, "unit": "furlongs"}}}, "memory_total_bytes", "memory"),
        ({"vram": {"size": {"value": 9}}}, "memory_total_bytes", "memory"),
        ({"vram": None}, "memory_total_bytes", "memory"),
        ({"asic": []}, "name", "name"),
    ],
)
def test_a_value_in_another_form_costs_only_itself_and_is_named(
    install: Install, values: dict[str, object], key: str, missing: str
) -> None:
    install("amd-smi", "static", json.dumps([AMD_SMI[0], {**AMD_SMI[1], **values}]))
    facts = gpu.collect()
    reason = f"amd-smi does not say, or not in a known form: {missing} of GPU 1; {NO_LINKS}"
    assert facts.pop("gpu.reason") == reason
    assert facts == {name: value for name, value in FACTS.items() if name != f"gpu.1.{key}"}


def test_what_rocm_smi_does_not_say_is_named(install: Install) -> None:
    cards = {name: dict(card) for name, card in ROCM_SMI.items() if name != "system"}
    del cards["card0"]["PCI Bus"]
    cards["card1"]["VRAM Total Memory (B)"] = "unknown"
    install("rocm-smi", "--showproductname", WARNING + json.dumps(cards))
    install("rocm-smi", "--showtopo", TOPOLOGY)
    facts = gpu.collect()
    missing = "PCI bus id of GPU 0, memory of GPU 1, driver version of GPU 0-1"
    assert facts["gpu.reason"] == f"rocm-smi does not say, or not in a known form: {missing}"
    assert facts["gpu.0.memory_total_bytes"] == BYTES and facts["gpu.1.pci_bus_id"] == PCI[1]


def test_what_is_not_said_is_unknown_and_named(install: Install) -> None:
    silent = {"asic": {"market_name": "N/A"}, "bus": {"bdf": "N/A"}, "vram": {"size": "N/A"}}
    install("amd-smi", "static", json.dumps([silent]))
    facts = gpu.collect()
    assert "name of GPU 0, PCI bus id of GPU 0, memory of GPU 0, driver" in facts.pop("gpu.reason")
    assert facts == {"gpu.count": 1}
    assert gpu.own_gpu(0, {}) == {"gpu.own.visible": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("AMDSMI_STATUS_NOT_INIT", "amd-smi printed no JSON that can be read: AMDSMI_STATUS_NOT"),
        (json.dumps(AMD_SMI)[:300], "amd-smi printed no JSON that can be read: [{"),
        ("[]", "amd-smi lists none"),
        ('{"gpu_data": "none"}', "amd-smi lists none"),
    ],
)
def test_why_no_gpu_is_known_is_said(install: Install, text: str, reason: str) -> None:
    install("amd-smi", "static", text)
    said = gpu.collect()["gpu.reason"]
    assert reason in said and said.endswith("; rocm-smi is not installed")


def test_a_driver_without_programs_is_not_an_absent_gpu(install: Install) -> None:
    assert "neither amd-smi nor rocm-smi" in gpu.collect()["gpu.reason"]
    assert gpu.own_gpu(0, {}) == {}


def test_a_rank_knows_what_all_gpus_share_and_how_many_it_may_use(install: Install) -> None:
    install("amd-smi", "static", json.dumps(AMD_SMI))
    shared = {"name": NAME, "memory_total_bytes": BYTES, "driver_version": DRIVER}
    own = {f"gpu.own.{key}": value for key, value in shared.items()}
    assert gpu.own_gpu(1, {}) == own | {"gpu.own.visible": 2}
    for name in amd.VISIBLE_DEVICES:
        assert gpu.own_gpu(1, {name: "1"})["gpu.own.visible"] == 1


def test_names_that_differ_are_no_ranks_own(install: Install) -> None:
    other = AMD_SMI[1] | {"asic": {"market_name": "AMD Instinct MI210"}}
    install("amd-smi", "static", json.dumps([AMD_SMI[0], other]))
    assert "gpu.own.name" not in gpu.own_gpu(0, {})


def test_without_amds_driver_nothing_is_asked(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("amd-smi", "static", json.dumps(AMD_SMI))
    monkeypatch.setattr(amd, "DRIVER", tmp_path / "none")
    assert amd.collect() == {} and "no AMD driver" in str(amd.driver_missing())
