"""Whether a job of Slurm uses this host or waits for it: a measurement would disturb the first and
delay the second."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from commbench.core.terminal import first_line

QUEUE_ANSWER_S = 20.0
# why a pending job waits for nodes; others are held, or wait for a time or another job
WAITS_FOR_NODES = ("Resources", "Priority", "None")
ON_NODES = "RUNNING,CONFIGURING,COMPLETING,SUSPENDED,STAGE_OUT"
OWN_JOB = "SLURM_JOB_ID"
# what a client says that was installed and has no slurm.conf, and no server of one
UNCONFIGURED = "establish a configuration source"


class QueueUnknown(Exception):
    """Slurm does not answer; the text says why."""


class NoCluster(QueueUnknown):
    """Slurm's programs are here, but belong to no cluster."""


@dataclass(frozen=True)
class SlurmNode:
    """The node of Slurm that is this host, and its partitions."""

    name: str
    partitions: tuple[str, ...]


def jobs_in_the_way(environ: Mapping[str, str] = os.environ) -> str | None:
    """What keeps a measurement from this host, as text; None where nothing does, where this host
    is no node, and where there is no Slurm.

    The job of this process does not count. Inside of it the node is allocated, so that no pending
    job counts either.
    """
    if shutil.which("squeue") is None:
        return None
    try:
        node = slurm_node(socket.gethostname())
        if node is None:
            return None
        own = environ.get(OWN_JOB)
        on_node = _queue_lines("--nodelist", node.name, "--states", ON_NODES, "--format", "%A")
        others = [job for job in on_node if job != own]
        if others:
            return f"job {', '.join(others)} of Slurm runs on {node.name}"
        if own is not None:
            return None
        partitions = ",".join(node.partitions)
        pending = _queue_lines(
            "--partition", partitions, "--states", "PENDING", "--format", "%A|%r"
        )
    except NoCluster:
        return None
    except QueueUnknown as problem:
        return str(problem)
    waiting = [line.partition("|")[0] for line in pending if line.endswith(WAITS_FOR_NODES)]
    if waiting:
        return f"job {', '.join(waiting)} of Slurm waits for a node of partition {partitions}"
    return None


def slurm_node(hostname: str) -> SlurmNode | None:
    """The node whose host has this name, with or without its domain. Raises QueueUnknown."""
    names = {hostname, hostname.partition(".")[0]}
    lines = _answered("sinfo", "--noheader", "--Node", "--format", "%N|%n|%R")
    rows = [line.split("|") for line in lines if line.count("|") == 2]
    own = [(node, partition) for node, host, partition in rows if names & {node, host}]
    if not own:
        return None
    return SlurmNode(own[0][0], tuple(dict.fromkeys(partition for _, partition in own)))


def _queue_lines(*words: str) -> list[str]:
    return _answered("squeue", "--noheader", *words)


def _answered(*words: str) -> list[str]:
    """The lines that a client of Slurm prints. Raises QueueUnknown, NoCluster."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=QUEUE_ANSWER_S, check=True
        )
    except subprocess.TimeoutExpired as error:
        raise QueueUnknown(f"{words[0]} has not answered for {QUEUE_ANSWER_S:g} s") from error
    except subprocess.CalledProcessError as error:
        if UNCONFIGURED in error.stderr:
            raise NoCluster(words[0]) from error
        reason = first_line(error.stderr) if error.stderr.strip() else f"status {error.returncode}"
        raise QueueUnknown(f"{words[0]} failed: {reason}") from error
    except OSError as error:
        raise QueueUnknown(f"{words[0]} can't be run: {error.strerror}") from error
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
