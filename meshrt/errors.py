"""Every error that meshrt raises on purpose, and its warnings. Each derives from `MeshrtError` and from the built-in
exception that fits; callers may catch either. A message names the argument path, the axis, the sizes or the source
line that matter, and a way to put it right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = [
    "ArgumentShapeError", "ArgumentTypeError", "ArgumentValueError", "AxisError", "BackendError", "CallbackError",
    "CheckpointBusyError", "CheckpointError", "CheckpointExistsError", "CheckpointMismatchError",
    "CheckpointNotFoundError", "CheckpointWriteError", "ClosedOverError", "CompileCacheError", "CompileError",
    "CompileOnlyError", "ConcretizationError", "ConfigError", "DamagedCheckpointError", "DeletedArrayError",
    "DeviceAssignmentMismatchError", "DeviceMemoryError", "DifferentiationError", "DistributedError",
    "DivergenceWarning", "DonationWarning", "DuplicateAxisError", "DuplicateSpecError", "ExchangeError",
    "ExecutionError", "ForkedProcessError", "ForwardModeError", "ImmutableError", "IncompatibleProgramError",
    "InconclusiveDimensionOperation", "IndivisibleError", "InspectError", "IntegerOverflowError", "InternalError",
    "JAXIndexError", "JAXTypeError", "JaxImportedError", "JaxRuntimeError", "JaxprTypeError", "KernelBoundsError",
    "KernelDeadlockError", "KernelError", "KernelRaceError", "KeyReuseError", "LeakedTracerError", "MemorySpaceError",
    "MeshContextError", "MeshError", "MeshMismatchError", "MeshrtError", "MissingCompilerError", "MissingFunctionError",
    "MissingRuleError", "MissingWaitError", "NonAddressableError", "NonConcreteBooleanIndexError", "NonFiniteError",
    "PeerLost", "PhysicalMeshError", "PlacementWarning", "ProcessFailureError", "ProcessesDisagreeError",
    "ProgramsDifferError", "RankMismatchError", "ReferenceOperandError", "ReplicationError", "ShardingError",
    "ShardingRuleError", "ShardingTypeError", "TargetError", "TracerArrayConversionError", "TracerBoolConversionError",
    "TracerIntegerConversionError", "TransferGuardError", "TreeError", "UnboundAxisError", "UninitializedReadError",
    "UnknownAxisError", "UnplacedReferenceError", "UnsolvableDimensionError", "UnsupportedByBackendError",
    "UnsupportedError",
]  # fmt: skip


class MeshrtError(Exception):
    """Root of meshrt's errors."""


class InternalError(MeshrtError, RuntimeError):
    """A broken promise inside meshrt; always a bug worth reporting."""


class UnsupportedError(MeshrtError, NotImplementedError):
    """The request makes sense, and meshrt cannot do it (yet)."""


class MissingFunctionError(MeshrtError, AttributeError, NotImplementedError):
    """A function of JAX's that meshrt does not have (yet)."""


def counted(count: int, what: str) -> str:
    """`1 device`, `8 devices`.

    >>> counted(1, "device"), counted(8, "cpu device"), counted(2, "entry")
    ('1 device', '8 cpu devices', '2 entries')
    """
    return f"1 {what}" if count == 1 else f"{count} {what[:-1]}ies" if what.endswith("ry") else f"{count} {what}s"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about a name that is not known: the nearest ones, or nothing if none is near.

    >>> did_you_mean("num_cpu_device", ["num_cpu_devices", "platforms"]), did_you_mean("x", ["platforms"])
    ('; did you mean num_cpu_devices?', '')
    """
    import difflib  # start-up time: for errors only

    close = ", ".join(difflib.get_close_matches(name, list(known), 3))
    return close and f"; did you mean {close}?"


def missing_name(module: str, name: str, known: Iterable[str]) -> MissingFunctionError:
    """The error for a name that a module does not have, with the nearest ones that it has."""
    hint = did_you_mean(name, known)
    return MissingFunctionError(f"module {module!r} has no attribute {name!r}: it is not implemented{hint}")


class JaxImportedError(MeshrtError, ImportError):
    """meshrt is to stand for JAX in a process that has imported JAX itself."""


class ConfigError(MeshrtError, ValueError):
    """An unknown setting, a value of the wrong kind, or a change that comes too late."""


class UnknownSettingError(ConfigError, AttributeError):
    """There is no setting of this name."""


class FrozenConfigError(ConfigError, RuntimeError):
    """A setting that can change no more is changed."""


class JAXTypeError(MeshrtError, TypeError):
    """What programs do with traced values, keys and the like that their types do not allow."""


class JAXIndexError(MeshrtError, IndexError):
    """An index that arrays of ours do not take."""


class NonConcreteBooleanIndexError(JAXIndexError):
    """A boolean index whose values are not known while tracing: the shape of the result depends on them."""


class KeyReuseError(JAXTypeError):
    """A random key is used a second time."""


class JaxprTypeError(MeshrtError, TypeError):
    """A Jaxpr that is not well formed: undefined variables, results of other types than its equations give."""


# --- meshes and shardings.


class MeshError(MeshrtError, ValueError):
    """A mesh that cannot be built or used as asked."""


class PhysicalMeshError(MeshError, AssertionError):
    """The coordinates of devices do not make up a box of chips."""


class MeshContextError(MeshError, RuntimeError):
    """A mesh context is missing, or set or read where it may not be."""


class MeshMismatchError(MeshError):
    """Two meshes (or device lists) that must agree do not."""


class DeviceAssignmentMismatchError(MeshMismatchError):
    """Arguments of one program live on different devices."""


class ShardingError(MeshrtError, ValueError):
    """A sharding that does not fit its mesh or its value."""


class UnplacedReferenceError(ShardingError):
    """How axes of type Auto split what a traced reference holds is not known."""


class MemorySpaceError(MeshrtError, ValueError):
    """Operands of one operation lie in different memories."""


class ShardingTypeError(ShardingError, TypeError):
    """Something that is not a sharding stands where one belongs."""


class ShardingAssertionError(ShardingError, AssertionError):
    """A value is not split as an assertion about it says."""


class UnknownAxisError(ShardingError):
    """A spec names an axis that its mesh does not have."""


class DuplicateAxisError(ShardingError):
    """A spec uses one mesh axis more than once."""


# JAX's name of it.
DuplicateSpecError = DuplicateAxisError


class RankMismatchError(ShardingError):
    """A spec has more entries than its value has dimensions."""


class ImmutableError(MeshrtError, AttributeError, RuntimeError):
    """A mesh, spec or sharding, which everything equal to it shares, or a ShapeDtypeStruct was to be changed."""


class ShardingRuleError(ShardingError):
    """A sharding rule that cannot be read, or that does not fit the operation it is for."""


class ReplicationError(ShardingError):
    """A result of a manual region may differ between devices that its spec says hold one value."""


class IndivisibleError(ShardingError):
    """A dimension does not divide into the shards asked for."""


# --- arrays and arguments.


class ArgumentTypeError(MeshrtError, TypeError):
    """An argument is not of a type that the function takes."""


class ArgumentValueError(MeshrtError, ValueError):
    """An argument has a right type and a wrong value."""


class ReferenceOperandError(ArgumentTypeError, ArgumentValueError):
    """A reference where an array is needed."""


class ArgumentShapeError(ArgumentTypeError, ArgumentValueError):
    """Shapes (or numbers and sizes of dimensions) that do not fit each other or the operation."""


class ComplexOperandError(ArgumentTypeError, ArgumentValueError):
    """Complex numbers where a function is of real ones."""


class UnknownListenerError(ArgumentValueError, AssertionError):
    """A function that is to stop listening and does not listen."""


class OddSizeError(ArgumentShapeError, AssertionError):
    """A dimension that is to be halved has an odd size."""


class UnboundAxisError(MeshrtError, NameError, ValueError):
    """A collective names an axis that no enclosing vmap or shard_map binds."""


class AxisError(MeshrtError, ValueError, IndexError):
    """A dimension number that the array does not have."""


class DifferentiationError(MeshrtError, ValueError):
    """A derivative that cannot be taken in the mode asked for."""


class ForwardModeError(DifferentiationError, TypeError):
    """Forward mode through a function that has only a rule for reverse mode."""


class MissingRuleError(MeshrtError, AttributeError):
    """A function with custom derivatives was called before its rule was defined."""


class InconclusiveDimensionOperation(MeshrtError, TypeError):
    """What was asked of a symbolic size of a dimension depends on the values of its variables."""


class UnsolvableDimensionError(MeshrtError, ValueError, KeyError):
    """A dimension variable whose value does not follow from the shapes of a program's arguments."""

    __str__ = Exception.__str__


class IntegerOverflowError(MeshrtError, OverflowError):
    """A Python int does not fit into the dtype that it is given."""


class TreeError(MeshrtError, ValueError):
    """Two pytrees that must agree do not: at `path`, if it is known, of entries `keys`, in what is called `title`."""

    path: str = ""
    keys: tuple[Any, ...] = ()
    title: str = ""


class TransposeError(TreeError, TypeError):
    """A pytree that is not one structure inside of another."""


class DeletedArrayError(MeshrtError, RuntimeError, ValueError):
    """An array is used after it was donated or deleted."""


class SeveralBuffersError(ArgumentValueError, RuntimeError):
    """An array on several devices is asked for its one buffer."""


class ExchangeError(MeshrtError, BufferError):
    """An array that cannot be handed to another library, or taken from one, as asked."""


class NonAddressableError(MeshrtError, RuntimeError):
    """The value (or part of it) lives on devices of another process."""


class LeakedTracerError(JAXTypeError):
    """A traced value is used outside the function call that it belongs to: `tracer`, where one is known."""

    def __init__(self, message: str, tracer: Any = None):
        super().__init__(message)
        self.tracer = tracer


class ClosedOverError(DifferentiationError, LeakedTracerError):
    """A function with custom derivatives closes over a value with respect to which it is differentiated."""


class ConcretizationError(JAXTypeError):
    """Python asks for the concrete value of a traced one."""


class TracerArrayConversionError(ConcretizationError):
    """NumPy asks for the elements of a traced array."""


class TracerBoolConversionError(ConcretizationError):
    """Python branches on a traced value."""


class TracerIntegerConversionError(ConcretizationError):
    """Python uses a traced value as an index."""


# --- running.


class JaxRuntimeError(MeshrtError, RuntimeError):
    """What a runtime or a compiler reports: a device that is not there, a program that does not compile or fails."""


class BackendError(JaxRuntimeError):
    """A platform cannot be started or has not the devices asked for."""


class ForkedProcessError(BackendError):
    """A process that was forked from one with devices uses them. The threads that serve them are not in the copy."""


class CompileError(JaxRuntimeError):
    """The compiler refused a program."""


class UnsupportedByBackendError(CompileError, UnsupportedError):
    """A program has an operation, custom call or element type that the compiler it is meant for does not take."""


class DeviceMemoryError(CompileError, MemoryError):
    """A program needs more memory per device than the device has."""


class ForbiddenExecutionError(MeshrtError, RuntimeError):
    """A program is to run where the setting `no_execution` forbids it."""


class DonatedTwiceError(JaxRuntimeError, ArgumentValueError):
    """A call donates an array that it is given twice."""


class MissingCompilerError(BackendError, ImportError):
    """The compiler for a kind of hardware comes in a package that is not installed."""


class CompileOnlyError(MeshrtError, RuntimeError):
    """A program that was compiled for hardware which is not here is asked to run."""


class ExecutionError(JaxRuntimeError):
    """A program failed while it ran."""


class CallbackError(ExecutionError):
    """A Python function that a program called back raised; `__cause__` is what it raised."""


class KernelError(ExecutionError):
    """A simulated kernel did what a chip does not allow; the message names its line."""


class KernelRaceError(KernelError):
    """Two cores or copies touch the same memory, and nothing says which comes first."""


class KernelBoundsError(KernelError, IndexError):
    """A kernel reads or writes beyond the end of a memory."""


class KernelDeadlockError(KernelError):
    """All cores of a kernel wait for signals that nobody will send."""


class UninitializedReadError(KernelError):
    """A kernel reads memory that nobody has written."""


class MissingWaitError(KernelError):
    """A kernel ends while a copy that it started is in flight, or a semaphore is not back at zero."""


class NonFiniteError(ExecutionError, FloatingPointError):
    """A program returned a NaN or an infinity, and the settings ask for that to be an error."""


class DivergenceWarning(UserWarning):
    """A collective in a branch or loop that devices choose by themselves: those that come to it may wait for ever."""


class DonationWarning(UserWarning):
    """A donated buffer that no result of the program can take over."""


class PlacementWarning(UserWarning):
    """An array is not where it was asked to be, because the devices are not there."""


class TransferGuardError(JaxRuntimeError):
    """A transfer between host and devices, or between devices, that `transfer_guard` forbids."""


class CompileCacheError(MeshrtError, RuntimeError):
    """The on-disk compilation cache cannot be trusted, or an entry of it cannot be read."""


class ProfilerError(MeshrtError, RuntimeError, ValueError):
    """A profile or its server is started twice, or ended without having been started."""


class RetraceError(MeshrtError, RuntimeError):
    """A function was to be traced more often than `jit(..., max_traces=N)` allows."""


class SavedProgramError(MeshrtError, ValueError):
    """A file of a compiled program is damaged, of another version, or not to be trusted; or one cannot be written."""


class IncompatibleProgramError(SavedProgramError):
    """A compiled program in a file is for other hardware, another compiler or other devices than there are."""


# --- checkpoints.


class CheckpointError(MeshrtError, ValueError):
    """A checkpoint cannot be written or read as asked; the message names its directory, and the leaf at fault."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """There is no (committed) checkpoint at a path, or none of the step asked for."""


class CheckpointExistsError(CheckpointError, FileExistsError):
    """A checkpoint is to be written where there is one. Checkpoints are never overwritten."""


class CheckpointBusyError(CheckpointError):
    """A checkpoint that is being read cannot be removed."""


class CheckpointWriteError(CheckpointError, OSError):
    """The file system did not take a checkpoint: it is full, read-only, not shared between the hosts, ..."""


class DamagedCheckpointError(CheckpointError):
    """The files of a checkpoint are not those that were committed: bytes differ, are missing, or make no sense."""


class CheckpointMismatchError(CheckpointError):
    """What is to be restored (paths, shapes, dtypes, shardings) is not what a checkpoint holds."""


class InspectError(MeshrtError, ValueError):
    """A question about a program (`meshrt inspect`, `Propagated.explain`) names nothing that can be read or shown."""


class TargetError(InspectError):
    """The program that a question is about is not there or cannot be read: whatever the mesh, there is no answer."""


class DistributedError(MeshrtError, RuntimeError):
    """The processes of a job cannot find each other or have lost each other."""


class PeerLost(DistributedError, ExecutionError):
    """Another process of the job is gone or never comes: programs that run together with it cannot.

    `processes` are the numbers of those that are lost, empty where only the broken connection is known, or the job's
    service is what was lost; `causes` says of each, where that is known, on which host it ran and what became of it.
    """

    def __init__(self, message: str, processes: Any = ()):
        super().__init__(message)
        self.processes = frozenset(p for p in processes if p >= 0)  # the service has no number of a process
        known = processes if isinstance(processes, Mapping) else {}
        self.causes: dict[int, str] = {process: known[process] for process in self.processes if process in known}


class ProgramsDifferError(DistributedError, ExecutionError):
    """Processes of a job were about to run different programs together."""


class ProcessFailureError(DistributedError):
    """Processes of a job failed inside `live_devices`; `failed_devices` are theirs."""

    def __init__(self, failed_devices: Any):
        self.failed_devices = set(failed_devices)
        ids = sorted(d.id for d in self.failed_devices)
        processes = sorted({d.process_index for d in self.failed_devices})
        super().__init__(f"Devices failed: {ids}, of processes {processes}. Go on with the next live_devices()")


class ProcessesDisagreeError(DistributedError, AssertionError):
    """Processes of a job hold different values where all must hold the same."""


# JAX's names, which scripts catch.
UnexpectedTracerError = LeakedTracerError
ConcretizationTypeError = ConcretizationError
