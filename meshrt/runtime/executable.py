"""Compiled programs: `PortableExecutable` for a number of devices, `LoadedExecutable` bound to some.

A program is compiled once. To run on other devices of the same kind its compiled code is serialised and bound to
them, which takes about a millisecond; only where the platform refuses is it compiled again. Both are counted
(`rebind`, `compile`).
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from jaxlib.mlir import ir

from meshrt import errors
from meshrt.heuristics import KEPT_DEVICE_SETS
from meshrt.runtime import backend, compile_cache, events, offers, process_groups
from meshrt.runtime.host_calls import Calls, HostFunction, busy_devices
from meshrt.runtime.in_flight import flight_of
from meshrt.runtime.kernel_library import left_to_ynnpack
from meshrt.runtime.memory_stats import CompiledMemoryStats, memory_stats_of
from meshrt.sharding.layout import Layout
from meshrt.xla import jaxlib_api, jaxlib_executables
from meshrt.xla.jaxlib_calls import prepare_kernels
from meshrt.xla.jaxlib_plugins import deserialize

__all__ = ["LoadedExecutable", "PortableExecutable", "compile_program", "read_layouts"]

_log = logging.getLogger("meshrt.compile")
_alive: weakref.WeakSet[PortableExecutable] = weakref.WeakSet()
_alive_lock = threading.Lock()


def compile_program(
    module: str | bytes | ir.Module,
    *,
    num_devices: int,
    mode: str = "replica",
    shardy: bool = True,
    backend: str | None = None,
    options: dict[str, Any] | None = None,
    host_callbacks: Sequence[HostFunction] = (),
    name: str = "?",
) -> PortableExecutable:
    """The program of a StableHLO module for `num_devices` devices; it is compiled when first loaded or asked about.

    Args:
      module: text, bytecode or a module.
      mode: "replica" runs the module on each device as it stands (it is one device's program, with its collectives);
        "spmd" lets XLA's partitioner split it.
      shardy: in mode "spmd", whether the shardings are Shardy's attributes (else `mhlo.sharding`).
      backend: the platform; the default one if None.
      options: XLA's debug options by name.
      host_callbacks: what the program calls back, by index (see `meshrt.runtime.host_calls`).
      name: what people call the program, for lists of programs.
    """
    if mode not in ("replica", "spmd"):
        raise errors.ArgumentValueError(f"compile_program: mode must be 'replica' or 'spmd'. Got {mode!r}")
    xla_options = tuple(sorted((options or {}).items()))
    text = jaxlib_api.bytecode(module) if isinstance(module, ir.Module) else module
    platform = _platform(backend)
    ynnpack = left_to_ynnpack(text, num_devices) if platform == "cpu" else "all"
    kind = jaxlib_api.options_fingerprint(mode, shardy, xla_options, ynnpack)
    key = compile_cache.fingerprint(text, str(num_devices), kind, platform)
    make = lambda: PortableExecutable(
        key, text, num_devices, mode, shardy, platform, xla_options, tuple(host_callbacks), ynnpack, name
    )
    # Callbacks are objects of this process: programs that have them are their own.
    return make() if host_callbacks else compile_cache.cached(key, make)


def _platform(name: str | None) -> str:
    return backend.default_platform() if name is None else backend.known_as(name)


class PortableExecutable:
    """A program for a number of devices of a platform, bound to none.

    `fingerprint` identifies the module, the options and the number of devices.
    """

    __slots__ = (
        "__weakref__", "_blobs", "_first", "_loaded", "_lock", "fingerprint", "host_callbacks", "mode", "module",
        "name", "num_devices", "platform", "shardy", "xla_options", "ynnpack",
    )  # fmt: skip

    def __init__(
        self, fingerprint: str, module: str | bytes, num_devices: int, mode: str, shardy: bool, platform: str,
        xla_options: tuple, host_callbacks: tuple, ynnpack: str, name: str,
    ):  # fmt: skip
        self.fingerprint, self.module, self.num_devices = fingerprint, module, num_devices
        self.mode, self.shardy, self.platform = mode, shardy, platform
        self.xla_options, self.host_callbacks = xla_options, host_callbacks
        self.ynnpack, self.name = ynnpack, name
        self._blobs: dict[str, bytes] = {}
        self._first: dict[str, Any] = {}
        self._loaded: dict[tuple, LoadedExecutable] = {}
        self._lock = threading.RLock()
        with _alive_lock:
            _alive.add(self)

    @classmethod
    def of_code(
        cls, code: bytes, devices: Sequence[Any], *, mode: str, shardy: bool, options: tuple[tuple[str, Any], ...],
        fingerprint: str, name: str,
    ) -> PortableExecutable:  # fmt: skip
        """The program that `serialize` wrote, for as many devices of the kind of `devices`. It has no module, so it
        cannot be compiled for others."""
        kind = _kind(tuple(devices))
        key = compile_cache.fingerprint(code, kind)

        def make() -> PortableExecutable:
            where = backend.platform_of(devices[0])
            made = cls(fingerprint, b"", len(devices), mode, shardy, where, options, (), "all", name)
            made._blobs[kind] = code
            return made

        found: PortableExecutable = compile_cache.cached(key, make)
        return found

    # --- loading.

    def load(self, devices: Sequence[Any]) -> LoadedExecutable:
        """The program bound to these devices, in this order; made once per list.

        Raises:
          MeshMismatchError: not as many devices as the program is for.
          CompileOnlyError: the devices stand for hardware that is not here.
          CompileError: the compiler refused the program.
        """
        devices = tuple(devices)
        found = self._loaded.get(devices)
        if found is not None:
            return found
        if len(devices) != self.num_devices:
            raise errors.MeshMismatchError(
                f"the program was compiled for {errors.counted(self.num_devices, 'device')} and cannot be loaded onto "
                f"{len(devices)}; call the function with arguments on a mesh of that size, which compiles a program "
                "for it"
            )
        hardware = backend.elsewhere(devices)
        if hardware is not None:
            raise errors.CompileOnlyError(
                f"the devices {devices[0]}, ... stand for {hardware.spec}, which is not here to run a program; "
                "jit(f).lower(...).compile() compiles for them"
            )
        with self._lock:
            found = self._loaded.get(devices)
            if found is None:
                calls = Calls(self.host_callbacks, devices)
                found = self._loaded[devices] = LoadedExecutable(self, self._bind(devices, calls), devices, calls)
                if len(self._loaded) > KEPT_DEVICE_SETS:
                    del self._loaded[next(iter(self._loaded))]
        return found

    def _bind(self, devices: tuple[Any, ...], calls: Calls) -> Any:
        kind = _kind(devices)
        prepare_kernels(self.platform, self.module or self._blobs.get(kind, b""))
        if not (self.host_callbacks or kind in self._first or kind in self._blobs):
            offered = offers.bound(self, kind, devices, self._options(devices))
            if offered is not None:
                bound, self._blobs[kind] = offered
                return bound
        if kind in self._first or kind in self._blobs:
            try:
                bound = deserialize(self.platform, self._blob(kind), devices, self._options(devices), calls.functions())
            except jaxlib_api.XlaError as e:
                if not self.module:
                    raise self._no_module(f"the runtime refuses its code: {e}") from e
                _log.warning(
                    "program %s cannot move to other devices (%s); it is compiled again", self.fingerprint[:12], e
                )
            else:
                events.record("rebind", program=self, devices=devices)
                return bound
        if not self.module:
            raise self._no_module(f"it was compiled for other devices than {list(devices)}")
        with events.timed("compile", f"jit({self.name})"):
            bound = self._made(kind, devices, calls)
        self._first[kind] = bound
        return bound

    def _no_module(self, why: str) -> errors.IncompatibleProgramError:
        return errors.IncompatibleProgramError(
            f"the program {self.name} from a file cannot be loaded: {why}. A file holds compiled code only; compile "
            "the function here and save it again"
        )

    def _made(self, kind: str, devices: tuple[Any, ...], calls: Calls) -> Any:
        """Loaded from the disk, else compiled and stored there."""
        if self.host_callbacks or not compile_cache.on_disk():
            return self._compile(devices, calls)[0]
        decided = jaxlib_api.options_fingerprint(self.mode, self.shardy, self.xla_options, self.ynnpack)
        content = compile_cache.content(self.module)
        key = f"{compile_cache.fingerprint(content, str(self.num_devices), decided, kind)}.xla"
        bound = self._from_disk(key, kind, devices)
        if bound is not None:
            return bound
        if self.platform != "cpu" and len({d.process_index for d in devices}) > 1:
            # Compilers for accelerators may wait for those of other processes, so none waits for a lock; one writes.
            bound, seconds = self._compile(devices, calls)
            if devices[0].process_index == devices[0].client.process_index():
                self._to_disk(key, bound, kind, seconds)
            return bound
        with process_groups.compiling(self.name), compile_cache.making(key) as waited:
            bound = self._from_disk(key, kind, devices) if waited else None
            if bound is None:
                bound, seconds = self._compile(devices, calls)
                self._to_disk(key, bound, kind, seconds)
            return bound

    def _options(self, devices: tuple[Any, ...], ynnpack: str = "all") -> Any:
        return jaxlib_api.compile_options(
            devices, mode=self.mode, shardy=self.shardy, xla_options=self.xla_options, ynnpack=ynnpack
        )

    def _compile(self, devices: tuple[Any, ...], calls: Calls) -> tuple[Any, float]:
        """The program, compiled and loaded, and the seconds that took."""
        from meshrt.lowering.legalize import legalize  # start-up time: programs from the disk cross no boundary

        started = time.perf_counter()
        options = self._options(devices, self.ynnpack)
        module = legalize(self.module, backend.capabilities(self.platform))
        with process_groups.compiling(self.name):
            compiled = jaxlib_api.compile_and_load(module, devices, options, calls.functions())
        seconds = time.perf_counter() - started
        events.record("compile", program=self, seconds=seconds)
        level = events.log_level()
        if _log.isEnabledFor(level):
            what = (self.name, seconds, self.fingerprint[:12], self.num_devices)
            _log.log(level, "Finished XLA compilation of jit(%s) in %.9f sec: program %s for %d devices", *what)
        return compiled, seconds

    def _from_disk(self, key: str, kind: str, devices: tuple[Any, ...]) -> Any | None:
        blob = compile_cache.load_entry(key)
        if blob is None:
            return None
        try:
            bound = deserialize(self.platform, blob, devices, self._options(devices))
        except jaxlib_api.XlaError as e:
            compile_cache.discard_entry(key, str(e))
            return None
        self._blobs[kind] = blob
        return bound

    def _to_disk(self, key: str, compiled: Any, kind: str, seconds: float) -> None:
        try:
            blob = self._blobs[kind] = jaxlib_api.serialize(compiled)
        except jaxlib_api.XlaError as e:
            _log.warning("program %s cannot be stored (%s)", self.fingerprint[:12], e)
            return
        compile_cache.store_entry(key, blob, seconds=seconds, program=self.name, platform=self.platform)

    def _blob(self, kind: str) -> bytes:
        blob = self._blobs.get(kind)
        if blob is None:
            blob = self._blobs[kind] = jaxlib_api.serialize(self._first[kind])
        return blob

    def forget_devices(self) -> None:
        """Drops everything that holds devices; the serialised code stays if it had been made."""
        with self._lock:
            self._loaded.clear()
            self._first.clear()

    # --- asking.

    def executable(self) -> Any:
        """jaxlib's executable, on the first devices of the platform if none is loaded yet."""
        for loaded in list(self._loaded.values()):
            return loaded.executable
        devices = backend.devices(self.platform)
        if len(devices) < self.num_devices:
            raise errors.BackendError(
                f"the program is for {errors.counted(self.num_devices, f'{self.platform} device')}, but there are "
                f"{len(devices)}; set meshrt.config.update('num_cpu_devices', {self.num_devices}) at the start, or "
                "compile on a machine that has them"
            )
        return self.load(devices[: self.num_devices]).executable

    def first_devices(self) -> tuple[Any, ...]:
        """Devices that the program is loaded on; the first ones of the platform if it is on none."""
        self.executable()
        return next(iter(self._loaded))

    def serialize(self) -> bytes:
        """The compiled code. To be loaded only by the user who made it: it is machine code."""
        return self._blob(_kind(self.first_devices()))

    def offer_key(self) -> str:
        """Under which the compiled code is offered to equal programs: see `meshrt.runtime.offers`."""
        return offers.key_of(self, _kind(self.first_devices()))

    def memory_analysis(self) -> CompiledMemoryStats:
        """The compiler's memory figures, in bytes per device."""
        return memory_stats_of(self.executable())

    def cost_analysis(self) -> dict[str, float]:
        """The compiler's estimates per device: `flops`, `bytes accessed`, ..."""
        return jaxlib_executables.cost_analysis(self.executable())

    def hlo_text(self) -> str:
        """The optimised HLO of one device."""
        return jaxlib_executables.hlo_text(self.executable())

    def __repr__(self) -> str:
        devices = errors.counted(self.num_devices, f"{self.platform} device")
        return f"PortableExecutable({self.fingerprint[:12]}, {devices}, {self.mode})"


def _kind(devices: tuple[Any, ...]) -> str:
    """What devices must share for compiled code to move between them: compiler, hardware, division into processes."""
    first: dict[int, int] = {}
    processes = [first.setdefault(d.process_index, len(first)) for d in devices]
    groups = "" if len(first) == 1 else str(processes)
    return f"{compile_cache.compiler_fingerprint(devices[0])}\n{groups}"


def _forget_devices() -> None:
    with _alive_lock:
        programs = list(_alive)
    for program in programs:
        program.forget_devices()


backend.on_clear(_forget_devices)


# ----------------------------------------------------------------------------------------------------------
# Running.


class LoadedExecutable:
    """A program bound to devices.

    `execute_sharded` is jaxlib's own method, for hot paths; `runner(handlers)` adds the bound on pending executions.
    """

    __slots__ = ("__weakref__", "_shared", "calls", "circle", "devices", "executable", "execute_sharded", "flight",
                 "portable")  # fmt: skip

    def __init__(self, portable: PortableExecutable, executable: Any, devices: tuple[Any, ...], calls: Calls):
        self.portable, self.executable, self.devices, self.calls = portable, executable, devices, calls
        self.execute_sharded = executable.execute_sharded
        self.flight = flight_of(devices)
        self.circle = process_groups.circle_of(devices)
        self._shared: process_groups.Shared | None = None

    @property
    def bare(self) -> Callable[[Sequence[Any]], Any] | None:
        """jaxlib's launch, where it is all that a launch takes: on one device, with no callbacks. None elsewhere."""
        return self.execute_sharded if self.flight is None and not self.calls.callbacks else None

    def runner(self, handlers: list[Any]) -> Callable[[Sequence[Any]], list[Any]]:
        """`run(buffers) -> buffers` with everything that can be prepared done; `handlers` make the results' buffers."""
        if self.circle is not None:
            run = _shared_runner(self, handlers, self.circle)
        elif self.calls.callbacks:
            return _awaiting_runner(self.execute_sharded, handlers, self.calls)
        else:
            run = _runner(self.execute_sharded, handlers, self.flight)
        # Only calls that are made ready inside of callbacks are looked at: others shall not pay for it.
        return run if len(self.devices) == 1 or busy_devices() is None else _refusing_runner(run, self.devices)

    @property
    def shared(self) -> process_groups.Shared:
        """The program as it is described to the other processes that run it."""
        if self._shared is None:
            self._shared = process_groups.Shared(self.portable, self.devices)
        return self._shared

    def layouts(self) -> tuple[list[Layout], list[Layout]]:
        """How the arguments and the results of one device lie in its memory.

        UnsupportedError where the platform does not tell.
        """
        try:
            return read_layouts(self.executable)
        except jaxlib_api.XlaError as e:
            raise errors.UnsupportedError(
                f"the runtime of {self.portable.platform} does not tell the layouts of a program's arguments and "
                f"results ({e}); its shardings are in input_shardings and output_shardings, and as_text() has layouts"
            ) from None

    def __repr__(self) -> str:
        return f"LoadedExecutable({self.portable.fingerprint[:12]} on {[d.id for d in self.devices]})"


def read_layouts(executable: Any) -> tuple[list[Layout], list[Layout]]:
    """How arguments and results of one of jaxlib's executables lie in a device's memory. XlaError if nothing tells."""
    found = jaxlib_executables.parameter_layouts(executable), jaxlib_executables.output_layouts(executable)
    args, outs = ([Layout(minor[::-1], tiling, bits) for minor, tiling, bits in layouts] for layouts in found)
    return args, outs


def _runner(execute: Callable, handlers: list[Any], flight: Any) -> Callable[[Sequence[Any]], list[Any]]:
    if flight is None:
        return lambda buffers: execute(buffers).consume_with_handlers(handlers)

    due, add = flight.due, flight.add

    def run_many(buffers: Sequence[Any]) -> list[Any]:
        if not due():
            return execute(buffers).consume_with_handlers(handlers)
        results = execute(buffers, with_tokens=True)
        token = results.consume_token()
        out = results.consume_with_handlers(handlers)
        add(token)
        return out

    return run_many


def _shared_runner(
    loaded: LoadedExecutable, handlers: list[Any], circle: process_groups.Circle
) -> Callable[[Sequence[Any]], list[Any]]:
    """For programs of several processes, which agree on each before its first launch, and are watched."""
    execute, flight, calls = loaded.execute_sharded, loaded.flight, loaded.calls
    assert flight is not None  # of several devices
    due, add = flight.due, flight.add

    def run_together(buffers: Sequence[Any]) -> list[Any]:
        circle.enter(loaded.shared)
        if calls.callbacks:
            with calls.execution():
                results, token = circle.launch(execute, buffers)
                out = results.consume_with_handlers(handlers)
                token.block_until_ready()
            return out
        results, token = circle.launch(execute, buffers)
        out = results.consume_with_handlers(handlers)
        if due():
            add(token)
        return out

    return run_together


def _awaiting_runner(execute: Callable, handlers: list[Any], calls: Calls) -> Callable[[Sequence[Any]], list[Any]]:
    """For programs with callbacks, whose errors belong to the call that ran them."""

    def run(buffers: Sequence[Any]) -> list[Any]:
        with calls.execution():
            results = execute(buffers, with_tokens=True)
            token = results.consume_token()
            out = results.consume_with_handlers(handlers)
            token.block_until_ready()
        return out

    return run


def _refusing_runner(
    run: Callable[[Sequence[Any]], list[Any]], devices: tuple[Any, ...]
) -> Callable[[Sequence[Any]], list[Any]]:
    """For programs of several devices that callbacks run: those devices may be waiting for the callback."""

    def run_unless_busy(buffers: Sequence[Any]) -> list[Any]:
        busy = (busy_devices() or frozenset()).intersection(devices)
        if len(busy) > 1:
            raise errors.ExecutionError(
                f"a callback runs a program on the {len(devices)} devices {[d.id for d in devices]}, of which "
                f"{sorted(d.id for d in busy)} wait for the callback in the program that called it: neither could ever "
                "end. Compute on one device in callbacks (a value that a callback gets is on one), or with NumPy"
            )
        return run(buffers)

    return run_unless_busy
