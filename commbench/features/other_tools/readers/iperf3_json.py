"""iperf3's JSON (-J, --json-stream): streams of TCP between two hosts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import Any

from commbench.core.layout import Layout
from commbench.features.other_tools.experiment import (
    Experiment,
    FileContent,
    Problems,
    RankPlace,
    measured,
)
from commbench.features.other_tools.foreign_files import ForeignFile
from commbench.features.other_tools.foreign_readers import NotRecognised
from commbench.features.other_tools.json_documents import (
    Document,
    documents,
    part,
    parts,
    text_of,
    whole,
)
from commbench.features.other_tools.printed import Printed, plain_number

VERSION = re.compile(r"iperf ([0-9]{1,4}(?:\.[0-9]{1,4})+)")
KERNEL = re.compile(r"Linux \S+ (\S+)")
THREADED = (3, 16)  # a thread for each stream since then
EVENT = "event"
SETTINGS = ("duration", "omit", "reverse", "tos", "target_bitrate", "fq_rate")
LATEST_S = 2**33


class Iperf3Json:
    form = "the JSON of iperf3"

    def recognises(self, file: ForeignFile) -> bool:
        head = file.head.lstrip()
        return head.startswith(b"{") and (b'"iperf 3' in head or b'"start_connected"' in head)

    def read(self, file: ForeignFile) -> FileContent:
        problems = Problems()
        experiments = []
        try:
            for document in _assembled(documents(file)):
                try:
                    experiments.append(_experiment(document))
                except (ValueError, OverflowError) as error:
                    problems.add(str(error), document.line)
        except ValueError as error:
            raise NotRecognised(f"JSON of iperf3, but {error}") from error
        return FileContent(experiments, problems)


def _assembled(found: Iterable[Document]) -> Iterator[Document]:
    """Those of --json-stream, an event a line, as one document each."""
    events: dict[str, Any] = {}
    line = 0
    for document in found:
        event = document.value.get(EVENT)
        if event is None:
            yield document
            continue
        if event == "start" and events:
            yield Document(events, line, is_cut=True)
            events = {}
        line = line if events else document.line
        data = document.value.get("data")
        if event == "interval":
            events.setdefault("intervals", []).append(data)
        else:
            events[str(event)] = data
        if event == "end":
            yield Document(events, line, document.is_cut)
            events = {}
    if events:
        yield Document(events, line, is_cut=True)


def _experiment(document: Document) -> Experiment:
    """Raises ValueError."""
    value = document.value
    start = part(value, "start")
    test = part(start, "test_start")
    protocol = test.get("protocol", "TCP")
    if not test:
        error = text_of(value.get("error"))
        raise ValueError(f"iperf3 measured nothing{': ' if error else ''}{error or ''}")
    if protocol != "TCP" or test.get("bidir"):
        both = " in both directions at once" if test.get("bidir") else ""
        raise ValueError(f"{protocol}{both}: commbench has no such operation")
    version = VERSION.search(str(start.get("version", "")))
    kernel = KERNEL.match(str(start.get("system_info", "")))
    numbers = tuple(map(int, version[1].split("."))) if version else None
    streams = whole(test.get("num_streams"), 1)
    rate, columns, is_complete = _rate(value)
    size = whole(test.get("blksize"), 1)
    is_reverse = bool(test.get("reverse"))
    threads = "each" if numbers and numbers >= THREADED else "one"
    row = measured(
        "stream",
        size,
        Printed(size / rate.value),
        line=document.line,
        engine="native",
        sync="none",
        device="cpu",
        timer="host",
        dtype=None,
        pair="1-0" if is_reverse else "0-1",
        streams=streams,
        stream_threads=None if numbers is None or streams == 1 else threads,
        median_of="write, by the mean rate",
        **columns,
    )
    places = _places(start)
    return Experiment(
        tool="iperf3",
        version=version[1] if version else None,
        backend="tcp",
        library=f"kernel {kernel[1]} tcp" if kernel else None,
        rows=[row],
        ranks=2,
        layout=None if not places else Layout(1, 2) if _is_one_host(places) else Layout(2, 1),
        places=places,
        started_at=_started_at(start),
        settings=_settings(value, test),
        is_cut=document.is_cut or not is_complete,
    )


def _settings(value: dict[str, Any], test: dict[str, Any]) -> dict[str, Any]:
    congestion = text_of(part(value, "end").get("sender_tcp_congestion"))
    error = text_of(value.get("error"))
    return {
        **{name: test[name] for name in SETTINGS if isinstance(test.get(name), int)},
        **({"sender_tcp_congestion": congestion} if congestion else {}),
        **({"error": error} if error else {}),
    }


def _rate(value: dict[str, Any]) -> tuple[Printed, dict[str, Any], bool]:
    """Bytes per second at the receiver, and whether the test ended; of one that did not the rate of
    its whole intervals, at the end that wrote them. Raises ValueError."""
    end = part(value, "end")
    received = part(end, "sum_received")
    if received:
        rate = plain_number(received.get("bits_per_second")).times(1 / 8)
        seconds = plain_number(received.get("seconds"))
        moved = whole(received.get("bytes"))
        if not rate.value:
            raise ValueError("a rate of 0")
        if seconds.value and abs(moved / seconds.value / rate.value - 1) > 0.01:
            raise ValueError(
                f"{moved} B in {seconds.value:g} s are {moved / seconds.value / 1e9:.4g} GB/s, but"
                f" bits_per_second are {rate.value / 1e9:.4g} GB/s"
            )
        retransmits = part(end, "sum_sent").get("retransmits")
        sent = {"retransmits": retransmits} if isinstance(retransmits, int) else {}
        return rate, {"headline": "receiver", "visits_s": seconds.value, **sent}, True
    sums = [part(each, "sum") for each in parts(value, "intervals")]
    whole_ones = [each for each in sums if each and not each.get("omitted")]
    moved = sum(whole(each.get("bytes")) for each in whole_ones)
    seconds_s = sum(plain_number(each.get("seconds")).value for each in whole_ones)
    if not moved or not seconds_s:
        raise ValueError("neither a result nor a whole interval")
    return Printed(moved / seconds_s), {"visits_s": seconds_s}, False


def _places(start: dict[str, Any]) -> list[RankPlace]:
    """The client and the server, by their addresses; none where they are not told."""
    for connection in parts(start, "connected"):
        hosts = [text_of(connection.get(name)) for name in ("local_host", "remote_host")]
        if all(hosts):
            return [RankPlace(rank, host) for rank, host in enumerate(hosts)]
    return []


def _is_one_host(places: list[RankPlace]) -> bool:
    return len({place.host for place in places}) == 1


def _started_at(start: dict[str, Any]) -> datetime | None:
    seconds = part(start, "timestamp").get("timesecs")
    if not isinstance(seconds, int) or not 0 < seconds < LATEST_S:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc)
