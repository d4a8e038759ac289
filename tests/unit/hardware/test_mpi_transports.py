"""Transports of MPI libraries: what UCX logs, and what a library that cannot be asked gives."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from commbench.hardware.mpi_transports import transports, used_transports
from commbench.hardware.ucx_log import UcxLog, ucx_transports, unknown_variables

# UCX 1.20, with a device of InfiniBand put in
LOG = """
[1.5] [vm:1:0] ucp_worker.c:1912 UCX  INFO  ucp_context_0 self cfg#0 tag(self/memory cma/memory)
[1.6] [vm:1:0] ucp_worker.c:1912 UCX  INFO  ucp_context_0 intra-node cfg#1 tag(sysv/memory cma/memory)  rma(x/y)
[1.7] [vm:1:0] ucp_worker.c:1912 UCX  INFO  ucp_context_0 inter-node cfg#2 tag(rc_mlx5/mlx5_0:1 rc_mlx5/mlx5_1:1)
[1.8] [vm:1:0] parser.c:2355 UCX  WARN  unused environment variables: UCX_A (maybe: UCX_TLS?); UCX_B
"""  # noqa: E501
NODES = ((0, 1), (2, 3))
BOTH = {"within_nodes": "ob1/sm", "between_nodes": "ob1/tcp"}


def test_ucx_names_the_transports_of_each_kind_of_connection() -> None:
    assert ucx_transports(LOG) == {
        "within_nodes": "ucx/sysv+cma",
        "between_nodes": "ucx/rc_mlx5:mlx5_0:1+rc_mlx5:mlx5_1:1",
    }
    assert ucx_transports("") == {}
    assert {"UCX_A", "UCX_B"} <= unknown_variables(LOG)


def test_mpich_takes_ucx_between_nodes_only() -> None:
    version = "MPICH Version:      5.0.2\nMPICH Device:      ch4:ucx\n"
    library = ctypes.CDLL(None)
    assert transports(library, version, "") == {"between_nodes": "ch4:ucx"}
    assert transports(library, version, LOG) == {
        "between_nodes": "ucx/rc_mlx5:mlx5_0:1+rc_mlx5:mlx5_1:1"
    }


def test_another_library_tells_nothing() -> None:
    assert transports(ctypes.CDLL(None), "Some MPI 1.0", "") == {}


def test_a_world_uses_the_transports_of_its_shape() -> None:
    assert used_transports(BOTH, ((0, 1),)) == ("ob1/sm",)
    assert used_transports(BOTH, ((0,), (1,))) == ("ob1/tcp",)
    assert used_transports(BOTH, NODES) == ("ob1/sm", "ob1/tcp")
    assert used_transports({"between_nodes": "ch4:ofi"}, NODES) == ()


def test_the_log_of_the_user_is_left_alone() -> None:
    environ = {"UCX_LOG_LEVEL": "debug"}
    log = UcxLog()
    with log.begun(environ):
        assert environ == {"UCX_LOG_LEVEL": "debug"}
    log.end()
    assert (log.text, environ) == ("", {"UCX_LOG_LEVEL": "debug"})


def test_the_variables_of_the_log_are_gone_afterwards() -> None:
    environ: dict[str, str] = {}
    log = UcxLog()
    with log.begun(environ):
        assert environ["UCX_LOG_LEVEL"] == "info"
        Path(environ["UCX_LOG_FILE"]).write_text(LOG)
    log.end()
    assert (log.text, environ) == (LOG, {})


def test_the_variables_of_the_log_are_gone_where_mpi_does_not_start() -> None:
    environ: dict[str, str] = {}
    with pytest.raises(RuntimeError), UcxLog().begun(environ):
        raise RuntimeError("MPI_Init_thread returned 1")
    assert environ == {}
