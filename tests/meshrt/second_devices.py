"""Programs that are run on one set of devices and then on another: the rows of the table of what that costs.

A row is a function that makes `call(mesh)`: it runs one jitted function on a mesh of 4 devices. Run as a script,
`python -m tests.meshrt.second_devices DIRECTORY ORDER` runs every row on the devices of ORDER with the directory of
compiled programs, and prints what was counted and the results' digests as JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np

import meshrt
import meshrt.numpy as jnp
from meshrt.runtime import events
from meshrt.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from meshrt.sharding import PartitionSpec as P

KINDS = ("trace", "lower", "propagate", "partition", "compile", "rebind")
ORDERS = {"disjoint": (4, 5, 6, 7), "permuted": (3, 2, 1, 0), "strided": (0, 2, 4, 6)}
FIRST = (0, 1, 2, 3)
ABSTRACT = AbstractMesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
constrain = meshrt.lax.with_sharding_constraint


def mesh_of(order):
    devices = meshrt.devices()
    return Mesh(np.array([devices[i] for i in order]).reshape(2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def host():
    w = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    x = np.linspace(0, 2, 32, dtype=np.float32).reshape(4, 8)
    return w, x


def placed(mesh):
    w, x = host()
    put = lambda a, *spec: meshrt.device_put(a, NamedSharding(mesh, P(*spec)))
    return put(w, None, "y"), put(x, "x", None)


def layer(w, x):
    return jnp.tanh(x @ w) + 1.0


def train(w, x):
    loss, gradient = meshrt.value_and_grad(lambda w: jnp.mean(layer(w, x) ** 2))(w)
    return w - 0.1 * gradient, loss


def constrained(to):
    return lambda w, x: jnp.sum(constrain(layer(w, x), to) * 3.0, axis=0)


def loop(w, x):
    return meshrt.lax.scan(lambda c, _: (layer(w, c), jnp.sum(c)), x, None, length=3)


def on_arguments(fun, **options):
    """Devices come from the arguments."""
    f = meshrt.jit(fun, **options)
    return lambda mesh: f(*placed(mesh))


def under(context, fun, **options):
    """Devices come from the mesh in context: `context(mesh)` enters it; the arguments are NumPy arrays."""
    f = meshrt.jit(fun, **options)

    def call(mesh):
        with context(mesh):
            return f(*host())

    return call


def explicit(mesh):
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * 2)


def on_explicit(fun, **options):
    """The arguments' types say how they are split."""
    call = on_arguments(fun, **options)
    return lambda mesh: call(explicit(mesh))


def under_explicit(fun):
    call = under(meshrt.set_mesh, fun)
    return lambda mesh: call(explicit(mesh))


def mapped(mesh=None):
    """A body per device, over `mesh` or the one in context."""
    body = lambda w, x: meshrt.lax.psum(jnp.tanh(x) @ w, "y")
    specs = {"in_specs": (P("y", None), P("x", "y")), "out_specs": P("x", None)}
    return meshrt.shard_map(body, mesh=mesh, **specs)


def legacy(mesh):
    return mesh


def a_device_of(mesh):
    return meshrt.default_device(mesh.devices.flat[0])


SPECS = {"in_shardings": (P(None, "y"), P("x")), "out_shardings": P("x", "y")}
ROWS = {
    "arguments": lambda: on_arguments(layer),
    "gradients": lambda: on_arguments(train),
    "gradients, donated": lambda: on_arguments(train, donate_argnums=0),
    "loop": lambda: on_arguments(loop),
    "constraint over an abstract mesh": lambda: on_arguments(constrained(NamedSharding(ABSTRACT, P("x", "y")))),
    "out_shardings over an abstract mesh": lambda: on_arguments(
        layer, out_shardings=NamedSharding(ABSTRACT, P(None, "x"))
    ),
    "set_mesh": lambda: under(meshrt.set_mesh, layer),
    "set_mesh, constraint": lambda: under(meshrt.set_mesh, constrained(P("x", "y"))),
    "set_mesh, shardings": lambda: under(meshrt.set_mesh, layer, **SPECS),
    "with mesh": lambda: under(legacy, layer),
    "with mesh, constraint": lambda: under(legacy, constrained(P("x", "y"))),
    "with mesh, shardings": lambda: under(legacy, train, in_shardings=SPECS["in_shardings"]),
    "Explicit axes": lambda: on_explicit(train),
    "Explicit axes, set_mesh": lambda: under_explicit(lambda w, x: layer(w, meshrt.reshard(x, P("x", None)))),
    "shard_map over an abstract mesh": lambda: on_arguments(mapped(ABSTRACT)),
    "shard_map, gradients": lambda: on_arguments(meshrt.grad(lambda w, x: jnp.sum(mapped(ABSTRACT)(w, x) ** 2))),
    "set_mesh, shard_map": lambda: under(meshrt.set_mesh, lambda w, x: mapped()(w, x)),
    "with mesh, shard_map": lambda: under(legacy, lambda w, x: mapped()(w, x)),
    "default_device": lambda: under(a_device_of, train),
}


def arrays(results):
    return [np.asarray(leaf) for leaf in meshrt.tree.leaves(results)]


def main(directory, order):
    meshrt.config.update("compilation_cache_dir", directory)
    mesh, out = mesh_of(order), {}
    for name, row in ROWS.items():
        call = row()
        with events.count() as n:
            results = arrays(call(mesh))
        digest = hashlib.sha256(b"".join(r.tobytes() for r in results)).hexdigest()
        out[name] = {**{k: n[k] for k in (*KINDS, "persistent_hit", "persistent_miss")}, "digest": digest}
    print(json.dumps(out))


if __name__ == "__main__":
    main(sys.argv[1], [int(i) for i in sys.argv[2].split(",")])
