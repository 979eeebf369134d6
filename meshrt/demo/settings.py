"""What `meshrt demo` is asked to do: defaults, a TOML file of configs/train, the command line, in this order."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import meshrt
from meshrt.demo.model import ModelConfig
from meshrt.errors import ConfigError, counted

__all__ = ["DemoSettings", "find", "override", "read"]

_SIZE_LIMIT = 1 << 20  # bytes of a configuration file
_CHOICES = {"partitioner": ("meshrt", "xla"), "dtype": ("float32", "bfloat16")}
_MODEL_KEYS = tuple(f.name for f in fields(ModelConfig) if f.name not in ("dtype", "unrolled"))


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Options of `meshrt demo`. `mesh` maps axes to sizes and must have the axes "data" and "model"."""

    devices: int | None = None
    mesh: Mapping[str, int] = field(default_factory=lambda: {"data": 4, "model": 2})
    steps: int = 100
    seed: int = 0
    dtype: str = "float32"
    partitioner: str = "meshrt"
    model: ModelConfig = field(default_factory=ModelConfig)

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("seed", 0)):
            _check_int(name, getattr(self, name), least)
        if self.devices is not None:
            _check_int("devices", self.devices, 1)
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} = {getattr(self, name)!r}: expected one of {', '.join(choices)}")
        self._check_mesh()
        self._check_model()

    def _check_mesh(self) -> None:
        if not isinstance(self.mesh, Mapping) or set(self.mesh) != {"data", "model"}:
            given = ", ".join(self.mesh) if isinstance(self.mesh, Mapping) else repr(self.mesh)
            raise ConfigError(
                f"mesh: the demo's annotations use the axes data and model, got {given}; try data=4,model=2"
            )
        for name, size in self.mesh.items():
            _check_int(f"mesh axis {name}", size, 1)
        if self.devices is not None and self.devices < self.mesh_size:
            raise ConfigError(
                f"mesh {_mesh_text(self.mesh)} needs {counted(self.mesh_size, 'device')}, but devices = "
                f"{self.devices}; give --devices {self.mesh_size} or a smaller --mesh"
            )

    def _check_model(self) -> None:
        m, data, model = self.model, self.mesh["data"], self.mesh["model"]
        for name in _MODEL_KEYS:
            value = getattr(m, name)
            if name in ("learning_rate", "weight_decay", "clip"):
                if type(value) not in (int, float) or not 0 <= value < float("inf"):
                    raise ConfigError(f"model.{name} = {value!r}: expected a number that is not negative")
            else:
                _check_int(f"model.{name}", value, 1)
        if m.vocabulary < 256:
            raise ConfigError(f"model.vocabulary = {m.vocabulary}: the text is bytes, so at least 256")
        if m.width % m.heads:
            raise ConfigError(f"model.width = {m.width} does not divide into model.heads = {m.heads}")
        needs = {"batch": data, "width": data, "heads": model, "hidden": model, "vocabulary": model}
        for name, parts in needs.items():
            if getattr(m, name) % parts:
                axis = "data" if name in ("batch", "width") else "model"
                raise ConfigError(
                    f"model.{name} = {getattr(m, name)} does not divide over the mesh axis {axis} = {parts}; change "
                    f"one of them"
                )

    @property
    def mesh_size(self) -> int:
        return self.mesh["data"] * self.mesh["model"]

    @property
    def model_config(self) -> ModelConfig:
        """The model's sizes with the type of its activations."""
        return replace(self.model, dtype=self.dtype)


def _check_int(name: str, value: Any, least: int) -> None:
    if type(value) is not int or value < least:
        raise ConfigError(f"{name} = {value!r}: expected a whole number, at least {least}")


def _mesh_text(mesh: Mapping[str, int]) -> str:
    return ",".join(f"{n}={s}" for n, s in mesh.items())


def override(settings: DemoSettings, **values: Any) -> DemoSettings:
    """`settings` with those of `values` that are not None."""
    return replace(settings, **{k: v for k, v in values.items() if v is not None})


def read(path: Path) -> DemoSettings:
    """The settings of a file with a table [train] and an optional [model]. ConfigError names what is wrong."""
    try:
        if path.stat().st_size > _SIZE_LIMIT:
            raise ConfigError(f"{path}: a training configuration is at most {_SIZE_LIMIT} bytes long")
        content = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise ConfigError(f"{path}: cannot be read as TOML: {e.strerror if isinstance(e, OSError) else e}") from None
    _check_keys(path, "", content, ("train", "model"))
    train, model = (content.get(name, {}) for name in ("train", "model"))
    for name, table in (("train", train), ("model", model)):
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: [{name}] must be a table")
    _check_keys(path, "train.", train, tuple(f.name for f in fields(DemoSettings) if f.name != "model"))
    _check_keys(path, "model.", model, _MODEL_KEYS)
    try:
        return DemoSettings(**train, model=ModelConfig(**model))
    except ConfigError as e:
        raise ConfigError(f"{path}: {e}") from None


def _check_keys(path: Path, prefix: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ConfigError(
            f"{path}: unknown {'keys' if len(unknown) > 1 else 'key'} {', '.join(prefix + k for k in unknown)}; "
            f"known are {', '.join(known)}"
        )


def find(name: str) -> Path:
    """The file called `name`: a path, or the stem of a file of configs/train, the checkout's or the package's."""
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        return path
    package = Path(meshrt.__file__).parent
    folders = [Path("configs/train"), package.parent / "configs" / "train", package / "_configs" / "train"]
    for folder in folders:
        if (folder / f"{name}.toml").is_file():
            return folder / f"{name}.toml"
    names = sorted({p.stem for folder in folders if folder.is_dir() for p in folder.glob("*.toml")})
    raise ConfigError(f"{name}: no such file, and not one of configs/train ({', '.join(names) or 'which is empty'})")
