"""Which modules there are under JAX's names.

`jax.X` is found, in this order: where `ELSEWHERE` says; at `meshrt.compat.layer.X`; at `meshrt.X`, if JAX has a
public module of that name. Around that stand the names of `internal_names.TABLES`. Public and internal modules that
meshrt lacks can be imported and are empty (`meshrt.compat.absent`).
"""

from __future__ import annotations

__all__ = ["ELSEWHERE", "VERSION", "VERSION_INFO", "holds_others", "is_public", "public_modules"]

# The version of JAX whose interface meshrt follows.
VERSION_INFO = (0, 10, 2)
VERSION = ".".join(map(str, VERSION_INFO))

_NAMES = """
    ad_checkpoint api_util cloud_tpu_init collect_profile config core custom_batching custom_derivatives debug
    distributed dlpack dtypes errors example_libraries example_libraries.optimizers example_libraries.stax experimental
    export extend ffi flatten_util image interpreters lax lax.linalg lib memory monitoring nn nn.initializers numpy
    numpy.fft numpy.linalg ops profiler random ref scipy sharding stages test_util tree tree_util typing version
    extend.backend extend.core extend.core.primitives extend.ifrt_programs extend.linear_util extend.lowering
    extend.mlir extend.pallas extend.random extend.sharding extend.source_info_util extend.xla
    interpreters.ad interpreters.batching interpreters.mlir interpreters.partial_eval interpreters.pxla interpreters.xla
    scipy.cluster scipy.cluster.vq scipy.fft scipy.integrate scipy.interpolate scipy.linalg scipy.ndimage
    scipy.optimize scipy.signal scipy.sparse scipy.sparse.linalg scipy.spatial scipy.spatial.transform scipy.special
    scipy.stats
"""
_PUBLIC = frozenset(_NAMES.split())
# All that stands below these is public too.
_WHOLE = ("scipy.stats.", "extend.mlir.")

# What stands in jax.experimental, with all below it. Scripts tell versions of JAX by what is no longer there.
_EXPERIMENTAL = """
    array_serialization buffer_callback checkify colocated_python compilation_cache compute_on control_deps
    custom_partitioning fused hijax jax2tf jet key_reuse layout mesh_utils mosaic multihost_utils ode pallas pjit
    profiler random rnn roofline scheduling_groups serialize_executable shard_alike shard_map source_mapper sparse
    topologies transfer xla_metadata
"""
_EXPERIMENTAL_MODULES = frozenset(_EXPERIMENTAL.split())

# Internal modules of JAX's all of whose names that libraries use stand in one module of meshrt's.
ELSEWHERE: dict[str, str] = {
    "experimental.colocated_python.serialization": "meshrt.compat.layer.colocated_serialization",
    "interpreters.pxla": "meshrt.compat.layer.pxla",
    "extend.ifrt_programs": "meshrt.compat.layer.ifrt_programs",
    "experimental.sparse.test_util": "meshrt.compat.layer._src.sparse_test_util",
    "experimental.sparse._base": "meshrt.experimental.sparse.arrays",
    "experimental.key_reuse._core": "meshrt.experimental.key_reuse",
    "_src.ad_checkpoint": "meshrt.ad_checkpoint",
    "_src.api": "meshrt",
    "_src.api_util": "meshrt.compat.layer.api_util",
    "_src.basearray": "meshrt.compat.layer._src.typing",
    "_src.callback": "meshrt.primitives.callback",
    "_src.compilation_cache": "meshrt.experimental.compilation_cache.compilation_cache",
    "_src.compute_on": "meshrt.experimental.compute_on",
    "_src.custom_batching": "meshrt.custom_batching",
    "_src.custom_derivatives": "meshrt.custom_derivatives",
    "_src.custom_partitioning": "meshrt.experimental.custom_partitioning",
    "_src.debugging": "meshrt.debug",
    "_src.dlpack": "meshrt.dlpack",
    "_src.effects": "meshrt.core.effects",
    "_src.errors": "meshrt.errors",
    "_src.export._export": "meshrt.export",
    "_src.export.shape_poly": "meshrt.export",
    "_src.ffi": "meshrt.ffi",
    "_src.flatten_util": "meshrt.flatten_util",
    "_src.hijax": "meshrt.experimental.hijax",
    "_src.image.scale": "meshrt.image",
    "_src.interpreters.ad": "meshrt.interpreters.ad",
    "_src.interpreters.batching": "meshrt.interpreters.batching",
    "_src.interpreters.mlir": "meshrt.interpreters.mlir",
    "_src.interpreters.partial_eval": "meshrt.interpreters.partial_eval",
    "_src.interpreters.pxla": "meshrt.compat.layer.pxla",
    "_src.lax.lax": "meshrt.lax",
    "_src.lax.linalg": "meshrt.lax.linalg",
    "_src.layout": "meshrt.experimental.layout",
    "_src.linear_util": "meshrt.extend.linear_util",
    "_src.mesh_utils": "meshrt.experimental.mesh_utils",
    "_src.memory": "meshrt.memory",
    "_src.monitoring": "meshrt.monitoring",
    "_src.named_sharding": "meshrt.sharding",
    "_src.nn.functions": "meshrt.nn",
    "_src.nn.initializers": "meshrt.nn.initializers",
    "_src.numpy.fft": "meshrt.numpy.fft",
    "_src.numpy.lax_numpy": "meshrt.numpy",
    "_src.numpy.linalg": "meshrt.numpy.linalg",
    "_src.ops.scatter": "meshrt.ops",
    "_src.partition_spec": "meshrt.sharding",
    "_src.pjit": "meshrt.experimental.pjit",
    "_src.profiler": "meshrt.profiler",
    "_src.random": "meshrt.random",
    "_src.random.core": "meshrt.random",
    "_src.lax.control_flow.conditionals": "meshrt.lax",
    "_src.lax.control_flow.loops": "meshrt.lax",
    "_src.lax.control_flow.solves": "meshrt.lax",
    "_src.ref": "meshrt.ref",
    "_src.scipy.special": "meshrt.scipy.special",
    "_src.scipy.stats.norm": "meshrt.scipy.stats.norm",
    "_src.shard_map": "meshrt.experimental.shard_map",
    "_src.sharding": "meshrt.sharding",
    "_src.sharding_impls": "meshrt.sharding",
    "_src.source_info_util": "meshrt.extend.source_info_util",
    "_src.stages": "meshrt.stages",
    "_src.tree": "meshrt.tree",
    "_src.xla_metadata": "meshrt.experimental.xla_metadata",
    # MLIR's bindings are jaxlib's.
    "_src.lib.mlir.dialects.hlo": "jaxlib.mlir.dialects.stablehlo",
    "_src.lib.mlir.ir": "jaxlib.mlir.ir",
    "extend.mlir.ir": "jaxlib.mlir.ir",
    "extend.mlir.passmanager": "jaxlib.mlir.passmanager",
}
_DIALECTS = "arith builtin chlo func math memref mpmd scf sdy sparse_tensor stablehlo vector"
ELSEWHERE.update({f"extend.mlir.dialects.{name}": f"jaxlib.mlir.dialects.{name}" for name in _DIALECTS.split()})
# Where JAX has a file for each family of functions, all of whose public names stand in one module.
_LAX_FILES = "ann control_flow convolution fft other parallel slicing special utils windowed_reductions"
ELSEWHERE.update({f"_src.lax.{name}": "meshrt.lax" for name in _LAX_FILES.split()})
_NUMPY_FILES = (
    "array_creation array_methods einsum indexing polynomial reductions scalar_types setops sorting "
    "tensor_contractions ufunc_api ufuncs vectorize window_functions"
)
ELSEWHERE.update({f"_src.numpy.{name}": "meshrt.numpy" for name in _NUMPY_FILES.split()})
_SCIPY_FILES = "fft integrate linalg ndimage signal"
ELSEWHERE.update({f"_src.scipy.{name}": f"meshrt.scipy.{name}" for name in _SCIPY_FILES.split()})


def public_modules() -> frozenset[str]:
    """The public modules below `jax`, without those of `jax.experimental`."""
    return _PUBLIC


def is_public(name: str) -> bool:
    """Whether `jax.<name>` is a public module of JAX's; `name` is empty for jax itself."""
    first, _, rest = name.partition(".")
    if first == "experimental" and rest:
        return rest.partition(".")[0] in _EXPERIMENTAL_MODULES
    return not name or name in _PUBLIC or name.startswith(_WHOLE)


def holds_others(name: str) -> bool:
    """Whether `jax.<name>` is an internal package of which only modules inside it are here."""
    return any(known.startswith(f"{name}.") for known in ELSEWHERE)
