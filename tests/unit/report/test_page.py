"""The page: safe whatever the texts hold, whole without a network, and as a browser reads it."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from generated_results import run_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from places import HARDWARE_TEXTS

import commbench
from commbench.analysis.headline import headline
from commbench.cli.report import report as command
from commbench.report import page_parts
from commbench.report.distributions import read_raw_data
from commbench.report.figures import Colours
from commbench.report.page import environment
from commbench.report.page import page as whole_page
from commbench.report.page_parts import (
    Curves,
    curves_of,
    ramp_picture,
    size_panels,
    soak_picture,
    waterfall,
    waterfalls,
)
from commbench.report.summary import read_results, summarise_results
from commbench.report.svg import Chart, clean
from commbench.results.load import find_runs

pytestmark = pytest.mark.long  # its runs take half a minute

EVIL = '<script>alert("x")</script>\' onload=alert(1) &amp; \x00'
TOPOLOGY = HARDWARE_TEXTS / "topo_dgx_a100.txt"
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
SIMULATED = ("backend=simulated", "writer=parquet", "timing=quick", "timing.warmup_s=0")


class Reader(HTMLParser):
    """Tags with their attributes and the balance of what was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two planted backends on a host with a wicked name and a DGX's wiring; real pairs, a real
    soak, real samples."""
    output = tmp_path_factory.mktemp("results")
    node = {
        "host.hostname": EVIL,
        "host.cpu_model": EVIL,
        "topology.nvidia_smi_topo_m": TOPOLOGY.read_text(),
    }
    differences = {EVIL: {EVIL: [0], "missing": [1]}}
    run_of(output, 0, label=EVIL, provenance={"nodes": [node], "differences": differences})
    for number in (1, 3, 6):
        run_of(output, number, hostname=EVIL)
    commbench.run(*SIMULATED, "benchmark=barrier", f"output={output}")
    commbench.run(
        *SIMULATED,
        "benchmark=p2p_latency",
        "layout=1x4",
        "pairs=all",
        "sizes=[8]",
        f"output={output}",
    )
    commbench.run(
        *SIMULATED,
        "benchmark=p2p_latency",
        "sizes=[8]",
        "timing=soak",
        "timing.duration_s=1",
        f"output={output}",
    )
    file = output / "page.html"
    # a figure of a kind is as good as thirty, and takes 0.2 s
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(page_parts, "MOST_FIGURES", 4)
        patched.setattr(page_parts, "MOST_STRIPS", 2)
        assert command([str(output), "--html", str(file)]) == 0
    return file


def test_texts_stay_texts_and_tags_are_balanced(page: Path) -> None:
    reader = Reader()
    reader.feed(page.read_text())
    assert reader.open == []
    assert sum(tag == "script" for tag, _ in reader.tags) == 1
    assert not [
        name for _, attributes in reader.tags for name in attributes if name.startswith("on")
    ]
    assert "&lt;script&gt;alert(&#34;x&#34;)" in page.read_text() and "\x00" not in page.read_text()


def test_nothing_is_loaded_from_anywhere(page: Path) -> None:
    reader = Reader()
    reader.feed(page.read_text())
    links = [
        value
        for _, attributes in reader.tags
        for name, value in attributes.items()
        if name in ("src", "href")
    ]
    assert links and all(str(link).startswith("#") for link in links)
    assert not re.search(r"https?://|@import|url\(", page.read_text())


def test_every_link_leads_somewhere(page: Path) -> None:
    reader = Reader()
    reader.feed(page.read_text())
    ids = {attributes["id"] for _, attributes in reader.tags if "id" in attributes}
    assert {str(attributes["href"])[1:] for tag, attributes in reader.tags if tag == "a"} <= ids


def test_every_section_with_data_is_there(page: Path) -> None:
    sections = re.findall(r'<section id="([a-z]+)"', page.read_text())
    expected = (
        "curves soak lines answers numbers best layouts efficiency pairs normal flags missing"
        " machines details"
    )
    # no layers: a simulated world has one; what is simulated is left out beside the others
    assert sections == expected.split()


def test_it_begins_with_date_host_label_and_one_sentence_and_folds_what_is_long(page: Path) -> None:
    text = page.read_text()
    header = text[text.index("<header>") : text.index("</header>")]
    assert re.search(
        r'<p class="about">20\d\d-\d\d-\d\d · hosts? .* · \d+ cases of \d+ runs</p>', header
    )
    assert re.search(r'<p class="headline">p2p_latency.* over gloo.*, 8 B to 2 MiB\.</p>', header)
    assert re.search(r"<details>\s*<summary>\d+ distributions</summary>", text)
    assert "prefers-color-scheme:dark" in text and "@media print" in text


def test_machines_are_one_table_in_which_what_differs_comes_first(tmp_path: Path) -> None:
    for number, kernel in enumerate(("6.1", "6.12")):
        node = {"host.hostname": f"n{number}", "host.cpu_model": "Test CPU", "host.kernel": kernel}
        run_of(tmp_path, number, provenance={"nodes": [node]})
    summary = summarise_results(read_results([tmp_path], "all_reduce"))
    (facts,) = re.findall(
        r'<table class="facts">.*?</table>',
        whole_page(summary, read_raw_data(summary.results)),
        re.S,
    )
    assert re.findall(r">([^<>]+)</t[hd]>", facts) == [
        "fact",
        "n0",
        "n1",
        "kernel",
        "6.1",
        "6.12",
        "CPU",
        "Test CPU",
    ]
    assert facts.count('class="differs"') == 2 and facts.count('colspan="2"') == 1


def test_layers_lie_on_one_another(tmp_path: Path) -> None:
    """MPI from Python lies on MPI from C; gloo does not lie on MPI."""
    for number in (0, 1, 2):  # gloo, mpi native, mpi python
        run_of(tmp_path, number)
    choice = summarise_results(read_results([tmp_path], "all_reduce")).combined
    pictures = waterfalls(curves_of(choice, ()))
    assert [picture.title for picture in pictures] == [
        "all_reduce, 8 B, 1x2",
        "all_reduce, 2 MiB, 1x2",
    ]
    assert all("mpi4py" in picture.svg and "gloo" not in picture.svg for picture in pictures)


def test_a_layer_lies_on_its_own_library_only(tmp_path: Path) -> None:
    """MPI from C is another library than MPI from Python here; each alone shows nothing, two alike
    do."""
    for number, library in ((1, "Open MPI"), (2, "MPICH")):
        run_of(tmp_path, number, library=library)
    assert not waterfalls(
        curves_of(summarise_results(read_results([tmp_path], "all_reduce")).combined, ())
    )
    run_of(tmp_path, 13, library="MPICH")
    pictures = waterfalls(
        curves_of(summarise_results(read_results([tmp_path], "all_reduce")).combined, ())
    )
    assert [picture.title for picture in pictures] == [
        "all_reduce, 8 B, 1x2",
        "all_reduce, 2 MiB, 1x2",
    ]


def test_a_soak_alone_is_a_result(page: Path) -> None:
    summary = summarise_results(read_results([max(find_runs(page.parent))]))  # the newest run
    assert headline(summary.combined, summary.soaks).startswith(
        "Soak of p2p_latency 8 B, simulated virtual 1x2: median "
    )
    assert not any(
        "Nothing was measured" in text or "no choice" in text for text in summary.sentences()
    )


def test_a_ramp_is_counted_whole() -> None:
    text = ramp_picture("ramps", (1e-3, 1.1e-3, 0.5, 2.0)).svg
    assert sum(map(int, re.findall(r"<title>(\d+) between", text))) == 4
    assert ">0.5</text>" not in text and ">1</text>" in text


def test_a_soak_is_broken_where_nothing_was_measured() -> None:
    whole = pd.DataFrame(
        {"at_s": [0.0, 0.1, 0.2, 0.3], "min_s": 1.0, "median_s": 2.0, "max_s": 3.0}
    )
    broken = whole.assign(at_s=[0.0, 0.1, 5.2, 5.3])
    for line, pieces in (whole, 1), (broken, 2):
        bands = re.findall('<g class="band">.*?</g>', soak_picture("t", line).svg)
        assert len(bands) == pieces and all("<path d=" in band for band in bands)


def test_points_say_their_number_and_no_number_is_nan(page: Path) -> None:
    text = page.read_text()
    assert re.search(
        r"<circle[^>]*><title>mpi native 1x2[^,]*, 8 B: [\d.]+ ns \([\d.]+ ns \.\. [\d.]+ ns\)",
        text,
    )
    assert not re.search(r'="[^"]*\b(nan|inf|None)\b[^"]*"', text)


@given(st.text())
def test_whatever_is_written_is_read_back(text: str) -> None:
    """Through the environment of the template, as text and as an attribute."""
    reader = Reader()
    texts: list[str] = []
    reader.handle_data = texts.append  # type: ignore[method-assign]
    reader.feed(environment().from_string('<p title="{{ text }}">{{ text }}</p>').render(text=text))
    assert [tag for tag, _ in reader.tags] == ["p"] and set(reader.tags[0][1]) == {"title"}
    assert "".join(texts) == str(reader.tags[0][1]["title"]).replace("\r\n", "\n") or "\r" in text
    assert "".join(texts) == clean(text) or "\r" in text


@settings(max_examples=8)
@example(EVIL)
@example("$x_{$ & <b>")
@given(st.text())
def test_a_name_in_a_chart_stays_text(text: str) -> None:
    chart = Chart(text)
    chart.log("y", text, [1.0, 2.0], str)
    chart.categories(text, [text])
    chart.line([0, 0.1], [1.0, 2.0], "black", series=text)
    chart.points([0], [1.0], [text], "black", text, links=["#d"])
    chart.bar(0, 1, 0.1, 1, "black", text)
    chart.text(0, 1, text)
    reader = Reader()
    svg = chart.svg()
    reader.feed(svg)
    assert reader.open == [] and {tag for tag, _ in reader.tags} == {
        "svg",
        "title",
        "g",
        "path",
        "text",
        "circle",
        "a",
    }
    assert chart.svg() == svg


def test_a_waterfall_says_what_each_layer_adds() -> None:
    text = waterfall("t", [("fast", 1e-6), ("slow", 3e-6)]).svg
    assert (
        "<title>fast: 1.00 us</title>" in text
        and "<title>slow: 3.00 us, 2.00 us more than fast</title>" in text
    )
    assert ">3.00 us  (+2.00 us)</text>" in text


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
def test_a_browser_draws_it_and_runs_its_script(page: Path, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    words = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}/profile",
    ]
    shot = tmp_path / "page.png"
    words += ["--window-size=1240,2000", "--virtual-time-budget=2000"]
    done = subprocess.run(
        [*words, "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    assert '<div id="tip" hidden=""></div>' in done.stdout  # the script ran to its end
    assert done.stdout.count("<section") == 14 and done.stdout.count("<circle") > 100
    assert "<script>alert" not in done.stdout
    subprocess.run(
        [*words, f"--screenshot={shot}", page.as_uri()], capture_output=True, timeout=90, check=True
    )
    assert shot.read_bytes()[:4] == b"\x89PNG" and shot.stat().st_size > 50_000
    printed = tmp_path / "page.pdf"
    subprocess.run(
        [*words, f"--print-to-pdf={printed}", page.as_uri()],
        capture_output=True,
        timeout=90,
        check=True,
    )
    assert (
        printed.read_bytes()[:5] == b"%PDF-" and printed.read_bytes().count(b"/Type /Page\n") < 30
    )


TELL_WIDTHS = """<script>addEventListener("load", () => {
  document.querySelectorAll("details").forEach(one => { one.open = true });
  const root = document.documentElement;
  const back = getComputedStyle(document.body).backgroundColor;
  parent.postMessage([innerWidth, root.scrollWidth - root.clientWidth, back].join(" / "), "*");
})</script></body>"""
HEAR_WIDTHS = """<script>addEventListener("message", event => {
  const line = document.createElement("p");
  line.textContent = event.data;
  document.body.append(line);
})</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
@pytest.mark.parametrize(
    ("scheme", "back"), [("1", "rgb(255, 255, 255)"), ("0", "rgb(17, 24, 39)")]
)
def test_nothing_reaches_beyond_any_width(
    page: Path, tmp_path: Path, scheme: str, back: str
) -> None:
    """With all that is folded open. In frames, because a window has a least width; light, then
    dark."""
    assert CHROMIUM is not None
    (tmp_path / "page.html").write_text(page.read_text().replace("</body>", TELL_WIDTHS))
    widths = (400, 1300, 2000)
    frames = "".join(
        f'<iframe src="page.html" width="{width}" frameborder="0"></iframe>' for width in widths
    )
    (tmp_path / "frames.html").write_text(f"<body>{HEAR_WIDTHS}{frames}</body>")
    words = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}/profile",
        f"--blink-settings=preferredColorScheme={scheme}",
        "--virtual-time-budget=5000",
        "--dump-dom",
        (tmp_path / "frames.html").as_uri(),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=True)
    assert sorted(re.findall(r"<p>(.*?)</p>", done.stdout)) == sorted(
        f"{width} / 0 / {back}" for width in widths
    )


def test_the_cases_are_sorted_and_the_series_short(tmp_path: Path) -> None:
    for number in (3, 0):  # gloo in 1x4 and in 1x2
        run_of(tmp_path, number)
    summary = summarise_results(read_results([tmp_path], "all_reduce"))
    text = whole_page(summary, read_raw_data(summary.results))
    cases = re.findall(
        r">(all_reduce \d+ \w+, gloo python 1x\d)</td>",
        text[text.index("distinct measured cases") :],
    )
    assert [case.partition(", ")[2] for case in cases] == ["gloo python 1x2"] * 10 + [
        "gloo python 1x4"
    ] * 10
    assert [case.split(",")[0] for case in cases[:3]] == [
        "all_reduce 8 B",
        "all_reduce 32 B",
        "all_reduce 128 B",
    ]
    assert set(re.findall(r'<button type="button" data-series="([^"]+)"', text)) >= {"1x2", "1x4"}
    assert 'data-series="gloo python 1x2"' not in text[: text.index('<section id="layouts"')]


def test_a_line_of_one_size_is_a_dot_with_its_value() -> None:
    point = {
        "message_bytes": 8,
        "median_s": 4e-6,
        "ci_low_s": 3e-6,
        "ci_high_s": 5e-6,
        "case_id": "c",
        "runs": 1,
        "algbw_gb_per_s": 0.002,
        "busbw_gb_per_s": None,
        "pair": None,
        "warnings": [],
    }
    lines = {"all_reduce": {"gloo python": [point]}}
    curves = Curves(lines, {"all_reduce": {"gloo python": "gloo python"}}, frozenset(), Colours())
    ((_, (time, rate), _),) = (vars(panel).values() for panel in size_panels(curves))
    assert ">4.00 us</text>" in time.svg and ">0.00200 GB/s</text>" in rate.svg


def test_what_has_no_distribution_is_said_beside_the_distributions(tmp_path: Path) -> None:
    run_of(tmp_path, 0)
    summary = summarise_results(read_results([tmp_path], "all_reduce"))
    note = "distributions are drawn for 120 of 155 cases, those of the newest runs"
    text = whole_page(summary, replace(read_raw_data(summary.results), notes=(note,)))
    assert '<section id="missing"' not in text
    assert f"D{note[1:]}." in text[text.index('<section id="details"') :]
