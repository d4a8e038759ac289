"""Launchers that log in to hosts, and lists of hosts as schedulers and MPI libraries write them.

Read are: a host a line, with or without slots (Open MPI, MPICH, SGE), a line for each slot (PBS,
LSF, srun hostname), several hosts in a line, Slurm's n[03-05,9],m1, exec_host of PBS
(n1/0*4+n2/0*4), and LSB_MCPU_HOSTS of LSF (n1 4 n2 4). How many ranks a host gets is the layout's
matter, so slots are not kept.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from commbench.core.errors import ConfigError
from commbench.core.protocols import Launcher
from commbench.runtime.rendezvous import HOST_NAME

SLOTS = re.compile(r"(?:\w+=)?\d+")  # 4, ppn=4
RANGES = re.compile(r"\[(\d[\d,-]*)\]")
MAX_HOSTS = 2**17


@dataclass(frozen=True)
class LoginLauncher(Launcher):
    """See Launcher. `hosts` are names or addresses, `hostfile` has a list of them; `agent` is what
    logs in, ssh by default."""

    hosts: tuple[str, ...] = ()
    hostfile: str | None = None
    agent: str | None = None

    def __post_init__(self) -> None:
        self.chosen_hosts()

    @property
    def reach(self) -> int:
        return len(self.chosen_hosts()) or 1

    def chosen_hosts(self) -> tuple[str, ...]:
        """Raises ConfigError."""
        return chosen_hosts(self.hosts, self.hostfile)


def chosen_hosts(words: Sequence[str], hostfile: str | None) -> tuple[str, ...]:
    """Those of launcher.hosts or launcher.hostfile. Raises ConfigError."""
    if hostfile is None:
        return _named("launcher.hosts", partial(hosts_of_words, words))
    if words:
        raise ConfigError("launcher.hosts and launcher.hostfile say the same; give one of them")
    where = f"launcher.hostfile={hostfile}"
    if not Path(hostfile).is_file():
        raise ConfigError(f"{where} is not a file; give a file with one host per line")
    text = Path(hostfile).read_text("utf-8-sig", errors="replace")  # editors of Windows add a BOM
    hosts = _named(where, partial(hosts_of_file, text))
    if not hosts:
        raise ConfigError(f"{where} names no host; give a file with one host per line")
    return hosts


def _named(where: str, read: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
    try:
        return read()
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def hosts_of_file(text: str) -> tuple[str, ...]:
    """The hosts of a list in a file, each once, in their order. Raises ConfigError."""
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    return tuple(dict.fromkeys(host for words in lines if words for host in _of_line(words)))


def hosts_of_words(words: Iterable[str]) -> tuple[str, ...]:
    """The hosts of names, addresses and Slurm's lists. Raises ConfigError."""
    return tuple(dict.fromkeys(host for word in words for host in hosts_of_word(word)))


def hosts_of_word(word: str) -> Iterator[str]:
    """The same of one word, expanded no further than is asked for: a list may name 100,000."""
    for host in _expanded(word):
        if not HOST_NAME.fullmatch(host):
            _refuse_address(host)
            raise ConfigError(f"{host!r} is not a host; write names or addresses, without slots")
        yield host


def _of_line(words: list[str]) -> Iterator[str]:
    line = " ".join(words)
    if words[0] == "rank" and "=" in line:
        raise ConfigError(f"{line!r} is of a rankfile; give a list of hosts")
    if "+" in line:  # PBS: n1/0*4+n2/0*4, n1:ppn=4+n2:ppn=4, (n1:ncpus=4:mem=9kb)+(n2:ncpus=4)
        yield from (_host(re.split("[:/]", part.strip("( )"))[0]) for part in line.split("+"))
    elif len(words) > 2 and all(count.isdigit() for count in words[1::2]):  # LSF
        yield from map(_host, words[::2])
    elif len(words) > 1 and "=" not in line and not words[1].isdigit():
        yield from (_host(host) for word in words for host in _expanded(word))
    else:
        yield from map(_host, _expanded(words[0]))


def _host(word: str) -> str:
    """A host without its slots."""
    name = re.sub(r"/\d+(\*\d+)?$", "", word)  # exec_host of PBS, of one host
    host, colon, slots = name.partition(":")
    if name.count(":") > 1 or name[:1] == "[":
        _refuse_address(name)
    if not HOST_NAME.fullmatch(host) or (colon and not SLOTS.fullmatch(slots)):
        raise ConfigError(
            f"{word!r} is not a host; write names or addresses, a line each, with or without slots"
        )
    return host


def _refuse_address(text: str) -> None:
    """Neither `--host` of Open MPI nor `-hosts` of MPICH takes a colon for anything but slots."""
    address = text.strip("[").partition("]")[0]
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return
    raise ConfigError(
        f"{address} is an IPv6 address, which lists of hosts can't have; give the name that DNS or"
        " /etc/hosts has for it"
    )


def _expanded(word: str) -> Iterator[str]:
    """n03 n04 n05 n9 m1 of Slurm's n[03-05,9],m1; any other word as it is."""
    if word.count("[") != word.count("]"):
        yield word  # which is no host
        return
    for part in re.findall(r"(?:\[[^][]*\]|[^,\[])+", word) or [word]:
        ranges = None if part[:1] == "[" else RANGES.search(part)
        if ranges is None:
            yield part
            continue
        for number in _numbers_of_range(ranges[1], word):
            yield from _expanded(f"{part[: ranges.start()]}{number}{part[ranges.end() :]}")


def _numbers_of_range(text: str, word: str) -> Iterator[str]:
    """03 04 05 9 of 03-05,9; they keep their zeros."""
    for span in text.split(","):
        first, _, last = span.partition("-")
        last = last or first
        if not (first.isdigit() and last.isdigit() and 0 <= int(last) - int(first) < MAX_HOSTS):
            raise ConfigError(f"{word!r} is not a host, nor a list such as n[03-05,9]")
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{len(first)}}"
