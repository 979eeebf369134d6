"""Settings of the whole suite: eight CPU devices for meshrt and for JAX, few threads, quiet runtimes."""

import gc
import os
import re
import resource
import signal
import sys
import zlib

# Workers of pytest-xdist share two cores, so each XLA client gets as few threads as it can run with.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MESHRT_TRACEBACK_FILTERING", "off")
os.environ.setdefault("MESHRT_NUM_CPU_DEVICES", "8")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Workers inherit it from readline, which pytest loads; what is printed is as wide where tests run without them.
os.environ.pop("COLUMNS", None)

import hypothesis
import pytest

# `make test` draws the same cases each time, so that it fails for what was changed; `make test-all` draws new ones.
# How fast cases are drawn says how busy the machine is, and nothing of what is tested.
_SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("seeded", derandomize=True, suppress_health_check=_SLOW)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "seeded"))


_SET = re.compile(r"\{'[^':]*', '[^':]*'")  # a set of strings, as it prints


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of a table marked `sweep(n)` every n-th case runs in `make test`, always the same; the others are slow."""
    for item in items:
        if _SET.search(item.nodeid):  # workers would collect different names, and run nothing
            raise pytest.UsageError(f"{item.nodeid} is named by a set, whose order differs in each process: sort it")
        mark = item.get_closest_marker("sweep")
        if mark and zlib.crc32(item.nodeid.encode()) % mark.args[0]:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def signals_are_heard():
    """Processes that a test starts hear Ctrl-C and hang-ups also where the tests run in the background or by nohup,
    which have them ignored."""
    ignored = [n for n in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


_MOST = 1 << 31  # bytes that a worker's programs may add before they are dropped
_held = [0]


def _resident() -> int:
    """Bytes of memory that this process holds now; the most it ever held where the system doesn't say."""
    try:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.fixture(scope="module", autouse=True)
def programs_of_other_files_are_dropped():
    """Both libraries keep every program of a process: over the whole suite that is gigabytes, and each collection of
    garbage takes seconds."""
    yield
    if _resident() - _held[0] > _MOST:
        for name in ("meshrt", "jax"):
            if name in sys.modules:
                sys.modules[name].clear_caches()
        gc.collect()
        _held[0] = _resident()


@pytest.fixture(autouse=True)
def what_was_there_before_is_not_looked_at(request):
    """Tests that collect garbage (marked `collects`) look at their own: going through all that a suite holds takes up
    to 20 s."""
    if request.node.get_closest_marker("collects") is None:
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@pytest.fixture
def mesh():
    """A 4x2 mesh ("data", "model") of CPU devices."""
    import meshrt
    from meshrt.sharding import AxisType

    return meshrt.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
