"""Profiles of programs, for TensorBoard's profiler and Perfetto. Names and signatures are ``jax.profiler``'s."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from meshrt import errors
from meshrt.core.naming import wraps
from meshrt.runtime import backend as backends
from meshrt.xla import jaxlib_api
from meshrt.xla.jaxlib_profiling import (
    ProfileData,
    ProfileEvent,
    ProfileOptions,
    ProfilePlane,
    Session,
    TraceMe,
    register_subprocess,
    set_metadata,
)
from meshrt.xla.jaxlib_profiling import start_server as _start_server

__all__ = [
    "ProfileData", "ProfileEvent", "ProfileOptions", "ProfilePlane", "StepTraceAnnotation", "TraceAnnotation",
    "annotate_function", "device_memory_profile", "register_subprocess", "save_device_memory_profile", "start_server",
    "start_trace", "stop_server", "stop_trace", "trace",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])

_lock = threading.Lock()
_running: tuple[Any, Path, bool] | None = None  # the session, where its files go, whether Perfetto's is among them
_server: Any = None


def start_trace(
    log_dir: str | os.PathLike[str],
    create_perfetto_link: bool = False,
    create_perfetto_trace: bool = False,
    profiler_options: Any = None,
) -> None:
    """Begins to record what the host and its devices do, until `stop_trace`.

    Args:
      log_dir: where files are written when it ends, below ``plugins/profile``, as TensorBoard looks for them.
      create_perfetto_trace: also ``perfetto_trace.json.gz``, which Perfetto's page opens.
      profiler_options: `ProfileOptions`.

    Raises:
      ProfilerError: a profile is being recorded already.
      UnsupportedError: `create_perfetto_link`, since nothing is served from here.

    >>> import tempfile
    >>> meshrt.profiler.start_trace(tempfile.mkdtemp())
    >>> meshrt.profiler.stop_trace()
    """
    global _running
    if create_perfetto_link:
        raise errors.UnsupportedError(
            "start_trace(create_perfetto_link=True) is not implemented; use create_perfetto_trace=True and open the "
            "file perfetto_trace.json.gz in Perfetto"
        )
    with _lock:
        if _running is not None:
            raise errors.ProfilerError(
                "Profile has already been started. Only one profile may be run at a time: call "
                f"meshrt.profiler.stop_trace() before, which ends that into {_running[1]}"
            )
        backends.devices()  # clients that start later would not be recorded
        set_metadata({"jaxlib_version": ".".join(map(str, jaxlib_api.VERSION))})
        _running = Session(profiler_options or ProfileOptions()), Path(log_dir), create_perfetto_trace


def stop_trace() -> None:
    """Ends the recording and writes its files. ProfilerError if there is none.

    >>> import tempfile
    >>> meshrt.profiler.start_trace(tempfile.mkdtemp())
    >>> meshrt.profiler.stop_trace()
    """
    global _running
    with _lock:
        if _running is None:
            raise errors.ProfilerError("No profile started; call meshrt.profiler.start_trace(log_dir) before")
        (session, folder, perfetto), _running = _running, None
        session.stop_and_export(str(folder))
        if perfetto:
            _write_perfetto(folder)


def _write_perfetto(folder: Path) -> None:
    """The events of the newest profile, without the metadata that Perfetto does not read."""
    newest = max((folder.absolute() / "plugins" / "profile").iterdir(), key=os.path.getmtime)
    found = sorted(newest.glob("*.trace.json.gz"))
    if len(found) != 1:
        raise errors.ProfilerError(f"the profile in {newest} has {len(found)} files *.trace.json.gz, not one")
    content = json.loads(gzip.decompress(found[0].read_bytes()))
    content.pop("metadata", None)
    target = newest / "perfetto_trace.json.gz"
    partial = target.with_suffix(".part")
    partial.write_bytes(gzip.compress(json.dumps(content).encode()))
    partial.replace(target)


@contextlib.contextmanager
def trace(
    log_dir: str | os.PathLike[str],
    create_perfetto_link: bool = False,
    create_perfetto_trace: bool = False,
    profiler_options: Any = None,
) -> Iterator[None]:
    """Records what happens in a block; see `start_trace`.

    >>> with meshrt.profiler.trace("/tmp/profile"):  # doctest: +SKIP
    ...     step(state).block_until_ready()
    """
    start_trace(log_dir, create_perfetto_link, create_perfetto_trace, profiler_options)
    try:
        yield
    finally:
        stop_trace()


class TraceAnnotation(TraceMe):
    """A block that shows in profiles under a name: ``with TraceAnnotation("load", batch=3): ...``."""


class StepTraceAnnotation(TraceAnnotation):
    """A block that is one step of training: ``with StepTraceAnnotation("train", step_num=n): ...``."""

    def __init__(self, name: str, **kwargs: Any):
        super().__init__(name, _r=1, **kwargs)


def annotate_function(func: F, name: str | None = None, **decorator_kwargs: Any) -> F:
    """`func` whose calls show in profiles, under its name or `name`.

    >>> meshrt.profiler.annotate_function(lambda x: x + 1, name="increment")(1)
    2
    """
    shown = name or getattr(func, "__qualname__", None) or func.__name__

    @wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with TraceAnnotation(shown, **decorator_kwargs):
            return func(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


def start_server(port: int, requires_backend: bool = True) -> Any:
    """Serves profiles on request of TensorBoard, at `port`. ProfilerError if a server runs already."""
    global _server
    with _lock:
        if _server is not None:
            raise errors.ProfilerError("Only one profiler server can be active at a time; stop_server() ends it")
        if requires_backend:
            backends.devices()
        _server = _start_server(port)
        return _server


def stop_server() -> None:
    """Ends `start_server`. ProfilerError if no server runs."""
    global _server
    with _lock:
        if _server is None:
            raise errors.ProfilerError("No active profiler server; start_server(port) begins one")
        _server = None


def device_memory_profile(backend: str | None = None) -> bytes:
    """What fills the memory of the devices of a platform now, as pprof's gzipped protocol buffer.

    >>> len(meshrt.profiler.device_memory_profile()) > 0
    True
    """
    profile: bytes = gzip.compress(backends.devices(backend)[0].client.heap_profile())
    return profile


def save_device_memory_profile(filename: str | os.PathLike[str], backend: str | None = None) -> None:
    """Writes `device_memory_profile` to a file.

    >>> import os, tempfile
    >>> path = tempfile.mkdtemp() + "/memory.prof"
    >>> meshrt.profiler.save_device_memory_profile(path)
    >>> os.path.getsize(path) > 0
    True
    """
    Path(filename).write_bytes(device_memory_profile(backend))
