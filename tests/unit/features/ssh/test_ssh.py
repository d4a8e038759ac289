"""The program of `launcher=ssh` with a shell in place of the login: what a host gets, and how the
hosts end together."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.features.ssh.hosts import end, log_in, wait_for
from commbench.features.ssh.ssh import Ssh

HOSTS = ("one.invalid", "two.invalid")  # no names of this machine
WAIT_S = 20.0


@pytest.fixture
def agent(tmp_path: Path) -> str:
    """As sshd: the words are read by a shell."""
    script = tmp_path / "agent"
    script.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    script.chmod(0o755)
    return str(script)


def logged_in(
    agent: str, *programs: str, environment: Mapping[str, str] | None = None
) -> dict[str, subprocess.Popen[bytes]]:
    return {
        host: log_in(agent, host, [sys.executable, "-c", program], environment or {})
        for host, program in zip(HOSTS, programs, strict=True)
    }


def test_values_arrive_as_they_are(agent: str, tmp_path: Path) -> None:
    value = "a b;$(touch planted)'\"\n"
    program = "import os, pathlib; pathlib.Path(%r).write_text(os.environ['VALUE'])"
    logins = logged_in(
        agent, program % str(tmp_path / "seen"), "pass", environment={"VALUE": value}
    )
    assert wait_for(logins) == 0
    end(logins.values())
    assert (tmp_path / "seen").read_text() == value


@pytest.mark.parametrize(
    ("ending", "status"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)]
)
def test_the_first_failure_ends_the_other_hosts(
    agent: str, capsys: pytest.CaptureFixture[str], ending: str, status: int
) -> None:
    logins = logged_in(agent, "import time; time.sleep(600)", f"import os, sys; {ending}")
    assert wait_for(logins) == status
    end(logins.values())
    assert f"two.invalid ended with status {status}" in capsys.readouterr().err
    assert all(login.poll() is not None for login in logins.values())


def test_a_host_ends_what_it_runs_when_its_login_is_killed(agent: str, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    program = (
        f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )
    logins = logged_in(agent, program, "pass")
    until_s = time.monotonic() + WAIT_S
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < until_s:
        time.sleep(0.02)
    rank = Path("/proc", pid_file.read_text())
    assert rank.exists()
    stdin = logins[HOSTS[0]].stdin
    assert stdin is not None
    stdin.close()  # as when this end has gone
    while rank.exists() and time.monotonic() < until_s:
        time.sleep(0.02)
    assert not rank.exists()
    end(logins.values())
    assert logins[HOSTS[0]].returncode == 128 + signal.SIGTERM


def test_hosts_are_needed() -> None:
    with pytest.raises(ConfigError, match=r"launcher\.hosts=\[a,b\]"):
        Ssh().command(Layout(2, 1), [], None, [])
    assert Ssh(hosts=("a", "b")).reach == 2
