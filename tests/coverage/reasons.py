"""The modules that are compared, and what is known of names that are meant to be different or absent."""

from __future__ import annotations

MODULES = (
    "jax", "jax.numpy", "jax.numpy.linalg", "jax.numpy.fft", "jax.lax", "jax.lax.linalg", "jax.random", "jax.nn",
    "jax.nn.initializers", "jax.ops", "jax.image", "jax.scipy.special", "jax.scipy.stats", "jax.scipy.linalg",
    "jax.scipy.signal", "jax.scipy.fft", "jax.scipy.ndimage", "jax.scipy.integrate", "jax.scipy.interpolate",
    "jax.scipy.optimize", "jax.scipy.cluster.vq", "jax.scipy.sparse.linalg", "jax.scipy.spatial.transform", "jax.tree",
    "jax.tree_util", "jax.flatten_util", "jax.sharding", "jax.stages", "jax.debug", "jax.errors", "jax.dtypes",
    "jax.dlpack", "jax.typing", "jax.ffi", "jax.ref", "jax.ad_checkpoint", "jax.custom_batching",
    "jax.custom_derivatives", "jax.export", "jax.profiler", "jax.monitoring", "jax.test_util",
    "jax.distributed", "jax.extend.core", "jax.extend.core.primitives", "jax.extend.random", "jax.extend.backend",
    "jax.extend.linear_util", "jax.experimental.checkify", "jax.experimental.compilation_cache.compilation_cache",
    "jax.experimental.compute_on", "jax.experimental.hijax",
    "jax.experimental.jet", "jax.experimental.layout", "jax.experimental.mesh_utils",
    "jax.experimental.multihost_utils", "jax.experimental.ode", "jax.experimental.pjit", "jax.experimental.random",
    "jax.experimental.rnn", "jax.experimental.shard_map",
    "jax.experimental.serialize_executable", "jax.experimental.sparse", "jax.experimental.topologies",
    "jax.experimental.custom_partitioning", "jax.experimental.xla_metadata",
)  # fmt: skip

# module.name -> (kind, why)
REASONS: dict[str, tuple[str, str]] = {
    "jax.jax2tf_associative_scan_reductions": ("not planned", "meshrt writes no TensorFlow programs"),
    "jax.make_mesh": ("equal", "and takes `dcn_axes=`, for several slices"),
}
