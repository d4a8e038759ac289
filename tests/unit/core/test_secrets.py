"""Credentials in the configuration: hidden in the record, given again where a run goes on, never in
a result."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import BACKENDS, EXPERIMENTS, ROOT

import commbench
from commbench.config.compose import ConfigComposer
from commbench.core.errors import ConfigError
from commbench.core.secrets import MASK, is_secret, mask, masked, masked_override
from commbench.runtime import launch

SECRET = "hunter2-qwerty"

OPTIONS = "launcher.options=[{}AWS_SECRET_ACCESS_KEY=***{}]"
EXPORTED = "launcher.options=['--export=ALL,AWS_SECRET_ACCESS_KEY=***']"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (f"env.FOO_TOKEN={SECRET}", "env.FOO_TOKEN='***'"),
        (f"++env.FOO_TOKEN='{SECRET}'", "++env.FOO_TOKEN='***'"),
        (f"++env={{A:1,API_KEY:{SECRET},B:'x'}}", "++env={A:1,API_KEY:'***',B:'x'}"),
        (f"++env={{API_KEY:'{SECRET},}}'}}", "++env={API_KEY:'***'}"),
        (f"++env.PROXY='http://me:{SECRET}@host:1/x'", "++env.PROXY='http://***@host:1/x'"),
        (f"label=https://{SECRET}@git.example/x.git", "label=https://***@git.example/x.git"),
        (f"launcher.options=[-x,'AWS_SECRET_ACCESS_KEY={SECRET}']", OPTIONS.format("-x,'", "'")),
        (f"launcher.options=['--export=ALL,AWS_SECRET_ACCESS_KEY={SECRET}']", EXPORTED),
        (
            f"launcher.options=[-genv,MY_TOKEN,{SECRET},-x,A]",
            "launcher.options=[-genv,MY_TOKEN,***,-x,A]",
        ),
        (f"launcher.options=[--password,{SECRET}]", "launcher.options=[--password,***]"),
        (f"env.DB_PASS={SECRET}", "env.DB_PASS='***'"),
        (f"env.MYSQL_PWD={SECRET}", "env.MYSQL_PWD='***'"),
        ("label='ghp_abcdefghijklmnopqrstuv0123456789'", "label='***'"),
        (f"label='Authorization: Bearer {SECRET}'", "label='Authorization: *** ***'"),
        (f"label='AccountName=me;AccountKey={SECRET}=='", "label='AccountName=me;AccountKey=***'"),
        ("allow=[authlib,my.module]", "allow=[authlib,my.module]"),
        ("launcher.hosts=[key-node1,node2]", "launcher.hosts=[key-node1,node2]"),
        ("traffic='moe tokens=128'", "traffic='moe tokens=128'"),
        ("env.OMPI_MCA_bypass=1", "env.OMPI_MCA_bypass=1"),
        ("sizes=[8,1KiB]", "sizes=[8,1KiB]"),
        ("expect=['all_reduce:median_s<1']", "expect=['all_reduce:median_s<1']"),
        ("env.NCCL_SOCKET_IFNAME=eth0", "env.NCCL_SOCKET_IFNAME=eth0"),
    ],
)
def test_an_override_as_it_is_written_down(override: str, expected: str) -> None:
    assert masked_override(override) == expected
    assert masked_override(expected) == expected


@given(st.text(max_size=40))
def test_any_override_can_be_written_down(text: str) -> None:
    assert isinstance(masked_override(text), str)


@pytest.mark.parametrize(
    "name",
    [
        *("AWS_SECRET_ACCESS_KEY", "api_key", "FOO_TOKEN", "access_token", "token", "COOKIE"),
        *("PASSWORD", "DB_PASS", "SSHPASS", "env.DB_PASS", "pass", "passphrase", "X-Amz-Signature"),
        *("MYSQL_PWD", "Pwd", "pwd", "FI_PSK", "wifi.psk", "sig", "Authorization"),
    ],
)
def test_the_name_of_a_credential(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        *("timing.pass_s", "pass_s", "OMPI_MCA_bypass", "compass", "PASSES", "PASSIVE"),
        *("PWD", "OLDPWD", "env.PWD", "TOKENIZERS_PARALLELISM", "GIT_AUTHOR_NAME"),
        *("signal", "PSKILL", "UPSKILL", "NCCL_SOCKET_IFNAME"),
    ],
)
def test_the_name_of_no_credential(name: str) -> None:
    assert not is_secret(name)


def test_no_key_of_the_configuration_is_taken_for_a_credential() -> None:
    """A masked value can't be measured again: resume and a second measurement would fail."""
    files = [*(ROOT / "conf").rglob("*.yaml"), *EXPERIMENTS.values(), *BACKENDS.values()]
    keys = {key for file in files for key in re.findall(r"^ *(\w+):", file.read_text(), re.M)}
    assert {"pass_s", "target", "latency_s"} <= keys
    assert [key for key in keys if is_secret(key)] == []
    assert masked_override("timing.pass_s=0.2") == "timing.pass_s=0.2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"token={SECRET}", "token=***"),
        (f"run --token {SECRET} -n 2", "run --token *** -n 2"),
        (f"--db-password '{SECRET} {SECRET}' -v", "--db-password *** -v"),
        (f"Uid=me;Pwd={SECRET};Db=x", "Uid=me;Pwd=***;Db=x"),
        (f"sv=1;sig={SECRET}", "sv=1;sig=***"),
        ("id=AKIAIOSFODNN7EXAMPLE", "id=***"),
        ("aws_ASIAIOSFODNN7EXAMPLE", "aws_***"),
        (
            f"a\n-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----\nb",
            "a\n***\nb",
        ),
        (f"-----BEGIN PRIVATE KEY-----\\n{SECRET}", "***"),
        ("--tokenizer bert --passes 3 -v", "--tokenizer bert --passes 3 -v"),
        ("PWD=/home/me", "PWD=/home/me"),
        ("-----BEGIN CERTIFICATE-----", "-----BEGIN CERTIFICATE-----"),
        (f'{{"api_key": "{SECRET} {SECRET}", "a": 1}}', '{"api_key": ***, "a": 1}'),
        (f"a=1 DB_PASSWORD='{SECRET} {SECRET}' b=2", "a=1 DB_PASSWORD=*** b=2"),
        (f"Bearer {SECRET}", "Bearer ***"),
        ("Basic aHVudGVyMi1xd2VydHk=", "Basic ***"),
        ("Basic run", "Basic run"),
        ("github_pat_" + 22 * "a", "***"),
        ("glpat-" + 20 * "a", "***"),
        (
            "https://x.blob.example/c?sv=1&sig=abc%2F&se=2",
            "https://x.blob.example/c?sv=1&sig=***&se=2",
        ),
        ("key", "key"),
        ("NCCL_KEYS", "NCCL_KEYS"),
        ("mlx5_0:1,mlx5_1:1", "mlx5_0:1,mlx5_1:1"),
    ],
)
def test_credentials_in_a_text_are_masked(text: str, expected: str) -> None:
    assert mask(text) == expected
    assert mask(expected) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("a", "KEY", "KEY ", "key=", "a:", "tokens=1", "'", "-", "eyJ.", "=", "a@:", "--key "),
        *("-----BEGIN ", "-----BEGIN PRIVATE KEY"),
    ],
)
def test_the_time_of_masking_is_in_proportion_to_the_text(text: str) -> None:
    def seconds(characters: int) -> float:
        begin_s = time.perf_counter()
        mask(text * (characters // len(text)))
        return time.perf_counter() - begin_s

    assert min(seconds(80_000) for _ in range(3)) < 0.5  # a quadratic one takes 10 s


def test_options_of_a_launcher_are_recorded_without_credentials() -> None:
    options = ["-x", f"AWS_SECRET_ACCESS_KEY={SECRET}", "-genv", "MY_TOKEN", SECRET, "-n", "2"]
    assert masked("", {"launcher": {"options": options}})["launcher"]["options"] == [
        *("-x", f"AWS_SECRET_ACCESS_KEY={MASK}", "-genv", "MY_TOKEN", MASK, "-n", "2")
    ]


def test_command_lines_of_ranks_have_no_credential_even_where_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The users of a machine see all command lines in ps."""
    commands = list[list[str]]()

    def started(*arguments: Any) -> None:
        commands.append(arguments[1])
        raise ConfigError("stopped before the start")

    monkeypatch.setattr(launch, "LaunchedWorld", started)
    monkeypatch.setenv("MY_KEY", SECRET)
    words = ["launcher=torchrun", "env.MY_KEY='***'", "label='Bearer x'", f"output={tmp_path}"]
    for long in ([], [f"++env.LONG={'x' * launch.LONGEST_VARIABLE}"]):
        with pytest.raises(ConfigError, match="stopped before"):
            commbench.run(*words, *long)
        assert SECRET not in " ".join(commands[-1])
        assert any("env.MY_KEY='***'" in word for word in commands[-1])
    assert any("label='Bearer ***'" in word for word in commands[0])
    assert any("label='Bearer x'" in word for word in commands[1]), "ranks read it"


def test_a_recorded_mapping_takes_its_values_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    word = masked_override(f"env={{A:1,MY_TOKEN:{SECRET}}}")
    assert word == "env={A:1,MY_TOKEN:'***'}"
    with ConfigComposer() as composer:
        with pytest.raises(ConfigError, match="export MY_TOKEN="):
            composer.jobs([word], False)
        monkeypatch.setenv("MY_TOKEN", SECRET)
        assert dict(composer.jobs([word], False)[0].settings.env) == {"A": "1", "MY_TOKEN": SECRET}


def test_names_stay_at_every_depth() -> None:
    config = {
        "env": {"X_TOKEN": SECRET, "X": "1", "PIN_KEY": 1234},
        "model": [{"password": SECRET}],
        "seed": 3,
    }
    assert masked("", config) == {
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
