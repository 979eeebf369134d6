"""What `jit(f).trace`, `.lower` and `.compile` give, under JAX's names; see `meshrt.pipeline`."""

from meshrt.pipeline.compiled import Compiled
from meshrt.pipeline.lowered import Lowered
from meshrt.pipeline.partitioned import Partitioned
from meshrt.pipeline.propagated import Propagated
from meshrt.pipeline.station import ArgInfo
from meshrt.pipeline.traced import Traced

__all__ = ["ArgInfo", "Compiled", "Lowered", "Partitioned", "Propagated", "Traced"]
