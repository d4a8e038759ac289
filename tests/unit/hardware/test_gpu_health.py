"""What NVML says of a GPU's health, from the numbers that it gives."""

from __future__ import annotations

from typing import Any

import pytest

from commbench.hardware.gpu_health import GpuHealth, fabric_health, read_health

ANSWERS: dict[str, Any] = {
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetRemappedRows": (1, 2, 1, 0),
}


def answer(name: str, handle: Any, *arguments: Any) -> Any:
    if name == "nvmlDeviceGetGpuFabricInfoV":
        info = arguments[0]._obj
        info.state = 3
        info.health_mask = 0x1 | 0x2 << 4
        return 0
    return ANSWERS.get(name)


def test_values_are_in_words_and_units() -> None:
    assert read_health(answer, None) == GpuHealth(
        power_limit_w=700.0,
        remapped_rows=3,
        remapping_pending=True,
        remapping_failed=False,
        fabric_state="completed",
        fabric_health="degraded bandwidth",
    )


def test_an_old_driver_knows_nothing_of_it() -> None:
    assert read_health(lambda *_: None, None) == GpuHealth()


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (0, "healthy"),
        (0x2 | 0x2 << 2 | 0x2 << 4 | 0x1 << 8, "healthy"),
        (0x1 << 2 | 0x1 << 4, "route recovery, unhealthy route"),
        (0x5 << 8, "incorrect configuration (5)"),
    ],
)
def test_the_health_mask_of_the_fabric_is_read_by_its_bits(mask: int, text: str) -> None:
    assert fabric_health(mask) == text
