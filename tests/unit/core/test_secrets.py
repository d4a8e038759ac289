"""Credentials in the configuration: hidden in the record, given again where a run goes on, never in
a result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import commbench
from commbench.config.compose import ConfigComposer
from commbench.core.errors import ConfigError
from commbench.core.secrets import MASK, recorded, recorded_override

SECRET = "hunter2-qwerty"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (f"env.FOO_TOKEN={SECRET}", "env.FOO_TOKEN='***'"),
        (f"++env.FOO_TOKEN='{SECRET}'", "++env.FOO_TOKEN='***'"),
        (f"++env={{A:1,API_KEY:{SECRET},B:'x'}}", "++env={A:1,API_KEY:'***',B:'x'}"),
        (f"++env={{API_KEY:'{SECRET},}}'}}", "++env={API_KEY:'***'}"),
        (f"++env.PROXY='http://me:{SECRET}@host:1/x'", "++env.PROXY='http://***@host:1/x'"),
        (f"label=https://{SECRET}@git.example/x.git", "label=https://***@git.example/x.git"),
        ("sizes=[8,1KiB]", "sizes=[8,1KiB]"),
        ("expect=['all_reduce:median_s<1']", "expect=['all_reduce:median_s<1']"),
        ("env.NCCL_SOCKET_IFNAME=eth0", "env.NCCL_SOCKET_IFNAME=eth0"),
    ],
)
def test_an_override_as_it_is_written_down(override: str, expected: str) -> None:
    assert recorded_override(override) == expected
    assert recorded_override(expected) == expected


@given(st.text(max_size=40))
def test_any_override_can_be_written_down(text: str) -> None:
    assert isinstance(recorded_override(text), str)


def test_names_stay_at_every_depth() -> None:
    config = {
        "env": {"X_TOKEN": SECRET, "X": "1", "PIN_KEY": 1234},
        "model": [{"password": SECRET}],
        "seed": 3,
    }
    masked = recorded("", config)
    assert masked == {
        "env": {"X_TOKEN": MASK, "X": "1", "PIN_KEY": MASK},
        "model": [{"password": MASK}],
        "seed": 3,
    }


def test_ranks_with_different_credentials_have_different_digests_and_equal_records() -> None:
    with ConfigComposer() as composer:
        job, other = (
            composer.jobs([f"env.FOO_TOKEN={text}"], False)[0] for text in (SECRET, "another")
        )
    assert job.digest != other.digest
    assert job.config == other.config and job.config["env"] == {"FOO_TOKEN": MASK}
    assert dict(job.settings.env) == {"FOO_TOKEN": SECRET}, "the ranks get it"


def test_a_recorded_override_takes_the_value_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ConfigComposer() as composer:
        with pytest.raises(ConfigError, match="export FOO_TOKEN="):
            composer.jobs(["++env.FOO_TOKEN='***'"], False)
        monkeypatch.setenv("FOO_TOKEN", "a'b\\c")
        assert dict(composer.jobs(["++env.FOO_TOKEN='***'"], False)[0].settings.env) == {
            "FOO_TOKEN": "a'b\\c"
        }


def test_no_file_of_a_run_holds_a_credential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_API_KEY", SECRET)
    monkeypatch.setenv("UCX_PROXY", f"http://me:{SECRET}@proxy")
    given = [
        f"env.FOO_TOKEN={SECRET}",
        f"env.GIT='https://me:{SECRET}@git.example'",
        f"output={tmp_path}",
    ]
    words = [
        "backend=simulated",
        "sizes=[8]",
        "benchmark=barrier",
        "timing=fixed",
        "timing.repetitions=5",
    ]
    folder = commbench.run(*words, "writer=[parquet,jsonl]", *given)
    files = [file for file in Path(folder).rglob("*") if file.is_file()]
    assert len(files) >= 3
    assert [file.name for file in files if SECRET.encode() in file.read_bytes()] == []
    run = json.loads((Path(folder) / "run.json").read_text())
    assert run["config"]["env"] == {"FOO_TOKEN": MASK, "GIT": "https://***@git.example"}
    facts = run["provenance"]["nodes"][0]
    assert (
        facts["environment.NCCL_API_KEY"] == MASK
        and facts["environment.UCX_PROXY"] == "http://***@proxy"
    )
    assert "run.digest" not in facts
    assert json.loads(commbench.load(folder).env[0])["FOO_TOKEN"] == MASK
