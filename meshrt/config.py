"""The settings of meshrt, all in one typed object.

>>> from meshrt import config
>>> config.update("num_cpu_devices", 8)
>>> with config.override(default_matmul_precision="highest"):
...     ...

A setting has a value for the whole process, which :func:`update` sets and the environment variable
``MESHRT_<NAME>`` initialises, and may have another one inside :func:`override`, for the current thread only.
Every field says which caches it enters: ``"trace"`` (and everything after tracing), ``"compile"`` (propagation,
partitioning and compilation, not tracing) or ``"none"``. JAX's spellings (``jax_enable_x64``) are accepted.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from meshrt import _absl_flags, errors
from meshrt._jax_settings import FIXED, WITHOUT_EFFECT

__all__ = [
    "FIELDS",
    "GUARDED",
    "Field",
    "Settings",
    "compile_key",
    "config_with_absl",
    "override",
    "parse_flags_with_absl",
    "read",
    "settings",
    "trace_key",
    "update",
]

_TRUE, _FALSE = frozenset(["1", "true", "yes", "on"]), frozenset(["0", "false", "no", "off", ""])


class Field(NamedTuple):
    """One setting: its type, its default and the caches whose keys it enters."""

    name: str
    type: type
    default: Any
    cache: str
    doc: str
    choices: tuple[Any, ...] = ()
    optional: bool = False
    minimum: int | None = None
    maximum: int | None = None
    variable: str = ""  # of a program's own setting, which is not named by ours

    @property
    def env(self) -> str:
        """The environment variable that initialises this setting."""
        return self.variable or f"MESHRT_{self.name.upper()}"

    def check(self, value: Any) -> Any:
        """`value` as this field's type; ConfigError if it cannot be."""
        if value is None and self.optional:
            return None
        if self.type is float and type(value) is int:
            value = float(value)
        ok = self.type is object or (isinstance(value, self.type) and (self.type is bool or type(value) is not bool))
        if not ok:
            raise self.bad(value, f"expected {self.type.__name__}{self._refused(value)}")
        if self.choices and value not in self.choices:
            known = f"{'None or ' if self.optional else ''}in {[*self.choices]}"
            raise self.bad(value, f"new enum value must be {known}, got {value} of type {type(value)}")
        if self.minimum is not None and not value >= self.minimum:
            raise self.bad(value, f"expected at least {self.minimum}")
        if self.maximum is not None and not value <= self.maximum:
            raise self.bad(value, f"expected at most {self.maximum}")
        return value

    def _refused(self, value: Any) -> str:
        kind = {str: "string", int: "int", float: "float"}.get(self.type)
        if kind is None:
            return ""
        wanted = f"{'None or ' if self.optional else ''}of type {self.type.__name__}"
        return f": new {kind} config value must be {wanted}, got {value} of type {type(value)}"

    def parse(self, text: str) -> Any:
        """The value that an environment variable spells."""
        if self.optional and text.strip().lower() in ("", "none"):
            return None
        if self.type is bool:
            word = text.strip().lower()
            if word not in _TRUE | _FALSE:
                raise self.bad(text, "expected true or false")
            return word in _TRUE
        if self.type is int:
            try:
                return self.check(int(text))
            except ValueError as e:
                if isinstance(e, errors.ConfigError):
                    raise
                raise self.bad(text, "expected a whole number") from None
        if self.type is float:
            try:
                return self.check(float(text))
            except ValueError as e:
                if isinstance(e, errors.ConfigError):
                    raise
                raise self.bad(text, "expected a number") from None
        if self.type is object:
            raise self.bad(text, f"it can only be set in the program, with meshrt.config.update({self.name!r}, ...)")
        return self.check(text)

    def bad(self, value: Any, why: str) -> errors.ConfigError:
        """The error for a value that this setting cannot have."""
        env = "" if self.type is object else f" or the environment variable {self.env}"
        return errors.ConfigError(
            f"{value!r} is not a value for the setting {self.name!r} ({self.doc}): {why}. "
            f"Set it with meshrt.config.update({self.name!r}, ...){env}."
        )


_PRECISIONS = (
    "default", "high", "highest", "bfloat16", "tensorfloat32", "float32", "fastest", "bfloat16_3x",
    # The members of lax.DotAlgorithmPreset.
    "DEFAULT", "ANY_F8_ANY_F8_F32", "ANY_F8_ANY_F8_F32_FAST_ACCUM", "ANY_F8_ANY_F8_ANY", "ANY_F8_ANY_F8_ANY_FAST_ACCUM",
    "F16_F16_F16", "F16_F16_F32", "BF16_BF16_BF16", "BF16_BF16_F32", "BF16_BF16_F32_X3", "BF16_BF16_F32_X6",
    "BF16_BF16_F32_X9", "TF32_TF32_F32", "TF32_TF32_F32_X3", "F32_F32_F32", "F64_F64_F64",
)  # fmt: skip

# Where data may move from and to; see `meshrt.runtime.guards`.
GUARDED = ("host_to_device", "device_to_device", "device_to_host")
_LEVELS = ("allow", "log", "disallow", "log_explicit", "disallow_explicit")

FIELDS: dict[str, Field] = {
    f.name: f
    for f in (
        Field("num_cpu_devices", int, None, "none", "number of CPU devices of this process", optional=True, minimum=1),
        Field("platforms", str, None, "none", "platforms, the default first: 'cuda,cpu'", optional=True),
        Field("default_device", object, None, "none", "device of arrays made without a sharding", optional=True),
        Field("enable_x64", bool, False, "trace", "keep 64-bit types"),
        Field("default_matmul_precision", str, None, "trace", "precision of dots and convolutions", _PRECISIONS, True),
        Field("numpy_dtype_promotion", str, "standard", "trace", "which dtypes promote", ("standard", "strict")),
        Field("numpy_rank_promotion", str, "allow", "trace", "what is done where arrays of several ranks are combined",
              ("allow", "warn", "raise")),
        Field("default_prng_impl", str, "threefry2x32", "trace", "generator behind random.key"),
        Field("legacy_prng_key", str, "allow", "none", "what is done where a raw key is used",
              ("allow", "warn", "error")),
        Field("enable_custom_prng", bool, False, "trace", "random.PRNGKey makes typed keys"),
        Field("threefry_partitionable", bool, True, "trace",
              "random bits follow from positions, so that devices draw their parts; otherwise the bits of older JAX"),
        Field("random_seed_offset", int, 0, "trace", "added to every seed of a random key"),
        Field("remove_size_one_mesh_axis_from_type", bool, False, "trace",
              "leave mesh axes of size 1 out of the shardings in types"),
        Field("auto_pcast", bool, True, "trace",
              "make operands in a shard_map vary where others do; otherwise a cast has to be written"),
        Field("compute_type", str, None, "trace", "which of a device's processors computes, as compute_on says",
              optional=True),
        Field("xla_metadata", object, None, "trace", "names and values that compilers read at operations",
              optional=True),
        Field("disable_jit", bool, False, "trace", "run jitted functions operation by operation"),
        Field("debug_nans", bool, False, "compile", "raise when a program returns a NaN"),
        Field("debug_infs", bool, False, "compile", "raise when a program returns an infinity"),
        Field("debug_key_reuse", bool, False, "trace", "raise when a random key is used twice"),
        Field("traceback_filtering", str, "remove_frames", "none", "leave our own frames out of tracebacks",
              ("remove_frames", "off", "auto", "quiet_remove_frames")),
        Field("export_calling_convention_version", int, 10, "none", "calling convention of exported programs"),
        Field("export_ignore_forward_compatibility", bool, False, "none",
              "let exported programs use what older consumers do not know"),
        Field("log_compiles", bool, False, "none", "log each compilation"),
        Field("partitioner", str, "meshrt", "compile", "who partitions programs", ("meshrt", "xla")),
        Field("propagator", str, "meshrt", "compile", "who propagates shardings", ("meshrt", "shardy")),
        Field("compilation_cache_dir", str, None, "none", "directory of compiled programs kept on disk", optional=True),
        Field("enable_compilation_cache", bool, True, "none", "use the directory of compiled programs, if one is set"),
        Field("compilation_cache_max_size", int, 16 << 30, "none", "bytes of that directory; -1: no bound", minimum=-1),
        Field("persistent_cache_min_compile_time_secs", float, 0.0, "none", "programs compiled faster are not kept",
              minimum=0),
        Field("persistent_cache_min_entry_size_bytes", int, 0, "none", "smaller programs are not kept", minimum=-1),
        Field("compilation_cache_lock_timeout_secs", float, 600.0, "none", "wait for a process that compiles the same",
              minimum=0),
        Field("compilation_cache_include_metadata_in_key", bool, False, "none", "source lines tell programs apart"),
        Field("raise_persistent_cache_errors", bool, False, "none", "raise what goes wrong with that directory"),
        Field("no_tracing", bool, False, "none", "raise when a function is traced by jit"),
        Field("no_execution", bool, False, "none", "raise when a program would run"),
        Field("check_tracer_leaks", bool, False, "trace", "raise when a traced value outlives its trace"),
        Field("enable_checks", bool, False, "none", "check each Jaxpr that is made"),
        Field("pallas_enable_debug_checks", bool, False, "trace", "checks by pl.debug_check are made in kernels too"),
        Field("user_contexts", object, (), "trace", "values of the contexts that make_user_context made, in order"),
        Field("cached_traces", int, 1024, "none", "traces of one function that are kept", minimum=1),
        Field("explain_cache_misses", bool, False, "none", "log why a function is traced or compiled again"),
        Field("cpu_ynnpack", str, "auto", "compile", "who multiplies matrices on CPUs; auto: YNNPACK where narrow "
              "types are; it convolves with small kernels where every core has a device", ("auto", "always", "never")),
        Field("backend_configs", str, None, "compile", "a folder of files that say what compilers take", optional=True),
        Field("enable_recoverability", bool, False, "none", "JAX's; processes of unlaunched jobs always outlive peers"),
        Field("array_garbage_collection_guard", str, None, "none", "what is done where the garbage collector, not the "
              "count of references, frees an array", ("allow", "log", "fatal"), True),
        Field("thread_guard", bool, False, "none", "raise where another thread runs a program of several processes"),
        Field("transfer_guard", str, None, "none", "what is done about transfers, in all directions", _LEVELS, True),
        *(Field(f"transfer_guard_{d}", str, None, "none", f"what is done about {d} transfers", _LEVELS, True)
          for d in GUARDED),
        # XLA's CPU client admits 32 per device and deadlocks there; see meshrt.runtime.in_flight.
        Field("max_in_flight", int, 8, "none", "pending executions of a device set", minimum=2, maximum=24),
        *(Field(name, type(default), default, "none", f"JAX's, without effect: {why}")
          for name, (default, why) in WITHOUT_EFFECT.items()),
        *(Field(name, object if default is None else type(default), default, "none", f"JAX's, as it is: {why}",
                (default,)) for name, (default, why) in FIXED.items()),
    )
}  # fmt: skip


class _Overrides:
    """The settings that differ inside a `with override(...)`, and the keys of all settings with them."""

    __slots__ = ("compile", "trace", "values", "version")
    trace: tuple  # set by `Settings._refresh` before they are read
    compile: tuple

    def __init__(self, values: dict[str, Any]):
        self.values, self.version = values, -1


class Settings:
    """All settings; see the module. Reading a field is attribute access."""

    __slots__ = (
        "_checks", "_compile_key", "_frozen", "_hooks", "_local_hooks", "_lock", "_overrides", "_trace_key", "_values",
        "overrides", "version",
    )  # fmt: skip

    def __init__(self, environ: Mapping[str, str] | None = None):
        environ = os.environ if environ is None else environ
        self._values = {f.name: f.parse(environ[f.env]) if f.env in environ else f.default for f in FIELDS.values()}
        self._lock = threading.RLock()
        self._hooks: dict[str, list[Callable[[Any], None]]] = {}
        self._local_hooks: dict[str, Callable[[Any], None]] = {}
        self._checks: dict[str, Callable[[Field, Any], Any]] = {}
        self._frozen: dict[str, str] = {}
        # Read on every call, where a context variable costs a fifth of a thread-local attribute.
        self._overrides: ContextVar[_Overrides | None] = ContextVar("meshrt_overrides", default=None)
        self.overrides = self._overrides.get
        # Counts the changes, for caches of whole calls.
        self.version = 0
        self._rekey()

    def _rekey(self) -> None:
        self._trace_key, self._compile_key = _key_of(self._values, "trace"), _key_of(self._values, "compile")
        self.version += 1

    def forget_calls(self) -> None:
        """Has every function look again at what it knows of earlier calls."""
        self.version += 1

    # --- reading.

    def read(self, name: str) -> Any:
        """The value of a setting for the current thread. ConfigError for an unknown name.

        >>> meshrt.config.read("debug_nans")
        False
        """
        name = _field_name(name)
        local = self.overrides()
        return local.values[name] if local is not None and name in local.values else self._values[name]

    def read_global(self, name: str) -> Any:
        """The value of a setting outside of all blocks. ConfigError for an unknown name."""
        return self._values[_field_name(name)]

    def __getattr__(self, name: str) -> Any:
        # Fields are properties (below), so only JAX's spellings and mistakes come here.
        try:
            return self.read(name)
        except errors.ConfigError as e:
            raise AttributeError(str(e)) from None

    def trace_key(self) -> tuple:
        """The values of every setting that tracing reads, as one hashable object made beforehand.

        >>> meshrt.config.trace_key() == meshrt.config.trace_key()
        True
        """
        local = self.overrides()
        if local is None:
            return self._trace_key
        self._refresh(local)
        return local.trace

    def compile_key(self) -> tuple:
        """The values of every setting that only propagation, partitioning and compilation read.

        >>> meshrt.config.compile_key() == meshrt.config.compile_key()
        True
        """
        local = self.overrides()
        if local is None:
            return self._compile_key
        self._refresh(local)
        return local.compile

    def dispatch_key(self) -> Any:
        """Something that changes whenever a setting does, for caches of whole calls."""
        if self.overrides() is None:
            return self.version
        return (self.version, self.trace_key(), self.compile_key(), self.default_device)

    def _refresh(self, local: _Overrides) -> None:
        if local.version != self.version:
            version, values = self.version, self._values | local.values
            local.trace, local.compile = _key_of(values, "trace"), _key_of(values, "compile")
            local.version = version

    # --- writing.

    def update(self, name: str, value: Any) -> None:
        """Sets a setting for the whole process.

        Raises:
          ConfigError: unknown name, wrong value, or the setting can no longer change.

        >>> meshrt.config.update("debug_nans", True)
        >>> meshrt.config.update("debug_nans", False)
        """
        name = _field_name(name)
        value = self.checked(name, value)
        with self._lock:
            if name in self._frozen and value != self._values[name]:
                raise errors.FrozenConfigError(
                    f"jax_{name} config should be updated before backends are initialized: it cannot become {value!r}, "
                    f"as {self._frozen[name]}. Call "
                    f"meshrt.config.update({name!r}, {value!r}) before anything uses a device, set "
                    f"{FIELDS[name].env}={value} in the environment, or call meshrt.clear_backends() first."
                )
            if value != self._values[name] or type(value) is not type(self._values[name]):
                self._values = self._values | {name: value}
                self._rekey()
            for hook in self._hooks.get(name, ()):
                hook(value)

    @contextmanager
    def override(self, **values: Any) -> Iterator[None]:
        """Other values inside the block, for the current thread only.

        >>> with meshrt.config.override(debug_nans=True): print(meshrt.config.read("debug_nans"))
        True
        """
        checked = {_field_name(n): self.checked(n, v) for n, v in values.items()}
        for name in checked:
            if name in ("num_cpu_devices", "platforms"):
                raise errors.ConfigError(f"the setting {name!r} belongs to the process: use meshrt.config.update")
        saved = self.overrides()
        self._overrides.set(_Overrides(checked if saved is None else {**saved.values, **checked}))
        told = [name for name in self._local_hooks if name in checked]
        self._tell(told)
        try:
            yield
        finally:
            self._overrides.set(saved)
            self._tell(told)

    def _tell(self, names: list[str]) -> None:
        for name in names:
            local = self.overrides()
            self._local_hooks[name](None if local is None else local.values.get(name))

    # --- for the runtime, and programs that declare settings of their own.

    def declare(self, field: Field) -> None:
        """Adds a setting with its default as its value. ConfigError if there is one of its name."""
        if field.name in FIELDS:
            raise errors.ConfigError(f"Config option {field.name} already defined")
        FIELDS[field.name] = field
        self._values = {**self._values, field.name: field.default}
        _NAMES.get(field.cache, []).append(field.name)
        setattr(Settings, field.name, _field_property(field.name))
        self._rekey()

    def checked(self, name: str, value: Any) -> Any:
        """The value that the setting `name` has when it is set to `value`. ConfigError if it cannot be."""
        field = FIELDS[_field_name(name)]
        value = field.check(value)
        check = self._checks.get(field.name)
        return value if check is None else check(field, value)

    def on_check(self, name: str, check: Callable[[Field, Any], Any]) -> None:
        """Has `check(field, value)` look at new values of the setting `name`: it returns the value or raises."""
        self._checks[_field_name(name)] = check

    def on_update(self, name: str, hook: Callable[[Any], None]) -> None:
        """Calls `hook(value)` after each update of the setting `name`."""
        self._hooks.setdefault(_field_name(name), []).append(hook)

    def on_local(self, name: str, hook: Callable[[Any], None]) -> None:
        """Calls `hook(value)` in a thread that enters or leaves a block with its own value of the setting `name`; None
        where it has no longer one."""
        self._local_hooks[_field_name(name)] = hook

    def freeze(self, name: str, reason: str) -> None:
        """Makes later changes of a setting an error that gives `reason`."""
        self._frozen[_field_name(name)] = reason

    def thaw(self, name: str) -> None:
        """Takes back `freeze`."""
        self._frozen.pop(_field_name(name), None)

    def __repr__(self) -> str:
        return "Settings(" + ", ".join(f"{n}={self.read(n)!r}" for n in _OWN) + ")"


_NAMES = {cache: [f.name for f in FIELDS.values() if f.cache == cache] for cache in ("trace", "compile")}


def _key_of(values: dict[str, Any], cache: str) -> tuple:
    return tuple([values[name] for name in _NAMES[cache]])


# Those that do something.
_OWN = [name for name in FIELDS if name not in WITHOUT_EFFECT and name not in FIXED]


def _field_name(name: str) -> str:
    if name in FIELDS:
        return name
    short = name.removeprefix("jax_")
    if short in FIELDS:
        return short
    if name in ("jax_platform_name", "jax_platforms"):
        return "platforms"
    near = errors.did_you_mean(name, _OWN)
    raise errors.UnknownSettingError(
        f"Unrecognized config option: {name}{near or '.'} The settings are {', '.join(_OWN)}"
    )


def _field_property(name: str) -> property:
    def value(self: Settings) -> Any:
        local = self.overrides()
        return local.values[name] if local is not None and name in local.values else self._values[name]

    return property(value, doc=FIELDS[name].doc)


for _name in FIELDS:
    setattr(Settings, _name, _field_property(_name))

settings = Settings()

read = settings.read
update = settings.update
override = settings.override
trace_key = settings.trace_key
compile_key = settings.compile_key


def config_with_absl() -> None:
    """Makes every setting a flag `--jax_<name>` of a program that `absl.app.run` starts."""
    _absl_flags.register(FIELDS, update)


def parse_flags_with_absl() -> None:
    """Reads flags `--jax_<name>` from the command line now, where `absl.app.run` does not start the program."""
    _absl_flags.parse(FIELDS, update)


def __getattr__(name: str) -> Any:
    if name in FIELDS or name.startswith("jax_"):
        return getattr(settings, name)
    if name == "x64_enabled":  # JAX's second name for it
        return settings.enable_x64
    if name == "values":
        return {f"jax_{field.removeprefix('jax_')}": settings.read(field) for field in FIELDS}
    raise AttributeError(f"module {__name__!r} has no attribute or setting {name!r}")


class _ConfigModule(types.ModuleType):
    """Refuses `meshrt.config.enable_x64 = True`, which would set an attribute that nothing reads."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FIELDS or name.startswith("jax_"):
            raise errors.ConfigError(f"settings cannot be assigned to; call meshrt.config.update({name!r}, {value!r})")
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _ConfigModule

_XLA_DEVICE_COUNT = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def cpu_device_count() -> int:
    """CPU devices of this process: the setting, else what XLA_FLAGS asks for, else 1."""
    explicit = settings.num_cpu_devices
    if explicit is not None:
        return explicit
    found = _XLA_DEVICE_COUNT.findall(os.environ.get("XLA_FLAGS", ""))
    return max(1, int(found[-1])) if found else 1
