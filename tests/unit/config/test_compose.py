"""Overrides -> jobs: sweeps and their order, the spellings that spare users Hydra's grammar, and
settings that hold."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose
from hydra.errors import HydraException
from hypothesis import example, given
from hypothesis import strategies as st
from loops import for_each
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import GrammarParseError
from places import BACKENDS, BENCHMARKS

import commbench
from commbench.__main__ import main
from commbench.config.compose import ConfigComposer, in_run_order, resolved
from commbench.config.expectations import Expectation, parse_expectation
from commbench.config.keys import KEYS
from commbench.config.overrides import override_texts
from commbench.config.settings import Job, Settings, from_config, received
from commbench.config.sizes import OCTAVES_BYTES, PRESETS, sizes_bytes
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.core.payload import DTYPES
from commbench.results.columns import CASES
from commbench.runtime.launchers.mpirun import Mpirun

CONF = Path(commbench.__file__).parents[1] / "conf"


def swept(*overrides: str, config_dir: str | None = None) -> list[Job]:
    with ConfigComposer(config_dir) as composer:
        return composer.jobs(overrides, multirun=True)


def single(*overrides: str, config_dir: str | None = None) -> Settings:
    with ConfigComposer(config_dir) as composer:
        jobs = composer.jobs(overrides, multirun=False)
    assert len(jobs) == 1
    return jobs[0].settings


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        [
            "benchmark=[all_reduce,exchange]",
            "writer=[osu]",
            "sizes=[8,'1KiB..4KiB']",
            "label='a b'",
            "seed=3",
        ],
        [
            "sizes=[8]",
            "backend=tcp",
            "timing=soak",
            "timing.duration_s=3",
            "budget.restarts=7",
            "timing=quick",
        ],
        [
            "++env.A='1e3'",
            "+env.B=${label}",
            "label=x",
            "~benchmark",
            "launcher.options=[]",
            "launcher=mpirun",
        ],
        ["experiment=ec2_streams", "scale=cpu", "part=2", "~parts", "backend.streams=4"],
        ["nonsense=1", "sizes=[8]"],
        ["timing.nonsense=1"],
        ["backend={library: x}", "+backend@other=gloo", "sizes=[8]"],
        ["hydra.job.name=x", "hydra/launcher=basic"],
        ["~env.NOTHING"],
        ["+label=x"],
    ],
    ids=" ".join,
)
def test_a_configuration_is_what_hydra_composes(overrides: list[str]) -> None:
    def text(compose: Callable[[list[str]], DictConfig]) -> str:
        try:
            return OmegaConf.to_yaml(compose(overrides))
        except (ConfigError, HydraException) as error:
            return " ".join(str(error).split())

    with ConfigComposer() as composer:
        by_hydra = text(lambda words: compose("config", overrides=words))
        ours = [text(composer.config) for _ in range(2)]
    assert ours[0] == ours[1]
    assert ours[0] == by_hydra or (
        by_hydra.startswith("Could not override") and ours[0].startswith("unknown key")
    )


def test_files_are_composed_once_for_a_sweep_and_the_users_again_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed: list[list[str]] = []

    def counted(name: str, overrides: list[str], **more: Any) -> Any:
        composed.append(overrides)
        return compose(name, overrides=overrides, **more)

    for module in ("compose", "restricted"):
        monkeypatch.setattr(f"commbench.config.{module}.compose", counted)
    mine = tmp_path / "timing" / "mine.yaml"
    mine.parent.mkdir()
    text = (CONF / "timing" / "fixed.yaml").read_text()
    for repetitions in (100, 77):
        mine.write_text(text.replace("repetitions: 100", f"repetitions: {repetitions}"))
        composed.clear()
        jobs = swept("timing=mine", "layout=1x1,1x2,1x3", "seed=0,1", config_dir=str(tmp_path))
        assert {job.settings.timing.repetitions for job in jobs} == {repetitions} and len(jobs) == 6
        assert len(composed) == 2, "once for the jobs, and once for what Hydra itself would do"
    single("seed=5")
    composed.clear()
    single("seed=6")
    assert not composed, "commbench's own files do not change in a process"


def test_the_values_of_a_job_do_not_reach_the_next_job() -> None:
    with ConfigComposer() as composer:
        before = composer.config(["backend=gloo"])
        composer.jobs(
            ["backend=gloo", "timing.target=0.5", "budget.restarts=7", "env.A=b"], multirun=False
        )
        assert OmegaConf.to_yaml(composer.config(["backend=gloo"])) == OmegaConf.to_yaml(before)


# ---------------------------------------------------------------- sweeps


def test_a_sweep_is_every_combination() -> None:
    jobs = swept("backend=gloo,mpi", "layout=1x2,1x4", "sizes=[8]")
    points = {(job.settings.backend.name, *job.settings.layouts) for job in jobs}
    assert len(jobs) == 4
    assert points == {(name, Layout(1, ranks)) for name in ("gloo", "mpi") for ranks in (2, 4)}
    assert all(job.settings.sizes == ((8,),) and "sizes=[8]" in job.overrides for job in jobs)


@pytest.mark.parametrize(
    ("words", "labels"),
    [
        (["backend.model.noise=0.1,0.2"], ["noise 0.1", "noise 0.2"]),
        (
            ["backend.model.slow_pair='0-1','1-0'", "backend.model.slow_factor=2", "trial=0,1"],
            ["slow_pair 0-1", "slow_pair 1-0"],
        ),
        (["backend.model.noise=0.1,0.2", "label=mine"], ["mine"]),
        (["backend.model.noise=0.1", "trial=0,1"], [""]),
    ],
)
def test_models_of_a_sweep_are_told_apart_by_labels(words: list[str], labels: list[str]) -> None:
    """They plant a machine, and are no variables of a case."""
    with ConfigComposer() as composer:
        jobs = composer.jobs(["backend=simulated", *words], multirun=True)
    assert sorted({job.settings.label for job in jobs}) == labels


def test_the_overrides_of_a_job_mean_that_job() -> None:
    for job in swept("backend=mpi", "env.A=1,2", "benchmark=all,[all_reduce]", "trial=3"):
        with ConfigComposer() as composer:
            again = composer.jobs(job.overrides, multirun=False)[0]
        assert (again.settings, again.digest, again.overrides) == (
            job.settings,
            job.digest,
            job.overrides,
        )


def test_launch_is_outermost_and_sorted_wherever_it_was_typed() -> None:
    for words in (["trial=2,0,1", "layout=1x1,1x2"], ["layout=1x1,1x2", "trial=2,0,1"]):
        jobs = swept(*words)
        assert [job.settings.trial for job in jobs] == [0, 0, 1, 1, 2, 2]
        assert {job.settings.layouts for job in jobs[:2]} == {
            job.settings.layouts for job in jobs[4:]
        }


def order(jobs: list[Job]) -> list[tuple[int, ...]]:
    """The layouts' ranks in the order of the jobs, one tuple a launch."""
    ranks = [job.settings.layouts[0].size for job in jobs]
    return [tuple(ranks[:4]), tuple(ranks[4:])]


def test_the_order_within_a_launch_is_shuffled_by_seed() -> None:
    jobs = swept("trial=0,1", "layout=1x1,1x2,1x3,1x4")
    written = sorted(jobs, key=lambda job: (job.settings.trial, job.settings.layouts[0].size))
    orders = [
        order(
            in_run_order(
                [replace(job, settings=replace(job.settings, seed=seed)) for job in written]
            )
        )
        for seed in range(3)
    ]
    assert all(sorted(ranks) == [1, 2, 3, 4] for launches in orders for ranks in launches)
    assert orders[0] == order(jobs)
    # seeds differ, and so do the launches of one
    assert len({ranks for launches in orders for ranks in launches}) > 3


def test_a_command_line_without_a_list_is_one_job() -> None:
    assert len(swept("layout=1x2")) == 1
    with ConfigComposer() as composer:
        (job,) = composer.jobs(["layout=1x2"], multirun=False)
    assert job.overrides == ("layout=1x2",)


def test_ranges_and_choices_of_hydra_work() -> None:
    assert [job.settings.trial for job in swept("trial=range(0,3)")] == [0, 1, 2]
    assert {job.settings.backend.name for job in swept("backend=choice(gloo,mpi)")} == {
        "gloo",
        "mpi",
    }
    assert {job.settings.backend.name for job in swept("backend=glob(*)")} == {*BACKENDS}


def test_one_bad_job_refuses_all() -> None:
    with pytest.raises(ConfigError, match="layout=0x2"):
        swept("backend=gloo,mpi", "layout=1x2,0x2")


def test_the_digest_tells_apart_the_contents_of_a_traffic_file(tmp_path: Path) -> None:
    """Ranks on two nodes may read the same path in two versions."""
    path = tmp_path / "matrix.txt"
    digests = set()
    for numbers in ("0 8\n4 0\n", "0 4\n8 0\n"):
        path.write_text(numbers)
        (job,) = swept(f"traffic={path}")
        digests.add(job.digest)
    assert len(digests) == 2


def test_words_of_a_text_with_parameters_need_no_quotes_of_hydra() -> None:
    assert single("traffic=moe tokens=8").axes["traffic"] == ("moe tokens=8",)
    two = single("traffic=[ring,moe tokens=8 top_k=2]").axes["traffic"]
    assert two == ("ring", "moe tokens=8 top_k=2")
    assert single("label='a=b'").label == single("label=a=b").label == "a=b"


def test_the_digest_tells_configurations_apart_but_not_folders() -> None:
    digests = [job.digest for job in swept("layout=1x2,1x4", "output=a,b")]
    assert len(set(digests)) == 2


# ---------------------------------------------------------------- spellings


def test_all_benchmarks_are_the_files_of_their_group() -> None:
    everything = sorted(BENCHMARKS)
    for word in ("benchmark=all", "benchmark=[all]"):
        assert sorted(benchmark.name for benchmark in single(word).benchmarks) == everything
    assert [len(job.settings.benchmarks) for job in swept("benchmark=all")] == [len(everything)]


def test_benchmarks_are_those_that_were_named() -> None:
    assert [benchmark.name for benchmark in single("benchmark=all_reduce").benchmarks] == [
        "all_reduce"
    ]
    assert {
        benchmark.name for benchmark in single("benchmark=[p2p_latency,all_reduce]").benchmarks
    } == {
        "p2p_latency",
        "all_reduce",
    }


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (["env.GLOO_SOCKET_IFNAME=eth0"], {"GLOO_SOCKET_IFNAME": "eth0"}),
        (["env.B=x", "env.A=1"], {"A": "1", "B": "x"}),
        (["env={A:1,B:x}"], {"A": "1", "B": "x"}),
        (["env.UCX_TLS='tcp,self'"], {"UCX_TLS": "tcp,self"}),
        (["env.PATTERN=^eth[0-9]$"], {"PATTERN": "^eth[0-9]$"}),
        (["env.EMPTY="], {"EMPTY": ""}),
        (["env.EMPTY=null"], {"EMPTY": ""}),
        (
            ["env.A=1e3", "env.B=007", "env.C=1_000", "env.D=0x10"],
            {"A": "1e3", "B": "007", "C": "1_000", "D": "0x10"},
        ),
        (["env.A=true", "env.B=False", "env.C=off"], {"A": "true", "B": "False", "C": "off"}),
        (["env.FLAGS=-x --y=z"], {"FLAGS": "-x --y=z"}),
        (["+env.A=1"], {"A": "1"}),
    ],
)
def test_environment_variables_arrive_as_they_were_typed(
    words: list[str], env: dict[str, str]
) -> None:
    assert dict(single(*words).env) == env


def test_environment_variables_can_be_swept() -> None:
    jobs = swept("env.A=x,y", "env.B=z")
    assert {job.settings.env for job in jobs} == {(("A", value), ("B", "z")) for value in "xy"}


# Hydra reads each of them as a number or a truth value
TEXTS = ("61e9540", "1.10", "1e3", "true", "False", "007", "1_000", "+7", "nan", "-inf", ".5", "7")


@for_each("text", TEXTS)
def test_a_text_is_kept_as_it_was_typed(text: str) -> None:
    settings = single(f"label={text}", f"output={text}", "launcher=mpirun", f"env.A={text}")
    assert (settings.label, settings.output, settings.env) == (text, text, (("A", text),))
    assert single(f"env={{A:{text}}}").env == (("A", text),)
    assert single(f"++label={text}").label == text
    if not text.startswith(("+", "-", ".")):
        launcher = single("launcher=mpirun", f"launcher.hosts=[{text},b]").launcher
        assert isinstance(launcher, Mpirun) and list(launcher.hosts) == [text, "b"]
    assert single("backend=mpi", f"backend.library={text}").backend.library == text
    [python] = override_texts({"label": text})
    assert single(python).label == text


def test_texts_in_a_sweep_and_its_records_stay_apart() -> None:
    jobs = swept("label=1.10,1.1", "env.A=1e3,1000.0")
    chosen = {(job.settings.label, job.settings.env[0][1]) for job in jobs}
    assert chosen == set(itertools.product(("1.10", "1.1"), ("1e3", "1000.0")))
    for job in jobs:
        again = received(job.text())
        assert again.settings.label == job.settings.label == job.config["label"]
        assert single(*job.overrides).label == job.settings.label, "a resumed run"


def test_null_stays_the_absence_of_a_text_and_quotes_stay_quotes() -> None:
    settings = single("label=null", "interface=null", "output='1.10'")
    assert (settings.label, settings.interface, settings.output) == ("", None, "1.10")
    assert single(*override_texts({"label": "null"})).label == "null"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "label: 1.10",
            "label=1.1 is a float in its file, not a text; quote it there: label: 'TEXT'",
        ),
        ("output: true", "output=True is a bool in its file"),
        (
            "env: {NCCL_ALGO: 1e3}",
            "env.NCCL_ALGO=1000.0 is a float in its file, not a text; quote it there: NCCL_ALGO:",
        ),
    ],
)
def test_a_number_in_a_file_is_refused_where_a_text_is_meant(
    tmp_path: Path, line: str, message: str
) -> None:
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(f"# @package _global_\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        single("experiment=mine", config_dir=str(tmp_path))
    assert message in str(caught.value)


def test_a_swept_environment_variable_is_said_to_be_swept() -> None:
    words = ["env.OMPI_MCA_btl=self,tcp", "env.A=1", "env.B='x,y'", "label=a,b"]
    with ConfigComposer() as composer:
        lines = composer.swept_env(words)
    assert lines == [
        "env.OMPI_MCA_btl=self,tcp has commas: a run for each: commbench -m"
        " env.OMPI_MCA_btl=self,tcp; as text: \"env.OMPI_MCA_btl='self,tcp'\""
    ]


@pytest.mark.parametrize(
    ("word", "texts"),
    [
        ("expect=busbw_gb_per_s>=380", ["busbw_gb_per_s>=380"]),
        ("expect='busbw_gb_per_s>=380'", ["busbw_gb_per_s>=380"]),
        ('expect="median_s<1e-3"', ["median_s<1e-3"]),
        ("expect=all_reduce:median_s<1e-3", ["all_reduce:median_s<1e-3"]),
        ("expect=[median_s<1,max_s<=2]", ["median_s<1", "max_s<=2"]),
        ("expect=['median_s<1','max_s<=2']", ["median_s<1", "max_s<=2"]),
        ("expect=null", []),
    ],
)
def test_expectations_need_no_quotes_within_quotes(word: str, texts: list[str]) -> None:
    assert [expectation.text for expectation in single(word).expect] == texts


def test_yaml_booleans_are_words_where_words_are_meant() -> None:
    chosen = single("cuda_ipc=off", "preflight=off", "bind=none", "sync=none")
    assert (chosen.cuda_ipc, chosen.preflight, chosen.bind, chosen.sync) == (
        "off",
        "off",
        "none",
        "none",
    )
    assert single("cuda_ipc=true").cuda_ipc == "on"


def test_lists_are_axes_inside_one_run() -> None:
    chosen = single(
        "layout=[1x1,1x2]",
        "dtype=[int8,float64]",
        "sizes=[8,1KiB,8]",
        "window=[1,64]",
        "reduction=[sum,max]",
        "in_place=[true,false]",
        "engine=[python,native]",
        "pairs=[[0,1],[1,0]]",
    )
    assert chosen.layouts == (Layout(1, 1), Layout(1, 2))
    assert (chosen.dtypes, chosen.sizes) == (("int8", "float64"), ((8, 1024), (8, 1024)))
    assert chosen.axes["window"] == (1, 64)
    assert chosen.axes["reduction"] == ("sum", "max")
    assert chosen.axes["in_place"] == (True, False)
    assert chosen.axes["engine"] == ("python", "native")
    assert chosen.pairs == ((0, 1), (1, 0))


def test_bounds_belong_to_what_they_allow() -> None:
    assert single("budget.memory_share=1").budget.memory_share == 1


# ---------------------------------------------------------------- a folder of the user's own


def test_a_folder_adds_a_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "benchmark" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(
        "# @package benchmarks.mine\n_target_: commbench.benchmarks.all_reduce.AllReduce\n"
    )
    folder = str(tmp_path)
    assert [
        benchmark.name for benchmark in single("benchmark=mine", config_dir=folder).benchmarks
    ] == ["all_reduce"]
    assert (
        len(single("benchmark=all", config_dir=folder).benchmarks)
        == len(single("benchmark=all").benchmarks) + 1
    )
    assert len(swept("benchmark=mine,all_reduce", config_dir=folder)) == 2
    with pytest.raises(ConfigError, match="benchmark=mine is unknown"):
        single("benchmark=mine")
    monkeypatch.chdir(tmp_path.parent)  # relative folders too
    assert single("benchmark=mine", config_dir=tmp_path.name)


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("spec", "dtype", "sizes"),
    [
        ("decades", "float32", [40, 400, 4000, 40000, 400000, 4000000, 40000000]),
        ("decades", "int8", [10**k for k in range(1, 8)]),
        ("mlbench", "float32", [4 * 10**k for k in range(1, 10)]),
        ("octaves", "float32", [2**k for k in range(3, 25)]),
        (8, "float64", [8]),
        ([8, "1KiB", "4MB", "2.5kB"], "float32", [8, 1024, 4000000, 2500]),
        (["1 KiB", 1024, "1024B"], "int8", [1024]),
    ],
)
def test_sizes_are_exact_bytes(spec: Any, dtype: str, sizes: list[int]) -> None:
    assert sizes_bytes(spec, dtype) == tuple(sizes)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**40), 10**40),
    st.floats(),
    st.text(max_size=12),
    st.from_regex(r"-?[0-9]{1,25}(\.[0-9]{0,25})?( ?[kKMGTE]?i?[bB]?)?", fullmatch=True),
    st.sampled_from(
        [
            "auto",
            "all",
            "on",
            "null",
            "???",
            "${seed}",
            "${nope}",
            "${",
            "1x2",
            "2x",
            "gloo",
            "9" * 5000,
        ]
    ),
)


@given(st.one_of(scalars, st.lists(scalars, max_size=3)), st.sampled_from(sorted(DTYPES)))
@example([], "float32").via("empty list")
def test_sizes_are_positive_multiples_or_refused(spec: Any, name: str) -> None:
    try:
        sizes = sizes_bytes(spec, name)
    except ConfigError as error:
        assert "sizes" in str(error)
        return
    assert sizes and len(set(sizes)) == len(sizes)
    assert all(
        type(size) is int and 0 < size < 2**63 and size % DTYPES[name].itemsize == 0
        for size in sizes
    )


@given(st.integers(1, 10**9), st.sampled_from(["B", "kB", "MB", "GB", "KiB", "MiB", "GiB"]))
def test_sizes_and_their_units_agree(count: int, unit: str) -> None:
    factor = {"B": 1, "k": 1000, "M": 1000**2, "G": 1000**3}[unit[0].replace("K", "k")]
    factor = {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}.get(unit, factor)
    assert (
        sizes_bytes([f"{count}{unit}"], "int8")
        == sizes_bytes(count * factor, "int8")
        == (count * factor,)
    )


def test_the_presets_fit_every_type() -> None:
    for name, dtype in DTYPES.items():
        for preset, counts in PRESETS.items():
            assert sizes_bytes(preset, name) == tuple(dtype.itemsize * count for count in counts)
        assert set(sizes_bytes("octaves", name)) <= set(OCTAVES_BYTES)


# ---------------------------------------------------------------- expectations

NUMBERS = sorted(column.name for column in CASES if column.kind in ("integer", "number"))


@given(
    st.one_of(st.none(), st.sampled_from(["all_reduce", "p2p_latency"])),
    st.sampled_from(NUMBERS),
    st.sampled_from([">=", "<=", ">", "<"]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", " "]),
)
def test_an_expectation_is_read_as_it_was_written(
    benchmark: str | None, column: str, comparison: str, bound: float, space: str
) -> None:
    text = f"{benchmark + ':' if benchmark else ''}{column}{space}{comparison}{space}{bound!r}"
    assert parse_expectation(text) == Expectation(text, benchmark, column, comparison, bound)


@given(st.one_of(scalars, st.text("abc_:<>=. 0123456789eE+-", max_size=20)))
def test_other_expectations_are_refused(text: Any) -> None:
    try:
        read = parse_expectation(text)
    except ConfigError as error:
        assert "expect=" in str(error)
        return
    assert read.column in NUMBERS


@for_each("column", [column.name for column in CASES if column.kind not in ("integer", "number")])
def test_only_numbers_can_be_expected(column: str) -> None:
    with pytest.raises(ConfigError, match=f"{column} is not a numeric column"):
        parse_expectation(f"{column}<1")


# ---------------------------------------------------------------- anything at all


@functools.cache
def defaults() -> dict[str, Any]:
    with ConfigComposer() as composer:
        plain = OmegaConf.to_container(composer.config([]), resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def inner_keys() -> Sequence[tuple[str, ...]]:
    groups = ("backend", "timing", "budget", "benchmarks", "writers")
    return [(key,) for key in KEYS] + [
        (group, name) for group in groups for name in (*defaults()[group], "other")
    ]


def with_value(path: tuple[str, ...], value: Any) -> Any:
    config = {
        key: dict(default) if isinstance(default, dict) else default
        for key, default in defaults().items()
    }
    node = config
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return OmegaConf.create(config)


@given(
    st.data(),
    st.one_of(
        scalars, st.lists(scalars, max_size=3), st.dictionaries(st.text("ab", max_size=2), scalars)
    ),
)
def test_any_value_of_any_key_is_settings_or_one_line(data: st.DataObject, value: Any) -> None:
    try:
        config = with_value(data.draw(st.sampled_from(inner_keys())), value)
    except GrammarParseError:  # "${": Hydra refuses it before there is a configuration
        return
    try:
        checked = from_config(resolved(config))
    except ConfigError as error:
        assert str(error).strip()
        return
    assert isinstance(checked, Settings)
    assert all(checked.sizes) and checked.benchmarks and checked.writers and checked.seed >= 0


def test_the_defaults_are_what_the_documentation_says() -> None:
    chosen = from_config(resolved(OmegaConf.create(defaults())))
    assert (chosen.backend.name, chosen.timing.name, chosen.layouts, chosen.trial) == (
        "gloo",
        "default",
        (),
        0,
    )
    assert {benchmark.name for benchmark in chosen.benchmarks} == {
        "p2p_latency",
        "p2p_bandwidth",
        "all_reduce",
    }
    assert set(defaults()) == set(KEYS)


@pytest.mark.parametrize("words", [["plan=true"], ["--config-dir", "x", "plan=true"]])
def test_a_working_directory_that_is_gone_is_one_line(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert main(["backend=simulated", *words]) == 2
    assert capsys.readouterr().err == (
        "commbench: the working directory is gone: it was removed; change to another one\n"
    )
