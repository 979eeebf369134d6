"""meshrt and JAX in one process, in either order; meshrt alone does not import jax although it is installed."""

import subprocess
import sys

import pytest

OURS = """
import numpy as np
import meshrt, meshrt.numpy as jnp
from meshrt.sharding import AxisType, NamedSharding, PartitionSpec as P, make_mesh
def ours():
    mesh = make_mesh((4, 2), ("x", "y"), AxisType.Auto)
    x = meshrt.device_put(np.arange(64.0, dtype=np.float32).reshape(8, 8), NamedSharding(mesh, P("x", "y")))
    y = meshrt.jit(lambda a: a @ a.T + 1)(x)
    assert np.allclose(np.asarray(y), np.asarray(x) @ np.asarray(x).T + 1)
    g = meshrt.grad(lambda a: (jnp.sin(a) ** 2).sum())(x)
    assert np.allclose(np.asarray(g), np.sin(2 * np.asarray(x)), atol=1e-5)
    repr(x), x.tolist(), x.addressable_shards[3].data.block_until_ready(), x.copy_to_host_async(), x.is_ready()
    x.on_device_size_in_bytes(), meshrt.device_get(x), x[0], float(x[0, 1])
    meshrt.device_put(x, NamedSharding(mesh, P("y"))), x.delete()
    meshrt.tree.map(lambda a: a, {"a": (1, 2)}), np.from_dlpack(meshrt.device_put(np.ones(3, np.float32)))
    meshrt.device_put(np.ones(3, np.float32)).unsafe_buffer_pointer()
"""
THEIRS = """
import jax, jax.numpy as xnp
def theirs():
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", "y"))
    x = jax.device_put(xnp.arange(64.0).reshape(8, 8), sharding)
    y = jax.jit(lambda a: a @ a.T + 1)(x)
    assert np.allclose(y, np.asarray(x) @ np.asarray(x).T + 1)
    piece = x.addressable_shards[5].data
    assert piece.aval.shape == (2, 4) and jax.jit(lambda a: a + 1)(piece).shape == (2, 4) and "Array" in repr(piece)
    assert np.allclose(jax.grad(lambda a: (xnp.sin(a) ** 2).sum())(x), np.sin(2 * np.asarray(x)), atol=1e-5)
    assert jax.config.jax_enable_x64 is False and xnp.ones(2).dtype == xnp.float32
"""


def python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    "code",
    [
        OURS
        + "ours()\nimport sys\nassert 'jax' not in sys.modules, 'imported jax'\n"
        + THEIRS
        + "theirs(); ours(); theirs()",
        "import numpy as np\n" + THEIRS + "theirs()\n" + OURS + "ours(); theirs(); ours()",
        "import numpy as np\n" + OURS + THEIRS + "theirs(); ours(); theirs()",
        OURS + "meshrt.config.update('enable_x64', True)\nassert jnp.ones(2).dtype == np.float64\nours_x64 = True\n"
        "meshrt.config.update('enable_x64', False)\n" + THEIRS + "theirs()",
    ],
    ids=["ours-first", "theirs-first", "interleaved", "x64"],
)
def test_b19_both_work_and_jax_stays_out_unless_imported(code):
    python(code)


def test_clear_backends_and_more_devices():
    python(
        OURS
        + """
import gc
ours()
meshrt.clear_backends()
gc.collect()
meshrt.config.update("num_cpu_devices", 16)
assert len(meshrt.devices()) == 16
ours()
assert make_mesh((16,), ("x",)).size == 16
"""
    )
