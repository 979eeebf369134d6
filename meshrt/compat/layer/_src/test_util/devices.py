"""Which devices a test runs on, tests that are left out on some, and meshes of them."""

from __future__ import annotations

import contextlib
import datetime
import functools
import math
import os
import re
import sys
import unittest
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jaxlib
import numpy as np

from meshrt import config, errors, sharding
from meshrt.compat.layer._src.config import string_flag
from meshrt.runtime import backend
from meshrt.xla import jaxlib_api

__all__ = [
    "CudaArchSpecificTest", "MeshSpec", "create_mesh", "device_kind_match", "device_supports_buffer_donation",
    "device_under_test", "get_cuda_nonportable_max_cluster_size", "get_tpu_version", "is_asan", "is_cloud_tpu",
    "is_cloud_tpu_at_least", "is_cuda_compute_capability_at_least", "is_cuda_compute_capability_equal",
    "is_cuda_version_at_least", "is_device_cuda", "is_device_rocm", "is_device_tpu", "is_device_tpu_at_least",
    "is_gil_disabled", "is_msan", "is_optimized_build", "is_running_under_pytest", "is_sanitized", "is_test_rbe",
    "is_tsan", "jaxlib_version", "numpy_version", "parse_version", "pattern_search", "pjrt_c_api_version_at_least",
    "pytest_mark_if_available", "request_cpu_devices", "run_on_devices", "runtime_environment", "skip_on_devices",
    "skip_on_flag", "skip_under_pytest", "stablehlo_version_at_least", "test_device_matches", "with_explicit_mesh",
    "with_mesh", "with_mesh_from_kwargs",
]  # fmt: skip

Test = Callable[..., Any]
MeshSpec = list[tuple[str, int]]

_TEST_DUT = string_flag("jax_test_dut", os.environ.get("JAX_TEST_DUT", ""))


def _client() -> Any:
    return backend.devices(None)[0].client


def device_under_test() -> str:
    """The platform that is tested: `cpu`, `gpu`, `tpu`."""
    return str(_TEST_DUT.value or _client().platform)


def is_device_rocm() -> bool:
    return "rocm" in _client().platform_version


def is_device_cuda() -> bool:
    return "cuda" in _client().platform_version


def is_cloud_tpu() -> bool:
    """Whether the machine says that it is a TPU's host."""
    return os.path.exists("/dev/accel0") or os.path.exists("/dev/vfio/0")


def is_cloud_tpu_at_least(year: int, month: int, day: int) -> bool:
    """Whether the driver of the TPU, whose version ends in the second it was built, is as new as a date. Where there is
    none, or none that says so, nothing is too old."""
    built = re.search(r"\((\d+)\)[^\n]*$", _client().platform_version) if device_under_test() == "tpu" else None
    return built is None or datetime.date.fromtimestamp(int(built[1])) >= datetime.date(year, month, day)


def _built_with(what: str) -> bool:
    return bool(getattr(jaxlib_api._jax, f"is_{what}")())


is_optimized_build = functools.partial(_built_with, "optimized_build")
is_asan, is_msan, is_tsan = (functools.partial(_built_with, name) for name in ("asan", "msan", "tsan"))
is_sanitized = functools.partial(_built_with, "sanitized")


def is_gil_disabled() -> bool:
    return not getattr(sys, "_is_gil_enabled", lambda: True)()


def is_test_rbe() -> bool:
    """Whether tests run on machines of a build service, which sets a variable."""
    return re.fullmatch("(?i)true|1|y|yes", os.environ.get("IS_JAX_RBE_TESTING", "")) is not None


def parse_version(v: str) -> tuple[int, ...]:
    """The numbers of a version, without what follows them."""
    found = re.match(r"\d+(\.\d+)*", v)
    if found is None:
        raise errors.ArgumentValueError(f"{v!r} does not begin with the numbers of a version")
    return tuple(map(int, found.group().split(".")))


def numpy_version() -> tuple[int, ...]:
    return parse_version(np.__version__)


def jaxlib_version() -> tuple[int, ...]:
    return parse_version(jaxlib.__version__)


def pjrt_c_api_version_at_least(major_version: int, minor_version: int) -> bool:
    """Whether the plugin of the platform is as new; those without a version are built in."""
    found = (getattr(_client(), n, None) for n in ("pjrt_c_api_major_version", "pjrt_c_api_minor_version"))
    major, minor = found
    return major is None or (major, minor) >= (major_version, minor_version)


def stablehlo_version_at_least(required_version: str) -> bool:
    """Whether the plugin of the platform reads StableHLO of a version; those without one are built in."""
    found = getattr(_client(), "stablehlo_current_version", None)
    return found is None or tuple(found) >= parse_version(required_version)


def _kind() -> str:
    return str(backend.devices(None)[0].device_kind)


def get_tpu_version() -> int:
    """The generation of the TPU. ValueError where there is none."""
    numbers = re.findall(r"\d+", _kind()) if device_under_test() == "tpu" and _kind().startswith("TPU") else []
    if not numbers:
        raise errors.ArgumentValueError(f"{_kind()} is no TPU of a known generation")
    return int(numbers[0])


def is_device_tpu_at_least(version: int) -> bool:
    return is_device_tpu() and get_tpu_version() >= version


# What the names of kinds have in them, or end with, where not the generation as it is written by most: `v4`.
_KINDS = {"v5e": "v5 lite", "v5p": "v5$", "v6e": "v6 lite", "v7x": "TPU7x"}


def is_device_tpu(version: int | None = None, variant: str = "") -> bool:
    """Whether the device is a TPU, of a generation and a variant of it (`e`, `p`) if given."""
    wanted = "" if version is None else f"v{version}{variant}"
    return device_under_test() == "tpu" and re.search(_KINDS.get(wanted, wanted), _kind()) is not None


def pattern_search(patterns: str | Sequence[str], string: str) -> str | None:
    """The first of regular expressions that is found in a string."""
    every = (patterns,) if isinstance(patterns, str) else patterns
    return next((p for p in every if re.search(p, string)), None)


def device_kind_match(device_patterns: str | Sequence[str]) -> str | None:
    """The first of regular expressions that is found in the name of the device's kind."""
    return pattern_search(device_patterns, _kind())


def get_cuda_nonportable_max_cluster_size() -> int:
    """How many blocks the device takes in one cluster at most, other devices perhaps fewer."""
    # From NVIDIA's tuning guides for Hopper and Blackwell; the small devices of the latter hold fewer.
    return {"Thor$": 8, "GB10$": 12}.get(device_kind_match(["Thor$", "GB10$"]) or "", 16)


def _capability() -> tuple[int, ...] | None:
    return parse_version(backend.devices(None)[0].compute_capability) if is_device_cuda() else None


def is_cuda_compute_capability_at_least(capability: str) -> bool:
    found = _capability()
    return found is not None and found >= parse_version(capability)


def is_cuda_compute_capability_equal(capability: str) -> bool:
    return _capability() == parse_version(capability)


class CudaArchSpecificTest:
    """Beside a class of test cases: leaves the test that runs out on devices without what it needs."""

    skipTest: Callable[[str], Any]

    def _needs(self, what: str, has: Callable[[tuple[int, ...]], bool]) -> None:
        found = _capability()
        if found is None or not has(found):
            self.skipTest(f"needs a GPU with {what}, not {_kind()}")

    def skip_unless_sm90a(self) -> None:
        self._needs("compute capability 9.0", lambda found: found == (9, 0))

    def skip_unless_tcgen05(self) -> None:
        self._needs("instructions of tcgen05", lambda found: found[0] in (10, 11))

    def skip_unless_tcgen05_int8(self) -> None:
        self._needs("instructions of tcgen05 for int8", lambda found: found in ((10, 0), (10, 1), (11, 0)))


def is_cuda_version_at_least(major: int, minor: int) -> bool:
    """Whether CUDA's runtime, which the client's version names, is as new."""
    found = re.search(r"cuda (\d+)", _client().platform_version)
    return found is not None and int(found.group(1)) >= major * 1000 + minor * 10


def _tags() -> set[str]:
    also = {name for name, has in (("rocm", is_device_rocm), ("cuda", is_device_cuda)) if has()}
    return {device_under_test(), *also}


def test_device_matches(device_types: Iterable[str]) -> bool:
    """Whether the device is one of these platforms: `cpu`, `gpu`, `tpu`, `cuda`, `rocm`."""
    if isinstance(device_types, str):
        raise AssertionError(f"a list of platforms is wanted, not {device_types!r}")
    return not _tags().isdisjoint(device_types)


test_device_matches.__test__ = False  # type: ignore[attr-defined]  # no test for pytest to collect


def _only_if(wanted: Callable[[], bool], reason: Callable[[Test], str]) -> Callable[[Test], Test]:
    """A decorator of tests that are left out unless something holds when they run."""

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not wanted():
                raise unittest.SkipTest(reason(test))
            return test(self, *args, **kwargs)

        return run

    return decorate


def skip_on_devices(*disabled_devices: str, skip_reason: str | None = None) -> Callable[[Test], Test]:
    """Leaves a test out on these platforms."""
    reason = skip_reason or f"not on {', '.join(disabled_devices)}"
    return _only_if(lambda: not test_device_matches(disabled_devices), lambda _: reason)


def run_on_devices(*enabled_devices: str, skip_reason: str | None = None) -> Callable[[Test], Test]:
    """Leaves a test out on all other platforms."""
    reason = skip_reason or f"only on {', '.join(enabled_devices)}"
    return _only_if(lambda: test_device_matches(enabled_devices), lambda _: reason)


def device_supports_buffer_donation() -> Callable[[Test], Test]:
    """Leaves a test out where donated memory is not used again. (All platforms of ours do so.)"""
    known = ("cpu", "cuda", "rocm", "tpu", "neuron")
    return _only_if(lambda: test_device_matches(known), lambda _: f"memory is not donated on {_tags()}")


def skip_on_flag(flag_name: str, skip_value: Any) -> Callable[[Test], Test]:
    """Leaves a test out while a setting has a value."""
    return _only_if(
        lambda: config.read(flag_name) != skip_value,
        lambda test: f"{test.__name__} is not for {flag_name}={skip_value}",
    )


def request_cpu_devices(nr_devices: int) -> None:
    """Asks for so many devices on the CPU, which works as long as none has been used."""
    if (config.settings.num_cpu_devices or 1) < nr_devices:
        with contextlib.suppress(RuntimeError):
            config.update("num_cpu_devices", nr_devices)


def pytest_mark_if_available(marker: str) -> Callable[[Any], Any]:
    """A mark of pytest's, where pytest is installed."""
    try:
        import pytest  # an optional wheel: tests may be run without it
    except ImportError:
        return lambda test: test
    found: Callable[[Any], Any] = getattr(pytest.mark, marker)
    return found


def is_running_under_pytest() -> bool:
    return "pytest" in sys.modules


def skip_under_pytest(reason: str) -> Callable[[Any], Any]:
    """Leaves a test out where pytest runs it."""
    return unittest.skipIf(is_running_under_pytest(), f"pytest runs it: {reason}")


def runtime_environment() -> str | None:
    """Who runs the tests: `bazel`, whose Python lies among what it made, or `pytest`, which stands for all others."""
    return None if sys.executable is None else "bazel" if "bazel-out" in sys.executable else "pytest"


def _first(shape: Sequence[int], devices: Sequence[Any], what: str) -> np.ndarray:
    size = math.prod(shape)
    if len(devices) < size:
        raise unittest.SkipTest(f"needs {size} {what} devices, of which there are {len(devices)}")
    return np.array(devices[:size]).reshape(tuple(shape))


@contextlib.contextmanager
def with_mesh(named_shape: MeshSpec) -> Iterator[None]:
    """A mesh of devices of this process in context. Leaves the test out where there are fewer."""
    names, shape = [n for n, _ in named_shape], [s for _, s in named_shape]
    with sharding.Mesh(_first(shape, backend.local_devices(), "local"), names):
        yield


def with_mesh_from_kwargs(f: Test) -> Test:
    """Runs a test in the mesh that its argument `mesh` describes."""

    def run(*args: Any, mesh: MeshSpec, **kwargs: Any) -> Any:
        with with_mesh(mesh):
            return f(*args, mesh=mesh, **kwargs)

    return run


def create_mesh(
    mesh_shape: Sequence[int], axis_names: Sequence[str], iota_order: bool = False, axis_types: Any = None
) -> sharding.Mesh:
    """A mesh of the first devices, by number if `iota_order`. Leaves the test out where there are fewer."""
    shape, names = tuple(mesh_shape), tuple(axis_names)
    by_number = _first(shape, sorted(backend.devices(None), key=lambda d: d.id), "global")
    if not iota_order:
        return sharding.make_mesh(shape, names, axis_types or (sharding.AxisType.Auto,) * len(shape))
    return sharding.Mesh(by_number, names, axis_types=axis_types)


def with_explicit_mesh(
    sizes: Sequence[int], names: Sequence[str], axis_types: Any = None, iota_order: bool = False
) -> Callable[[Test], Test]:
    """Runs a test with a mesh in context, of Explicit axes unless told otherwise; the test is given it as `mesh`."""
    types = (sharding.AxisType.Explicit,) * len(names) if axis_types is None else axis_types

    def decorate(test: Test) -> Test:
        def run(*args: Any, **kwargs: Any) -> Any:
            with sharding.set_mesh(create_mesh(sizes, names, iota_order, types)):
                return test(*args, mesh=sharding.get_mesh(), **kwargs)

        return run

    return decorate
