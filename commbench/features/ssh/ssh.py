"""Ranks on hosts that this one can log in to: torchrun on each of them, over ssh."""

from __future__ import annotations

import secrets
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.runtime.launchers.host_list import LoginLauncher

# below those that Linux gives to clients (ip_local_port_range)
PORTS = range(20_000, 32_000)


@dataclass(frozen=True)
class Ssh(LoginLauncher):
    """See Launcher. Its ranks are torchrun's. The first host is that of rank 0, and its name is the
    address at which the others meet."""

    name = "ssh"
    precedence = 40
    usage = "On hosts that ssh can log in to:    launcher=ssh launcher.hosts=[a,b]\n"

    @property
    def is_local(self) -> bool:
        return False

    def command(
        self, layout: Layout, worker: Sequence[str], library: str | None, exports: Sequence[str]
    ) -> list[str]:
        hosts = self.chosen_hosts()[: layout.nodes]
        if not hosts:
            raise ConfigError(
                "launcher=ssh needs hosts: launcher.hosts=[a,b], or launcher.hostfile"
            )
        port = secrets.choice(PORTS)
        return [
            *(sys.executable, "-m", "commbench.features.ssh.hosts"),
            *("--agent", self.agent or "ssh", "--hosts", ",".join(hosts)),
            *("--each", str(layout.ranks_per_node), "--port", str(port)),
            *("--exports", ",".join(exports), "--", *worker),
        ]

    def manual_command(self, layout: Layout, worker: Sequence[str]) -> str:
        words = [word for word in worker if not word.startswith("launcher=")]
        return f"commbench {shlex.join(words)} launcher=ssh 'launcher.hosts=[A,B]'"
