"""Lists of hosts as people and schedulers write them: ``a,b:2``, ``node[01-04,7]``, hostfiles."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from meshrt.errors import ConfigError

__all__ = ["Host", "expand_hosts", "parse_hosts", "read_hostfile"]

_HOST_LIMIT = 1 << 20  # of a host list's expansion
_FILE_LIMIT = 1 << 24  # bytes
_NAME = re.compile(r"(?:[A-Za-z0-9_.+-]+@)?(?:[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.%]+\])")
_SLOTS = re.compile(r"(?:slots|max_slots|max-slots)=(\d+)")


@dataclass(frozen=True, slots=True)
class Host:
    """A host by name or address, and how many processes the list gives it; None where it does not say."""

    name: str
    slots: int | None = None


def parse_hosts(text: str) -> tuple[Host, ...]:
    """``a,user@b:2,n[1-3]`` → five hosts.

    Raises:
      ConfigError: the list names no host, one twice, or something that is none.

    >>> [(host.name, host.slots) for host in parse_hosts("a,user@b:2,n[1-2]")]
    [('a', None), ('user@b', 2), ('n1', None), ('n2', None)]
    """
    if text.count("[") != text.count("]"):
        raise ConfigError(f"{text[:80]!r} is not a list of hosts: a bracket has no other end")
    hosts = []
    for item in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        name, slots = _parted(item.strip())
        hosts += [_host(one, slots) for one in ([name] if name.startswith("[") else expand_hosts(name))]
    return _checked(tuple(hosts), f"the host list {text[:80]!r}")


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """A file with a host in each line, ``name``, ``name slots=2`` or ``name:2``; ``#`` begins a comment.

    Raises:
      ConfigError: the file cannot be read or is too long, a line is no host, or a host stands in it twice.
    """
    try:
        if path.stat().st_size > _FILE_LIMIT:
            raise ConfigError(f"{path}: a hostfile is at most {_FILE_LIMIT} bytes long")
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else e
        raise ConfigError(f"{path}: the hostfile cannot be read: {reason}") from None
    hosts: list[Host] = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        found = [_SLOTS.fullmatch(word) for word in words[1:]]
        if not all(found):
            raise ConfigError(f"{path}, line {number}: {line.strip()[:80]!r} is not a host, as in `node1 slots=2`")
        try:
            named = parse_hosts(words[0])
        except ConfigError as e:
            raise ConfigError(f"{path}, line {number}: {e}") from None
        slots = next((int(m[1]) for m in found if m is not None and m[0].startswith("slots")), None)
        hosts += [Host(host.name, host.slots if slots is None else slots) for host in named]
    return _checked(tuple(hosts), str(path))


def _parted(item: str) -> tuple[str, int | None]:
    name, colon, slots = item.rpartition(":")
    if not colon or item.endswith("]"):
        return item, None
    if not slots.isascii() or not slots.isdigit():
        raise ConfigError(f"{item[:80]!r} is not a host: behind the colon stands how many processes it gets, as in b:2")
    return name, int(slots)


def _host(name: str, slots: int | None) -> Host:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name[:80]!r} is not the name of a host")
    return Host(name, slots)


def _checked(hosts: tuple[Host, ...], where: str) -> tuple[Host, ...]:
    if not hosts:
        raise ConfigError(f"{where} names no host")
    names = [host.name for host in hosts]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{where} names {', '.join(twice[:5])} more than once; {twice[0]}:2 gives it two processes")
    if empty := [host.name for host in hosts if host.slots == 0]:
        raise ConfigError(f"{where} gives {empty[0]} no process; leave it out")
    return hosts


def expand_hosts(text: str) -> list[str]:
    """The hosts of a list as Slurm writes it.

    Raises:
      ConfigError: it is no such list, or one of more than 2**20 hosts.

    >>> expand_hosts("n[0,2-3],a[01-02]b")
    ['n0', 'n2', 'n3', 'a01b', 'a02b']
    """
    hosts: list[str] = []
    for item in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        expanded = [""]
        for plain, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", item):
            parts = [plain] if plain else [n for r in ranges.split(",") for n in _range(r)]
            if len(expanded) * len(parts) > _HOST_LIMIT:
                raise ConfigError(f"the host list {text[:80]!r} has more than {_HOST_LIMIT} hosts")
            expanded = [head + part for head in expanded for part in parts]
        hosts += expanded
    if not hosts or "" in hosts or text.count("[") != text.count("]"):
        raise ConfigError(f"{text[:80]!r} is not a list of hosts, as in node[01-04,7]")
    return hosts


def _range(text: str) -> list[str]:
    first, dash, last = text.partition("-")
    last = last if dash else first
    if not (first.isdigit() and last.isdigit() and int(first) <= int(last)) or int(last) - int(first) > _HOST_LIMIT:
        raise ConfigError(f"[{text}] is not a range of hosts, as in [01-04]")
    return [f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1)]
