"""What the user asked for, from the command line and from a file of configs/launch, in one checked value."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from meshrt.errors import ConfigError, did_you_mean
from meshrt.launch import binding, profiles
from meshrt.launch.environment import OWN
from meshrt.launch.membership.patience import LEAST_SILENT_S, SILENT_S, STALL_S
from meshrt.launch.model import Policy

_SIZE_LIMIT = 1 << 20  # bytes of a configuration file
_BACKOFF_S = 1.0  # before the second restart of several hosts: what ails one is seldom over at once
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of ``meshrt launch``. Times in seconds; None means no limit or the default. `nodes` are the fewest and
    the most hosts of a job of several ones, and `nproc` then counts the processes of each.

    Where an engine places the processes (placing/), `hosts` or `hostfile` name the hosts, `options` are its own, and
    `listen` is where its agents find this launcher; without `agents` it starts the ranks themselves."""

    nproc: int = 1
    nodes: tuple[int, int] | None = None  # also given as 2, "2" or "1:4"
    devices_per_process: int | None = None
    max_restarts: int = 0
    elastic: bool = False
    timeout: float | None = None
    grace: float = 5.0
    checkpoint_timeout: float = 300.0
    start_timeout: float = 300.0
    heartbeat_timeout: float = SILENT_S
    stall_timeout: float = STALL_S
    log_dir: str | None = None
    verbose: bool = False
    engine: str = "local"
    hosts: str | None = None
    hostfile: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    listen: str | None = None
    bind: str = "none"
    metrics_port: int | str | None = None  # on loopback, or HOST:PORT
    view: bool = False
    profile: str | None = None  # ranks: "0", "0,4-7" or "all"
    profile_steps: str = "5"  # so many, or the first and the last as in "100:105"
    profile_dir: str = "profiles"
    agents: bool = True
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_int("nproc", self.nproc, 1, 65536)
        if self.nodes is not None:
            object.__setattr__(self, "nodes", _read_nodes(self.nodes))
        if self.devices_per_process is not None:
            _check_int("devices_per_process", self.devices_per_process, 1, 65536)
        _check_int("max_restarts", self.max_restarts, 0, 10**6)
        if self.timeout is not None:
            _check_seconds("timeout", self.timeout)
        _check_seconds("grace", self.grace)
        for name in ("checkpoint_timeout", "start_timeout", "heartbeat_timeout", "stall_timeout"):
            _check_seconds(name, getattr(self, name))
        if self.heartbeat_timeout < LEAST_SILENT_S:
            raise ConfigError(
                f"heartbeat_timeout = {self.heartbeat_timeout!r}: expected at least {LEAST_SILENT_S:g} s, as ranks "
                "say once a second that they live"
            )
        if self.log_dir is not None and not isinstance(self.log_dir, str):
            raise ConfigError(f"log_dir = {self.log_dir!r}: expected the path of a directory, as text")
        for name in ("verbose", "agents", "view", "elastic"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} = {getattr(self, name)!r}: expected true or false")
        if not isinstance(self.engine, str):
            raise ConfigError(f"engine = {self.engine!r}: expected the name of an engine, as text")
        for name, example in (("hosts", "a,b"), ("hostfile", "hosts.txt"), ("listen", "10.0.0.1:8476")):
            if not isinstance(getattr(self, name), str | None):
                raise ConfigError(f'{name} = {getattr(self, name)!r}: expected text, as in {name} = "{example}"')
        if self.hosts is not None and self.hostfile is not None:
            raise ConfigError("hosts and hostfile: one of them says where the processes run; leave the other one out")
        if self.bind not in binding.WAYS:
            raise ConfigError(f"bind = {self.bind!r}: expected one of: {', '.join(binding.WAYS)}")
        if self.metrics_port is not None:
            _check_place("metrics_port", self.metrics_port)
        if not isinstance(self.profile_dir, str) or not self.profile_dir:
            raise ConfigError(f"profile_dir = {self.profile_dir!r}: expected the path of a directory, as text")
        profiles.traced(self.profile, self.nproc * (1 if self.nodes is None else self.nodes[1]))
        profiles.steps(self.profile_steps)
        if not isinstance(self.options, Mapping):
            raise ConfigError(f"options = {self.options!r}: expected a table of the engine's options")
        if not isinstance(self.env, Mapping):
            raise ConfigError(f"env = {self.env!r}: expected a table of names and texts")
        for name, value in self.env.items():
            check_variable(name, value)

    def policy(self) -> Policy:
        """What of this the state machine must know."""
        rest = 0.0 if self.nodes is None else _BACKOFF_S
        return Policy(
            self.nproc, self.max_restarts, self.nodes, self.elastic, backoff_s=rest, timeout_s=self.timeout,
            gather_s=self.start_timeout, form_s=self.start_timeout, grace_s=self.grace,
            checkpoint_s=self.checkpoint_timeout,
        )  # fmt: skip


def read(path: Path) -> Settings:
    """The settings of a ``[launch]`` table, with an optional ``[launch.env]``. ConfigError names what is wrong."""
    import tomllib  # start-up time: most jobs have no file

    try:
        if path.stat().st_size > _SIZE_LIMIT:
            raise ConfigError(f"{path}: a launch configuration is at most {_SIZE_LIMIT} bytes long")
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else e
        raise ConfigError(f"{path}: cannot be read as TOML: {reason}") from None
    unknown = sorted(set(content) - {"launch"})
    table = content.get("launch")
    if unknown or not isinstance(table, dict):
        found = f"found {', '.join(unknown)}" if unknown else "found none"
        raise ConfigError(f"{path}: expected one table, [launch]; {found}")
    known = [f.name for f in fields(Settings)]
    if unknown := sorted(set(table) - set(known)):
        near = did_you_mean(unknown[0], known)
        raise ConfigError(f"{path}: unknown key {', '.join(unknown)} in [launch]; known are {', '.join(known)}{near}")
    try:
        return Settings(**table)
    except ConfigError as e:
        raise ConfigError(f"{path}: {e}") from None


def find(name: str, folders: list[Path]) -> Path:
    """The file a user means by `name`: a path, or the stem of a file in one of `folders`."""
    if Path(name).exists():
        return Path(name)
    for folder in folders:
        if (candidate := folder / f"{name}.toml").is_file() and candidate.parent == folder:
            return candidate
    present = sorted({p.stem for folder in folders for p in folder.glob("*.toml")})
    raise ConfigError(f"no launch configuration {name!r}; give a path, or one of: {', '.join(present) or '(none)'}")


def folders() -> list[Path]:
    """Where configurations with a name of their own lie: in a checkout, or in the installed package."""
    package = Path(__file__).parent.parent
    return [package.parent / "configs" / "launch", package / "_configs" / "launch"]


def override(settings: Settings, **given: Any) -> Settings:
    """`settings` with what the command line gave; its variables and options join those of the file."""
    tables: dict[str, Any] = {name: {**getattr(settings, name), **given.pop(name, {})} for name in ("env", "options")}
    return replace(settings, **tables, **given)


def check_variable(name: object, value: object) -> None:
    """ConfigError unless `name` and `value` can be an environment variable."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"env: {name!r} is not the name of an environment variable")
    if name in OWN:
        raise ConfigError(f"env: {name} is set by the launcher, for each process; leave it out")
    if not isinstance(value, str) or "\0" in value:
        raise ConfigError(f'env: {name} = {value!r}: expected text, as in {name} = "{value}"')


def _read_nodes(value: object) -> tuple[int, int]:
    """One number of hosts, or the fewest and the most: 2, "2", "1:4"."""
    if isinstance(value, tuple) and len(value) == 2:
        ends: list[object] = list(value)
    else:
        found = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", str(value))
        if found is None or isinstance(value, bool | float):
            raise ConfigError(f"nodes = {value!r}: expected a number of hosts, or the fewest and the most as in 2:4")
        ends = [int(found[1]), int(found[2] or found[1])]
    for end in ends:
        _check_int("nodes", end, 1, 65536)
    least, most = ends
    assert isinstance(least, int) and isinstance(most, int)  # as checked
    if least > most:
        raise ConfigError(f"nodes = {least}:{most}: the fewest hosts are more than the most")
    return least, most


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise ConfigError(f"{name} = {value!r}: expected a whole number from {low} to {high}")


def _check_place(name: str, value: object) -> None:
    """A port, or HOST:PORT."""
    port = str(value).rpartition(":")[2]
    if isinstance(value, bool | float) or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{name} = {value!r}: expected a port, or HOST:PORT, as in 9090")


def _check_seconds(name: str, value: object) -> None:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not math.isfinite(number) or number <= 0:
        raise ConfigError(f"{name} = {value!r}: expected a time in seconds, more than 0")
