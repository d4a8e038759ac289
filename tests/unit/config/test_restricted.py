"""What a file may not set and the command line may: one line says it, and nothing was run."""

from __future__ import annotations

from pathlib import Path

import pytest
from loops import for_each

from commbench.__main__ import main
from commbench.config.compose import ConfigComposer
from commbench.config.restricted import why_restricted

OWNED = "owned"  # a file that hostile code would make in the working folder
GLOBAL = "# @package _global_\n"
VICTIM = "victim"
HANDLERS = (
    "  {}:\n    handlers:\n      h: {{class: logging.FileHandler, filename: victim, mode: w}}\n"
    "    root: {{handlers: [h]}}\n"
)


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")


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
