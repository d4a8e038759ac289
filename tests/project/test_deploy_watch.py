"""deploy/ for `commbench watch`: the CronJob, the systemd units and the dashboard are read as their
programs read them, and their command lines by commbench itself."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import ROOT

from commbench.cluster.watch.command import watch_options
from commbench.cluster.watch.prometheus import (
    CASE_LABELS,
    METRIC_NAMES,
    SUITE_LABEL,
    VERDICT_LABEL,
    VERDICT_LABELS,
)
from commbench.cluster.watch.suite import watched_suite
from commbench.core.variables import NAMES

DEPLOY = ROOT / "deploy"
UNITS = DEPLOY / "systemd"
DASHBOARD = json.loads((DEPLOY / "grafana" / "commbench.json").read_text())
# labels that Prometheus adds to those of the file
SCRAPED = {"instance", "job"}


def cron_job() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "k8s" / "watch.yaml").read_text()))


def cron_pod() -> dict[str, Any]:
    return dict(cron_job()["spec"]["jobTemplate"]["spec"]["template"]["spec"])


# ---------------------------------------------------------------- Kubernetes


def test_the_cron_job_never_runs_twice_at_once_and_commbench_accepts_its_words() -> None:
    spec = cron_job()["spec"]
    (container,) = cron_pod()["containers"]
    assert spec["concurrencyPolicy"] == "Forbid"
    assert spec["jobTemplate"]["spec"]["backoffLimit"] == 0
    options = watch_options(container["args"])
    assert options.every_s is None
    assert str(options.store).startswith(container["volumeMounts"][0]["mountPath"])
    assert "layout=1x8" in options.words
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 8


def test_its_runs_are_all_of_one_host() -> None:
    pod = cron_pod()
    assert pod["nodeSelector"]["kubernetes.io/hostname"] == pod["hostname"]


@pytest.mark.parametrize(("status", "seen"), [(0, 0), (1, 1), (2, 1), (4, 0)])
def test_its_shell_passes_on_all_but_too_few_runs(tmp_path: Path, status: int, seen: int) -> None:
    """Its own command line, with a commbench that ends with that status."""
    (container,) = cron_pod()["containers"]
    program = tmp_path / "commbench"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\nexit {status}\n')
    program.chmod(0o755)
    command = container["command"]
    assert command[:3] == ["tini", "-g", "--"]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run([*command[3:], *container["args"]], env=environment, check=False)
    assert done.returncode == seen
    assert (tmp_path / "words").read_text().split() == ["watch", *container["args"]]


# ---------------------------------------------------------------- systemd


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=True, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((UNITS / name).read_text().replace("\\\n", ""))
    return parser


@pytest.mark.usefixtures("outside_any_world")
def test_the_service_runs_a_suite_that_commbench_accepts() -> None:
    service = unit("commbench-watch.service")["Service"]
    program, command, *words = shlex.split(service["ExecStart"])
    assert (Path(program).name, command) == ("commbench", "watch")
    assert service["Type"] == "oneshot"
    assert service["SuccessExitStatus"] == "4"
    prometheus = words.index("--prometheus")
    here = [*words[:prometheus], *words[prometheus + 2 :]]  # its folder is node_exporter's
    assert words[prometheus + 1].endswith(".prom")
    options = watch_options(here)
    assert options.every_s is None
    assert f"/var/lib/{service['StateDirectory']}" == str(options.store)
    assert watched_suite(options).cases


def test_the_timer_starts_the_service_every_six_hours() -> None:
    timer = unit("commbench-watch.timer")
    assert timer["Timer"]["OnCalendar"] == "00/6:00"
    assert timer["Install"]["WantedBy"] == "timers.target"
    assert (UNITS / "commbench-watch.service").exists()  # of the same name


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_accepts_both_units(tmp_path: Path) -> None:
    for name in ("commbench-watch.service", "commbench-watch.timer"):
        text = (UNITS / name).read_text().replace("/opt/commbench/bin/commbench", "/bin/true")
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if str(tmp_path) in line]
    assert ours == []


# ---------------------------------------------------------------- Grafana


def expressions() -> list[str]:
    panels = [
        target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])
    ]
    variables = [
        each["query"]["query"]
        for each in DASHBOARD["templating"]["list"]
        if each["type"] == "query"
    ]
    return [*panels, *variables]


def test_every_metric_of_the_dashboard_is_written_and_every_metric_is_shown() -> None:
    named = {name for text in expressions() for name in re.findall(r"commbench_\w+", text)}
    assert named == set(METRIC_NAMES)


def test_every_label_of_the_dashboard_is_written() -> None:
    texts = expressions()
    named = {name for text in texts for name in re.findall(r"(\w+)=~?\"", text)}
    named |= {name for text in texts for name in re.findall(r"label_values\([^,]+,(\w+)\)", text)}
    legends = [
        target.get("legendFormat", "")
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    ]
    named |= {name for text in legends for name in re.findall(r"\{\{(\w+)\}\}", text)}
    assert named <= {*CASE_LABELS, SUITE_LABEL, VERDICT_LABEL, *SCRAPED} and len(named) > 5
    assert set(CASE_LABELS) <= set(NAMES)


def test_the_verdicts_of_the_dashboard_exist() -> None:
    named = re.findall(r'verdict=~?"([\w|]+)"', " ".join(expressions()))
    assert {word for words in named for word in words.split("|")} < set(VERDICT_LABELS)


def test_every_variable_of_the_dashboard_is_defined() -> None:
    defined = {each["name"] for each in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(DASHBOARD["panels"])))
    assert used <= defined
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
