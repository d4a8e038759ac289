"""The page: safe whatever the texts hold, whole without a network, and as a browser reads it."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from generated_results import run_of
from hypothesis import given
from hypothesis import strategies as st
from places import HARDWARE_TEXTS

import commbench
from commbench.cli.report import report as command
from commbench.report import distributions
from commbench.report.page import environment
from commbench.report.section import Section, clean

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
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(page: Path) -> Reader:
    reader = Reader()
    reader.feed(page.read_text())
    return reader


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
    run_of(output, 1, hostname=EVIL)
    # so long that a second has few of them
    slow = ("benchmark=p2p_latency", "sizes=[8]", "backend.model.latency_s=1e-4")
    latency = (*SIMULATED, *slow, f"output={output}")
    commbench.run(*latency, "layout=1x4", "pairs=all")
    commbench.run(*latency, "timing=soak", "timing.duration_s=1")
    file = output / "page.html"
    # a figure of a kind is as good as sixteen
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(distributions, "MOST_DISTRIBUTIONS", 2)
        assert command([str(output), "--benchmark", "p2p_latency", "--html", str(file)]) == 0
    return file


def test_texts_stay_texts_and_tags_are_balanced(page: Path) -> None:
    reader = read(page)
    text = page.read_text()
    assert reader.open == [] and not any(tag == "script" for tag, _ in reader.tags)
    assert not [name for _, values in reader.tags for name in values if name.startswith("on")]
    assert "&lt;script&gt;alert(&#34;x&#34;)" in text and "\x00" not in text


def test_nothing_is_loaded_from_anywhere_and_every_link_leads_somewhere(page: Path) -> None:
    tags = read(page).tags
    ids = {values["id"] for _, values in tags if "id" in values}
    links = [str(values["href"]) for _, values in tags if "href" in values]
    assert links and {link.removeprefix("#") for link in links} <= ids
    sources = [str(values["src"]) for _, values in tags if "src" in values]
    assert len(sources) > 5 and all(each.startswith("data:image/svg+xml;") for each in sources)
    assert not re.search(r"https?://|@import|url\(", page.read_text())


def test_it_begins_with_date_host_and_answers_and_has_every_kind_of_section(page: Path) -> None:
    text = page.read_text()
    assert re.search(r'"about">20\d\d-\d\d-\d\d.*hosts? .*\d+ cases of \d+ runs</p>', text)
    titles = re.findall(r"<(?:h2|summary)>(.*?)<", text)
    assert titles[0] == "Answers" and "Machines" in titles
    assert {"p2p_latency", "Over time", "All pairs", "p2p_latency in numbers"} <= set(titles)
    assert any(re.fullmatch(r"\d+ distributions", title) for title in titles)


def test_a_soak_alone_is_a_result(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest = max(path.parent for path in page.parent.rglob("run.json"))
    capsys.readouterr()
    assert command([str(newest)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Soak of p2p_latency 1x2 0-1 8 B, simulated virtual: median " in text
    assert "Nothing was measured" not in text and "no choice" not in text


def test_a_folded_section_is_left_out_where_its_figures_turn_out_to_be_none() -> None:
    empty = Section("Ramps", figures=list, is_folded=True)
    full = Section("Costs", ["it costs 1 us"], is_folded=True)
    text = environment().get_template("page.html.j2").render(about=[], sections=[empty, full])
    assert re.findall("<summary>(.*)</summary>", text) == ["Costs"]


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


TELL_WIDTHS = """<script>addEventListener("load", () => {
  document.querySelectorAll("details").forEach(one => { one.open = true });
  const root = document.documentElement;
  const back = getComputedStyle(document.body).backgroundColor;
  const drawn = [...document.images].every(one => one.naturalWidth > 0);
  const beyond = root.scrollWidth - root.clientWidth;
  parent.postMessage([innerWidth, beyond, back, drawn].join(" / "), "*");
})</script></body>"""
HEAR_WIDTHS = """<script>addEventListener("message", event => {
  const line = document.createElement("p");
  line.textContent = event.data;
  document.body.append(line);
})</script>"""


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
@pytest.mark.parametrize(
    ("scheme", "back"), [("1", "rgb(255, 255, 255)"), ("0", "rgb(17, 24, 39)")]
)
def test_a_browser_draws_all_figures_and_nothing_reaches_beyond_any_width(
    page: Path, tmp_path: Path, scheme: str, back: str
) -> None:
    """With all that is folded open. In frames, because a window has a least width; light, then
    dark. The page allows no script, so the copy that tells its widths does."""
    assert CHROMIUM is not None
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    (tmp_path / "page.html").write_text(text.replace("</body>", TELL_WIDTHS))
    widths = (390, 1300, 2000)
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
        f"{width} / 0 / {back} / true" for width in widths
    )
