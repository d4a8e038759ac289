"""The readers of all formats; the last one takes any text."""

from __future__ import annotations

from .aiconfigurator import Aiconfigurator
from .iperf3_json import Iperf3Json
from .nccl_inspector import NcclInspector
from .nccl_tests_json import NcclTestsJson
from .protocol import ImportReader
from .text_log import TextLog

READERS: tuple[ImportReader, ...] = (
    Aiconfigurator(),
    NcclTestsJson(),
    Iperf3Json(),
    NcclInspector(),
    TextLog(),
)
