"""`jax._src.internal_test_util.test_harnesses`: functions, with what their arguments are."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshrt import lax
from meshrt.compat.layer._src import test_util as jtu
from meshrt.compat.layer._src.internal_test_util.lax_test_util import lax_ops as _lax_ops
from meshrt.numpy.names import missing as _missing

DType = Any
Rng = np.random.RandomState


class RandArg(NamedTuple):
    """A random array, which the harness's `rng_factory` draws."""

    shape: tuple[int, ...]
    dtype: DType


class StaticArg(NamedTuple):
    """A value that is no array."""

    value: Any


class CustomArg(NamedTuple):
    """What `make(rng)` makes."""

    make: Callable[[Rng], Any]


class Limitation:
    """Where, and for which dtypes (none: all), a harness does not run."""

    def __init__(
        self, description: str, *, enabled: bool = True, devices: str | Sequence[str] = ("cpu", "gpu", "tpu"),
        dtypes: Sequence[DType] = (), skip_run: bool = False,
    ):  # fmt: skip
        self.description, self.enabled, self.skip_run, self.dtypes = description, enabled, skip_run, tuple(dtypes)
        self.devices = (devices,) if isinstance(devices, str) else tuple(devices)

    def filter(self, device: str | None = None, dtype: DType | None = None) -> bool:
        """Whether it holds for a device and a dtype (None: any)."""
        held = device is None or device in self.devices
        return self.enabled and held and (dtype is None or not self.dtypes or dtype in self.dtypes)

    def __str__(self) -> str:
        where = f"{','.join(self.devices)} {dtypes_to_str(self.dtypes, True)}"
        return f'"{self.description}" devices=[{where}]{" (skip run)" if self.skip_run else ""}'

    __repr__ = __str__


def dtypes_to_str(dtype_list: Sequence[DType], empty_means_all: bool = False) -> str:
    """The names of dtypes."""
    names = sorted({np.dtype(d).name for d in dtype_list})
    return "all" if not names and empty_means_all else ", ".join(names)


class Harness:
    """A function `fun` and what its arguments are: values, or how they are made (`RandArg`, `StaticArg`, `CustomArg`).

    `group_name` and `name` name the test; `dtype` and `params` are for tests to look at.
    """

    def __init__(
        self, group_name: Any, name: str, fun: Callable[..., Any], arg_descriptors: Sequence[Any], *, dtype: DType,
        rng_factory: Callable[..., Any] = jtu.rand_default, jax_unimplemented: Sequence[Limitation] = (), **params: Any,
    ):  # fmt: skip
        self.group_name = jtu.sanitize_test_name(str(group_name))
        self.name = jtu.sanitize_test_name(name)
        self.fullname = f"{self.group_name}_{self.name}"
        self.fun, self.arg_descriptors, self.rng_factory = fun, arg_descriptors, rng_factory
        self.jax_unimplemented, self.dtype, self.params = tuple(jax_unimplemented), dtype, params

    def __str__(self) -> str:
        return self.fullname

    def _made(self, descriptor: Any, rng: Rng) -> Any:
        if isinstance(descriptor, StaticArg):
            return descriptor.value
        if isinstance(descriptor, RandArg):
            return self.rng_factory(rng)(descriptor.shape, descriptor.dtype)
        return descriptor.make(rng) if isinstance(descriptor, CustomArg) else descriptor

    def args_maker(self, rng: Rng) -> list[Any]:
        """All arguments."""
        return [self._made(d, rng) for d in self.arg_descriptors]

    def dyn_args_maker(self, rng: Rng) -> list[Any]:
        """Those that are arrays."""
        return [self._made(d, rng) for d in self.arg_descriptors if not isinstance(d, StaticArg)]

    def dyn_fun(self, *dyn_args: Any) -> Any:
        """The function of those that are arrays."""
        given = iter(dyn_args)
        args = [d.value if isinstance(d, StaticArg) else next(given) for d in self.arg_descriptors]
        return self.fun(*args)

    def filter(
        self, device_under_test: str, *, include_jax_unimpl: bool = False, one_containing: str | None = None
    ) -> bool:
        """Whether it is to be run."""
        if one_containing is not None and one_containing not in self.fullname:
            return False
        missing = (l for l in self.jax_unimplemented if l.filter(device=device_under_test, dtype=self.dtype))
        return include_jax_unimpl or not any(missing)


all_harnesses: list[Harness] = []


def define(group_name: Any, name: str, fun: Callable[..., Any], arg_descriptors: Sequence[Any], **given: Any) -> None:
    """Adds a `Harness` to `all_harnesses`."""
    all_harnesses.append(Harness(group_name, name, fun, arg_descriptors, **given))


def parameterized(
    harnesses: Iterable[Harness], *, one_containing: str | None = None, include_jax_unimpl: bool = False
) -> Any:
    """A decorator of tests, which are run with each as `harness`; the environment may choose one
    (`JAX_TEST_HARNESS_ONE_CONTAINING`)."""
    chosen = one_containing or os.environ.get("JAX_TEST_HARNESS_ONE_CONTAINING")
    device = jtu.device_under_test()
    kept = [h for h in harnesses if h.filter(device, include_jax_unimpl=include_jax_unimpl, one_containing=chosen)]
    kwargs = [{"testcase_name": h.fullname, "harness": h} for h in (kept[:1] if chosen else kept)]
    return jtu.parameterized_filterable(kwargs=kwargs)


def _define_elementwise() -> None:
    for record in _lax_ops():
        fun = functools.partial(lambda name, *args: getattr(lax, name)(*args), record.op)
        for dtype in record.dtypes:
            shape = jtu.format_shape_dtype_string((20, 20), dtype)
            args = [RandArg((20, 20), dtype)] * record.nargs
            define(record.op, f"shape={shape}", fun, args, dtype=dtype, rng_factory=record.rng_factory, shape=(20, 20))


_define_elementwise()
__getattr__ = _missing(
    "jax._src.internal_test_util.test_harnesses", [name for name in globals() if not name.startswith("_")]
)
