"""Errors of the partitioner. Each names the operation, its source line where known, and a way out."""

from __future__ import annotations

__all__ = [
    "WITH_XLA",
    "CollectivesError",
    "DeviceMemoryError",
    "FullGatherError",
    "GroupsError",
    "InputError",
    "MeshMismatchError",
    "OptionError",
    "ReshardError",
    "TopologyError",
    "UnreducedResultError",
    "UnsupportedOpError",
    "UnsupportedShardingError",
]

# The way out where a program runs that this partitioner does not split.
WITH_XLA = 'run the program with XLA\'s partitioner: meshrt.config.update("partitioner", "xla")'


class CollectivesError(Exception):
    """Base of everything this package raises on purpose. `where` is the user's source line, if known."""

    def __init__(self, message: str, where: str | None = None):
        super().__init__(f"{where}: {message}" if where else message)
        self.message = message
        self.where = where


class UnsupportedOpError(CollectivesError, NotImplementedError):
    """An operation for which no partitioning rule exists."""


class UnsupportedShardingError(CollectivesError, ValueError):
    """A sharding that does not fit its mesh, or that no device order can express."""


class MeshMismatchError(CollectivesError, ValueError):
    """Shardings of one program that speak of different meshes."""


class GroupsError(CollectivesError, ValueError):
    """A program's own collective whose groups are not groups of the mesh's devices, or do not fit its types."""


class ReshardError(CollectivesError, ValueError):
    """A reshard that has no plan, such as towards unreduced axes the source does not have."""


class UnreducedResultError(CollectivesError, ValueError):
    """A result of @main that is declared unreduced, although nobody said that the addends are added up elsewhere."""


class FullGatherError(CollectivesError, RuntimeError):
    """A tensor had to be gathered whole although `allow_full_gather=False`."""


class TopologyError(CollectivesError, ValueError):
    """A topology that cannot hold the mesh, or a topology file that cannot be read."""


class DeviceMemoryError(CollectivesError, MemoryError):
    """A program whose arguments and results alone, or those of one of its collectives, need more memory than a device
    has."""


class OptionError(CollectivesError, ValueError):
    """An option that does not exist, or with a value that it cannot have."""


class InputError(CollectivesError, TypeError):
    """What was given as a program is none."""
