from __future__ import annotations

import pytest

from commbench.hardware import cuda_ipc

CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version:  gcc 12\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  (dvs-builder)  Tue Mar 5\n"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (CLOSED, "535.104.05"),
        (OPEN, "550.54.15"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  390.12 x", "390.12"),
        ("GCC version: 12.2.0", None),
        ("", None),
    ],
)
def test_driver_version(text, version):
    assert cuda_ipc.parse_driver_version(text) == version


def test_with_a_driver(plant):
    root = plant(
        {
            "proc/driver/nvidia/version": CLOSED,
            "dev/nvidia0": "",
            "dev/nvidia12": "",
            "dev/nvidiactl": "",
            "dev/nvidia-uvm": "",
            "dev/shm/x": "",
            "proc/sys/kernel/yama/ptrace_scope": "1\n",
        },
        {"proc/self/ns/pid": "pid:[4026531836]", "proc/self/ns/ipc": "ipc:[4026531839]"},
    )
    assert cuda_ipc.collect(root) == {
        "ipc.platform.nvidia_driver": "535.104.05",
        "ipc.platform.nvidia_kernel_module": CLOSED.splitlines()[0].replace("  ", " "),
        "ipc.platform.nvidia_device_nodes": 2,
        "ipc.platform.dev_shm_writable": True,
        "ipc.platform.ptrace_scope": 1,
        "ipc.platform.pid_namespace": 4026531836,
        "ipc.platform.ipc_namespace": 4026531839,
    }


def test_without_a_driver_the_answer_is_known(tmp_path):
    facts = cuda_ipc.collect(tmp_path)
    assert facts["ipc.effective"] is None
    assert facts["ipc.reason"] == "no NVIDIA driver: /proc/driver/nvidia/version is absent"
    assert facts["ipc.platform.dev_shm_writable"] is False


def test_windows_linux_has_a_driver_elsewhere(plant):
    assert "ipc.effective" not in cuda_ipc.collect(plant({"dev/dxg": ""}))
