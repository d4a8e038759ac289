"""Files from strangers: configuration, run.json and parquet. No code runs, nothing is unpickled,
one line says why."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from loops import for_each

import commbench
from commbench.__main__ import main
from commbench.config.compose import ConfigComposer
from commbench.config.restricted import why_restricted
from commbench.core.errors import CommbenchError

OWNED = "owned"  # a file that hostile code would make in the working folder
ESCAPE = "\x1b]0;title\x07\x1b[31m"
MINE = "# @package benchmarks.mine\n_target_: {}\n"


class Evil:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (f"touch {OWNED}",)


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("evil.py").write_text(f"import os\nos.system('touch {OWNED}')\n")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = (
        "backend=simulated",
        "sizes=[8]",
        "timing=fixed",
        "timing.repetitions=5",
        "benchmark=all_reduce",
    )
    return Path(
        commbench.run(*words, "writer=parquet", f"output={tmp_path_factory.mktemp('good')}")
    )


# ---------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            (
                "# @package benchmarks.mine\n_target_: !!python/object/apply:os.system ['touch"
                " owned']\n"
            ),
            "python/object",
        ),
        (MINE.format("os.system"), "permit it with allow=[os]"),
        (MINE.format("evil.Evil"), "permit it with allow=[evil]"),
        (MINE.format("commbench.core.protocols.os.system"), "is outside commbench.benchmarks.*"),
        (
            MINE.format("commbench.backends.torch.gloo.__builtins__"),
            "is outside commbench.benchmarks.*",
        ),
        (
            MINE.format("commbench.benchmarks.all_reduce.__builtins__"),
            "not a dataclass that can be imported",
        ),
        (MINE.format("commbench.benchmarks..evil.Evil"), "not a dataclass that can be imported"),
        (
            MINE.format("commbench.benchmarks.all_reduce.AllReduce") + "_partial_: true\n",
            "_partial_",
        ),
        (
            MINE.format("commbench.benchmarks.all_reduce.AllReduce")
            + "x: ${oc.env:SECRET_TOKEN}\n",
            "credential",
        ),
        (
            "# @package _global_\nlabel: ${oc.env:SECRET_TOKEN}\n",
            "would write a credential into every result",
        ),
        ("# @package _global_\nlabel: ${hydra:runtime.cwd}\n", "HydraConfig was not set"),
        (
            "# @package _global_\nallow: [evil]\n",
            "which permits foreign modules; give allow=... on the command line",
        ),
        (
            "# @package _global_\nenv: {LD_PRELOAD: /tmp/x.so}\n",
            "a file sets env.LD_PRELOAD, which may load code or write files",
        ),
        (
            "# @package _global_\nenv: {PYTHONPATH: /tmp}\n",
            "give env.PYTHONPATH=... on the command line",
        ),
    ],
)
def test_a_hostile_configuration_runs_nothing(
    text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    group = "experiment" if "_global_" in text else "benchmark"
    Path("conf", group).mkdir(parents=True)
    Path("conf", group, "mine.yaml").write_text(text)
    word = "experiment=mine" if group == "experiment" else "benchmark=[all_reduce,mine]"
    assert main(["--config-dir", "conf", word, "plan=true", "sizes=[8]"]) == 2
    _, err = capsys.readouterr()
    assert message in err and len(err.splitlines()) == 1 and "hunter2" not in err
    assert not Path(OWNED).exists()


GLOBAL = "# @package _global_\n"
VICTIM = "victim"
HANDLERS = (
    "  {}:\n    handlers:\n      h: {{class: logging.FileHandler, filename: victim, mode: w}}\n"
    "    root: {{handlers: [h]}}\n"
)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("hydra:\n" + HANDLERS.format("job_logging"), "hydra.job_logging.handlers"),
        ("hydra:\n" + HANDLERS.format("hydra_logging"), "hydra.hydra_logging.handlers"),
        (
            "hydra:\n  job_logging:\n    handlers:\n"
            "      h: {'()': os.system, command: touch owned}\n    root: {handlers: [h]}\n",
            "hydra.job_logging.handlers",
        ),
        ("defaults: [override /hydra/launcher: theirs]\n", "hydra.launcher."),
        ("hydra: {callbacks: {mine: {_target_: os.system}}}", "hydra.callbacks.mine"),
        ("hydra: {output_subdir: .hydra, sweep: {dir: elsewhere}}", "hydra.output_subdir"),
        ("hydra: {sweep: {subdir: elsewhere}}", "hydra.sweep.subdir"),
        ("hydra: {job: {env_set: {LD_PRELOAD: x}}}", "hydra.job.env_set"),
        ("hydra: {job: {env_copy: [SECRET_TOKEN]}}", "hydra.job.env_copy"),
        ("hydra: {job: {chdir: true}}", "hydra.job.chdir"),
        ("hydra: {overrides: {hydra: [hydra.verbose=true]}}", "hydra.overrides.hydra"),
        ("hydra: {sweeper: {_target_: os.system}}", "hydra.sweeper._target_"),
        ("hydra: {verbose: true}", "hydra.verbose"),
        ("hydra: {sweeper: null}", "hydra.sweeper._target_"),
        ("hydra: {mode: MULTIRUN, sweeper: {params: {trial: '0,1'}}}", "hydra.mode"),
    ],
)
def test_a_file_sets_nothing_below_hydra(
    text: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A handler of Hydra's logging is any file or any function, its launcher starts programs."""
    refuses_below_hydra(text, key, capsys)


def test_a_file_that_a_sweep_names_is_refused_alike(capsys: pytest.CaptureFixture[str]) -> None:
    text = "hydra:\n" + HANDLERS.format("job_logging")
    refuses_below_hydra(text, "hydra.job_logging.handlers", capsys, "-m", "seed=1,2")


def refuses_below_hydra(
    text: str, key: str, capsys: pytest.CaptureFixture[str], *sweep: str
) -> None:
    Path(VICTIM).write_text("kept")
    files = {
        "experiment/mine.yaml": GLOBAL + text,
        "hydra/launcher/theirs.yaml": "_target_: os.system\n",
    }
    for name, content in files.items():
        Path("conf", name).parent.mkdir(parents=True, exist_ok=True)
        Path("conf", name).write_text(content)
    words = ["backend=simulated", "sizes=[8]", "benchmark=barrier", "timing=quick", *sweep]
    assert main(["--config-dir", "conf", "experiment=mine", *words]) == 2
    _, err = capsys.readouterr()
    assert f"a file sets {key}" in err and len(err.splitlines()) == 1
    assert "on the command line, and a sweep as a line of `parts`" in err
    assert Path(VICTIM).read_text() == "kept" and not Path(OWNED).exists()
    assert not Path("elsewhere").exists()


def test_a_file_of_a_swept_group_is_looked_at_in_each_job(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("conf/timing").mkdir(parents=True)
    text = "# @package hydra.job_logging\nroot: {handlers: [h]}\n"
    Path("conf/timing/mine.yaml").write_text(text)
    words = ["-m", "backend=simulated", "sizes=[8]", "timing=quick,mine", "plan=true"]
    assert main(["--config-dir", "conf", *words]) == 2
    assert "a file sets hydra.job_logging.root" in capsys.readouterr().err


def test_the_user_sets_what_a_file_may_not(capsys: pytest.CaptureFixture[str]) -> None:
    Path("conf/experiment").mkdir(parents=True)
    Path("conf/experiment/mine.yaml").write_text(GLOBAL + "env: {NCCL_DEBUG: INFO}\nseed: 3\n")
    words = ["backend=simulated", "sizes=[8]", "experiment=mine", "plan=true", "env.HOME=/tmp"]
    words += ["+hydra.job.env_set.A=b", "hydra/launcher=basic", "hydra.verbose=false"]
    assert main(["--config-dir", "conf", *words]) == 0


LOADING_VARIABLES = [
    *("HOME", "XDG_CONFIG_HOME", "NUMBA_CACHE_DIR", "OPAL_PREFIX", "PMIX_PREFIX", "PRTE_PREFIX"),
    *("OMP_TOOL_LIBRARIES", "OPENSSL_CONF", "OMPI_MCA_mpi_param_files", "COMMBENCH_JOB", "PATH"),
    *("OMPI_MCA_mca_base_component_path", "OMPI_MCA_plm_rsh_agent", "OMPI_MCA_coll_x_filename"),
    *("OMPI_MCA_btl_sm_backing_directory", "NCCL_NET_PLUGIN", "NCCL_CONF_FILE", "NCCL_DEBUG_FILE"),
    *("NCCL_TUNER_PLUGIN", "NCCL_TOPO_DUMP_FILE", "UCX_MODULE_DIR", "UCX_GDB_COMMAND", "TMPDIR"),
    *("UCX_LOG_FILE", "UCX_ERROR_MAIL_TO", "FI_PROVIDER_PATH", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
    *("PYTHONSTARTUP", "LD_AUDIT", "GLIBC_TUNABLES", "GIT_SSH", "nccl_algo", "NCCL_ALGO_FILE", "A"),
    *("COMMBENCH_FOLDER", "MASTER_ADDR", "CUDA_CACHE_PATH", "BASH_ENV", "SLURM_PROCID"),
]


@for_each("name", LOADING_VARIABLES)
def test_a_variable_that_may_load_code_or_name_a_file_is_for_the_command_line(name: str) -> None:
    assert why_restricted(f"env.{name}", "x") is not None


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("env: {LD_AUDIT: x}", ()),
        ("env: {LD_AUDIT: x}", ("env={NCCL_ALGO:Ring}",)),
        ("parts: {full: ['env.LD_AUDIT=x']}", ()),
    ],
)
def test_a_file_that_sets_such_a_variable_is_refused(
    text: str, given: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("conf/experiment").mkdir(parents=True)
    Path("conf/experiment/mine.yaml").write_text(GLOBAL + text)
    words = ["experiment=mine", "backend=simulated", "sizes=[8]", "plan=true", *given]
    assert main(["--config-dir", "conf", *words]) == 2
    assert "file sets env.LD_AUDIT" in capsys.readouterr().err


def test_a_file_sets_the_values_of_communication_libraries() -> None:
    names = [
        *("NCCL_ALGO", "NCCL_PROTO", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_P2P_DISABLE"),
        *("NCCL_MIN_NCHANNELS", "NCCL_DEBUG", "NCCL_NVLS_ENABLE", "NCCL_NET_GDR_LEVEL"),
        *("UCX_TLS", "UCX_NET_DEVICES", "UCX_RNDV_THRESH", "FI_PROVIDER", "GLOO_SOCKET_IFNAME"),
        *("OMPI_MCA_pml", "OMPI_MCA_btl_tcp_if_include", "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"),
        *("OMP_NUM_THREADS", "CUDA_DEVICE_MAX_CONNECTIONS", "TORCH_NCCL_HIGH_PRIORITY"),
    ]
    Path("conf/experiment").mkdir(parents=True)
    text = "".join(f"  {name}: x\n" for name in names)
    Path("conf/experiment/mine.yaml").write_text(f"{GLOBAL}env:\n{text}")
    with ConfigComposer("conf") as composer:
        (job,) = composer.jobs(["experiment=mine", "backend=simulated"], multirun=False)
    assert sorted(dict(job.settings.env)) == sorted(names)


# ---------------------------------------------------------------- results


def commands(path: Path, good: Path) -> list[list[str]]:
    return [
        ["compare", str(path), str(good)],
        ["export", str(path), "--csv", "-"],
        ["replay", "ddp", "params=1e6", "--from", str(path)],
        ["report", str(path), "--html", "page.html"],
    ]


def check(path: Path, lines: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    for words in lines:
        status = main(words)
        out, err = capsys.readouterr()
        assert status in (0, 1, 2)
        assert "Traceback" not in err and (words[0] == "export" or "\x1b" not in out + err)
        assert status != 2 or len(err.splitlines()) == 1
    with suppress(CommbenchError):
        commbench.load(path)
    assert not Path(OWNED).exists()


DEEP = "[" * 100_000
RUNS: dict[str, Any] = {
    "provenance a number": {"provenance": 7},
    "provenance a list": {"provenance": [1]},
    "nodes a number": {"provenance": {"nodes": 7}},
    "nodes of numbers": {"provenance": {"nodes": [7]}},
    "escapes": {
        "provenance": {"nodes": [{"host.kernel": ESCAPE}]},
        "label": ESCAPE,
        "config": {ESCAPE: ESCAPE},
    },
    "config a list": {"config": [1], "world": 7, "started_at": 7},
    "settings a number": {"settings": 7, "config": {"timing": {"interval_s": "x"}}},
    "settings of another form": {"settings": [7, {"name": ESCAPE}]},
}


def test_runs_of_wrong_types_and_hostile_texts(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All in one folder, whose runs every command reads, and each in the commands that end with its
    first error."""
    record = json.loads((good / "run.json").read_text())
    results = tmp_path / "results"
    for name, change in RUNS.items():
        shutil.copytree(good, results / name)
        (results / name / "run.json").write_text(json.dumps(record | change | {"run_id": name}))
    for damage in (pickled, deep, escaping):
        shutil.copytree(good, results / damage.__name__)
        damage(results / damage.__name__ / "cases.parquet")
    check(results, commands(results, good), capsys)
    for run in results.iterdir():
        check(run, [["show", str(run)], ["export", str(run), "--csv", "-"]], capsys)


TEXTS = {
    "deep": b'{"schema_version":1,"a":' + DEEP.encode(),
    "not UTF-8": b'\xff\xfe{"schema_version":1}',
    "a list": b"[1]",
    "an escape for a version": json.dumps({"schema_version": ESCAPE}).encode(),
    "a number without end": b'{"schema_version":1,"n":' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("content", TEXTS.values(), ids=TEXTS)
def test_a_run_json_that_is_none(
    content: bytes, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(good, run)
    (run / "run.json").write_bytes(content)
    check(run, commands(run, good), capsys)


def foreign(file: Path) -> None:
    pq.write_table(pa.table({"a\x1b[31m": [1]}), file)


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-50])


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def loop(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.name)


def pickled(file: Path) -> None:
    evil = pickle.dumps(Evil())
    names = (b"pandas", b"commbench_run", b"commbench_runs", b"ARROW:extension:metadata")
    pq.write_table(pq.read_table(file).replace_schema_metadata(dict.fromkeys(names, evil)), file)


def deep(file: Path) -> None:
    metadata = {b"schema_version": b"1", b"commbench_run": DEEP.encode()}
    pq.write_table(pq.read_table(file).replace_schema_metadata(metadata), file)


def escaping(file: Path) -> None:
    table = pq.read_table(file)
    for name in ("benchmark", "label", "layout", "backend"):
        place = table.schema.get_field_index(name)
        table = table.set_column(
            place, table.schema.field(name), pa.array([ESCAPE] * table.num_rows)
        )
    pq.write_table(table, file)


@pytest.mark.parametrize("damage", [foreign, truncated, folder, loop, pickled, deep, escaping])
def test_a_hostile_file_of_cases(
    damage: Callable[[Path], None], good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(good, run)
    damage(run / "cases.parquet")
    check(run / "cases.parquet", commands(run / "cases.parquet", good), capsys)
    if damage in (foreign, truncated, folder, loop):  # nothing of the run can be read
        check(run, commands(run, good), capsys)
