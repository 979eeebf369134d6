"""What follows from what was found on the hosts: a pure function from facts to problems, each with what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Examined", "Problem", "diagnose"]

# Chosen: certificates and the order of log lines bear a second; beyond a minute certificates made on one host may not
# yet be valid on another.
CLOCK_WARN_S, CLOCK_ERROR_S = 1.0, 60.0
LEAST_FREE = 1 << 30  # bytes of the temporary folder: compiled programs and sockets lie there
LEAST_FILES = 1024  # a coordinator has several for each rank


@dataclass(slots=True)
class Examined:
    """What is known of one host: `facts` as exam.py prints them, its clock's lead over ours in seconds, the seconds
    to it and back; or why nothing is known."""

    host: str
    facts: dict[str, Any] = field(default_factory=dict)
    clock: float | None = None
    way: float | None = None
    failure: str | None = None

    def fact(self, name: str) -> Any:
        """A fact; None if it could not be found."""
        value = self.facts.get(name)
        return None if isinstance(value, dict) and set(value) == {"error"} else value

    def error(self, name: str) -> str | None:
        """Why a fact could not be found."""
        value = self.facts.get(name)
        return str(value["error"]) if isinstance(value, dict) and set(value) == {"error"} else None


@dataclass(frozen=True, slots=True)
class Problem:
    """An ``error`` keeps jobs from running, a ``warning`` may."""

    host: str
    severity: Literal["error", "warning"]
    what: str
    todo: str


def diagnose(hosts: Sequence[Examined]) -> list[Problem]:
    """All problems, errors first."""
    found = [problem for check in _CHECKS for problem in check(hosts)]
    return sorted(found, key=lambda problem: problem.severity != "error")


def _unreached(hosts: Sequence[Examined]) -> Iterator[Problem]:
    for host in hosts:
        if host.failure is not None:
            todo = (
                f"try `ssh {host.host} true`: it must work without a password, and find the interpreter (-o python=...)"
            )
            yield Problem(host.host, "error", f"it cannot be examined: {host.failure}", todo)


def _versions(hosts: Sequence[Examined]) -> Iterator[Problem]:
    """All hosts must have what most of them have."""
    looked = [h for h in hosts if h.facts]
    for name in ("meshrt", "jaxlib"):
        yield from _odd(looked, name, [(host.fact("packages") or {}).get(name) for host in looked])
    yield from _odd(looked, "Python", [str(host.fact("python")).rpartition(".")[0] for host in looked])


def _odd(hosts: Sequence[Examined], name: str, versions: Sequence[str | None]) -> Iterator[Problem]:
    common = Counter(v for v in versions if v).most_common(1)
    for host, own in zip(hosts, versions):
        if own is None:
            yield Problem(host.host, "error", f"{name} is not installed", f"pip install {name} there")
        elif own != common[0][0]:
            more = f"{name}=={common[0][0]}" if name != "Python" else f"Python {common[0][0]}"
            yield Problem(host.host, "error", f"{name} is {own}, elsewhere {common[0][0]}", f"install {more} there")


def _clocks(hosts: Sequence[Examined]) -> Iterator[Problem]:
    for host in hosts:
        if host.clock is not None and abs(host.clock) - (host.way or 0) > CLOCK_WARN_S:
            severity: Literal["error", "warning"] = "error" if abs(host.clock) > CLOCK_ERROR_S else "warning"
            where = "ahead" if host.clock > 0 else "behind"
            todo = "let chrony or systemd-timesyncd set it"
            yield Problem(host.host, severity, f"its clock is {abs(host.clock):.1f} s {where} of this machine's", todo)


def _devices(hosts: Sequence[Examined]) -> Iterator[Problem]:
    looked = [h for h in hosts if h.facts]
    for host in looked:
        if why := host.error("devices"):
            yield Problem(host.host, "error", f"its devices cannot be used: {why}", "run `python -c 'import meshrt; "
                          "meshrt.devices()'` there")  # fmt: skip
        elif host.fact("accelerators") and set(host.fact("devices") or {}) == {"cpu"}:
            names = ", ".join(host.fact("accelerators"))
            todo = "install the plugin of its platform, as in pip install 'meshrt[cuda12]'"
            yield Problem(host.host, "warning", f"it has {names}, and only its CPU is used", todo)
    kinds = {h.host: tuple(sorted((h.fact("devices") or {}).items())) for h in looked if h.fact("devices")}
    if len(set(kinds.values())) > 1:
        common = Counter(kinds.values()).most_common(1)[0][0]
        for name, own in kinds.items():
            if own != common:
                what = f"its devices are {_counted(own)}, elsewhere {_counted(common)}"
                yield Problem(name, "warning", what, "a mesh needs the same on each host; leave the host out")


def _counted(kinds: tuple[tuple[str, int], ...]) -> str:
    return " and ".join(f"{n} {kind}" for kind, n in kinds) or "none"


def _ways(hosts: Sequence[Examined]) -> Iterator[Problem]:
    for host in hosts:
        if why := host.error("port"):
            todo = "a firewall or a sandbox keeps processes from each other there"
            yield Problem(host.host, "error", f"nothing can listen on its loopback: {why}", todo)
        if why := host.error("reach"):
            todo = "open the firewall to this machine, or give --listen HOST:PORT with a port that is open"
            yield Problem(host.host, "error", f"it does not reach this machine: {why}", todo)
    if len(hosts) > 1:
        for host in hosts:
            own = host.fact("own_name")
            if isinstance(own, str) and own.startswith("127.") and not host.host.startswith(("127.", "localhost")):
                todo = "name hosts by addresses or names that others resolve; this matters with --no-agents"
                yield Problem(host.host, "warning", f"its own name means {own} to itself", todo)


def _rooms(hosts: Sequence[Examined]) -> Iterator[Problem]:
    for host in hosts:
        files, temporary = host.fact("open_files"), host.fact("temporary")
        if files is not None and 0 <= files < LEAST_FILES:
            yield Problem(host.host, "warning", f"a process may open {files} files only", "ulimit -n 65536")
        if temporary is not None and temporary["free"] < LEAST_FREE:
            free = f"{temporary['free'] / 2**20:.0f} MiB"
            todo = "make room, or let TMPDIR name another folder"
            yield Problem(host.host, "warning", f"{temporary['folder']} has {free} free", todo)


def _environments(hosts: Sequence[Examined]) -> Iterator[Problem]:
    for host in hosts:
        if proxies := host.fact("proxies"):
            todo = "let no_proxy name the hosts of the job"
            yield Problem(host.host, "warning", f"connections may go through a proxy ({', '.join(proxies)})", todo)
    looked = [h for h in hosts if h.fact("environment") is not None]
    for name in sorted({n for h in looked for n in h.fact("environment")}):
        values = [h.fact("environment").get(name) for h in looked]
        common = Counter(values).most_common(1)[0][0]
        for host, own in zip(looked, values):
            if own != common:
                what = f"{name} is {_set(own)}, elsewhere {_set(common)}"
                yield Problem(host.host, "warning", what, f"set it alike, as by --env {name}=...")


def _set(value: str | None) -> str:
    return "not set" if value is None else repr(value if len(value) <= 40 else f"{value[:37]}...")


_CHECKS = (_unreached, _versions, _clocks, _devices, _ways, _rooms, _environments)
