"""Settings as context managers and decorators, under the names that JAX gives them.

>>> import meshrt
>>> with meshrt.default_matmul_precision("highest"):
...     ...
>>> with meshrt.default_device("cpu"), meshrt.enable_x64(True):
...     ...
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator
from typing import Any, TypeVar

from meshrt import errors
from meshrt.config import FIELDS, GUARDED, settings

__all__ = [
    "allow_f16_reductions", "array_garbage_collection_guard", "auto_pcast", "check_tracer_leaks", "checking_leaks",
    "debug_infs", "debug_key_reuse", "debug_nans", "default_device", "default_matmul_precision", "default_prng_impl",
    "disable_jit", "enable_checks", "enable_custom_prng", "enable_x64", "explain_cache_misses", "legacy_prng_key",
    "log_compiles", "make_user_context", "no_execution", "no_tracing", "numpy_dtype_promotion", "numpy_rank_promotion",
    "remove_size_one_mesh_axis_from_type", "softmax_custom_jvp", "thread_guard", "threefry_partitionable",
    "transfer_guard", "transfer_guard_device_to_device", "transfer_guard_device_to_host",
    "transfer_guard_host_to_device", "usual_promotion",
]  # fmt: skip


T = TypeVar("T")
_NOT_GIVEN: Any = object()


class _Inside(ContextDecorator):
    """Another value of a setting, for the current thread and as long as the block or the decorated call lasts."""

    def __init__(self, values: dict[str, Any]):
        self._values = values
        self._entered: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        override = settings.override(**self._values)
        override.__enter__()
        self._entered.append(override)

    def __exit__(self, *details: Any) -> None:
        self._entered.pop().__exit__(*details)

    def __call__(self, fun: Callable[..., Any]) -> Callable[..., Any]:  # type: ignore[override]  # of any type
        @functools.wraps(fun, updated=())  # what lowers `fun` does not lower it inside of this context
        def inside(*args: Any, **kwargs: Any) -> Any:
            with _Inside(self._values):
                return fun(*args, **kwargs)

        return inside


class SettingContext:
    """`context(value)` sets one setting for a block; `context.value` is its value now.

    Without an argument a yes-or-no setting is switched on.

    Raises:
      ConfigError: the setting cannot have this value.
    """

    __slots__ = ("name", "sets")

    def __init__(self, name: str, *others: str):
        self.name, self.sets = name, (name, *others)

    def __call__(self, new_val: Any = _NOT_GIVEN) -> _Inside:
        if new_val is _NOT_GIVEN:
            if FIELDS[self.name].type is not bool:
                raise errors.ArgumentTypeError(
                    f"meshrt.{self.name} takes one value, as in "
                    f"`with meshrt.{self.name}({settings.read(self.name)!r}):`"
                )
            new_val = True
        return _Inside(dict.fromkeys(self.sets, settings.checked(self.name, new_val)))

    @property
    def value(self) -> Any:
        return settings.read(self.name)

    def get_global(self) -> Any:
        """The value outside of all blocks."""
        return settings.read_global(self.name)

    def set_global(self, value: Any) -> None:
        """`meshrt.config.update` of this setting."""
        for name in self.sets:
            settings.update(name, value)

    def __bool__(self) -> bool:
        raise errors.ArgumentTypeError(
            f"meshrt.{self.name} is a context manager; its value is meshrt.{self.name}.value or "
            f"meshrt.config.{self.name}"
        )

    def __repr__(self) -> str:
        return f"<meshrt.{self.name}: {FIELDS[self.name].doc}; now {self.value!r}>"


class _DisableJit(SettingContext):
    """The one whose argument has a name of its own."""

    __slots__ = ()

    def __call__(self, disable: bool = True) -> _Inside:
        return super().__call__(disable)


default_device = SettingContext("default_device")
default_matmul_precision = SettingContext("default_matmul_precision")
default_prng_impl = SettingContext("default_prng_impl")
numpy_dtype_promotion = SettingContext("numpy_dtype_promotion")
numpy_rank_promotion = SettingContext("numpy_rank_promotion")
threefry_partitionable = SettingContext("threefry_partitionable")
enable_x64 = SettingContext("enable_x64")
disable_jit = _DisableJit("disable_jit")
debug_nans = SettingContext("debug_nans")
allow_f16_reductions = SettingContext("allow_f16_reductions")
array_garbage_collection_guard = SettingContext("array_garbage_collection_guard")
softmax_custom_jvp = SettingContext("softmax_custom_jvp")
thread_guard = SettingContext("thread_guard")
debug_infs = SettingContext("debug_infs")
debug_key_reuse = SettingContext("debug_key_reuse")
log_compiles = SettingContext("log_compiles")
explain_cache_misses = SettingContext("explain_cache_misses")
no_tracing = SettingContext("no_tracing")
no_execution = SettingContext("no_execution")
auto_pcast = SettingContext("auto_pcast")
check_tracer_leaks = checking_leaks = SettingContext("check_tracer_leaks")
enable_checks = SettingContext("enable_checks")
legacy_prng_key = SettingContext("legacy_prng_key")
enable_custom_prng = SettingContext("enable_custom_prng")
remove_size_one_mesh_axis_from_type = SettingContext("remove_size_one_mesh_axis_from_type")
transfer_guard = SettingContext("transfer_guard", *(f"transfer_guard_{d}" for d in GUARDED))
transfer_guard_host_to_device = SettingContext("transfer_guard_host_to_device")
transfer_guard_device_to_device = SettingContext("transfer_guard_device_to_device")
transfer_guard_device_to_host = SettingContext("transfer_guard_device_to_host")


class UserContext:
    """A value of the user's own that traces depend on: `with context(value):`, read as `context.value`.

    What a function does under another value is another trace, as under another setting.
    """

    __slots__ = ("_default", "_index")

    def __init__(self, default: Any, index: int):
        self._default, self._index = default, index

    def __call__(self, value: Any) -> _Inside:
        return _Inside({"user_contexts": self._among(settings.user_contexts, value)})

    @property
    def value(self) -> Any:
        return self._in(settings.user_contexts)

    def get_global(self) -> Any:
        """The value outside of all blocks."""
        return self._in(settings.read_global("user_contexts"))

    def set_global(self, value: Any) -> None:
        """Makes `value` the one outside of all blocks."""
        settings.update("user_contexts", self._among(settings.read_global("user_contexts"), value))

    def _in(self, pairs: tuple[tuple[int, Any], ...]) -> Any:
        return dict(pairs).get(self._index, self._default)

    def _among(self, pairs: tuple[tuple[int, Any], ...], value: Any) -> tuple[tuple[int, Any], ...]:
        return tuple(sorted({**dict(pairs), self._index: value}.items(), key=lambda pair: pair[0]))


_user_contexts = itertools.count()


def make_user_context(default_value: Any = None) -> UserContext:
    """A new context whose value, which must be hashable, is part of what jitted functions are traced for.

    >>> mode = make_user_context("plain")
    >>> with mode("fancy"):
    ...     mode.value
    'fancy'
    """
    return UserContext(default_value, next(_user_contexts))


_USUAL = {"numpy_rank_promotion": "allow", "numpy_dtype_promotion": "standard"}


def usual_promotion(fun: Callable[..., T]) -> Callable[..., T]:
    """For functions of the library that let ranks and dtypes promote inside, whatever users ask for their own code."""

    @functools.wraps(fun)
    def inside(*args: Any, **kwargs: Any) -> T:
        if settings.numpy_rank_promotion == "allow" and settings.numpy_dtype_promotion == "standard":
            return fun(*args, **kwargs)
        with settings.override(**_USUAL):
            return fun(*args, **kwargs)

    return inside
