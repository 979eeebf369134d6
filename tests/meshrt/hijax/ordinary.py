"""Programs without high types, run in a process that has none, or beside some: `python -m tests.meshrt.hijax.ordinary`
prints what they are, what they give, and how many calls of functions tracing takes."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys

import numpy as np

import meshrt
import meshrt.numpy as jnp
from meshrt import lax
from meshrt.demo.model import LanguageModel, ModelConfig
from meshrt.sharding import AxisType

# What there is for high types alone.
MACHINERY = (
    "core/high.py", "core/lojax.py", "core/low.py", "core/basic/parts.py", "transforms/high.py",
    "transforms/high_derivatives.py", "transforms/run_again.py",
    "primitives/control_high.py", "pipeline/box_contents.py",
)  # fmt: skip


def programs():
    """Functions of one array, over all that takes functions."""
    loop = lambda x: lax.scan(lambda c, _: (meshrt.jit(jnp.sin)(c), c.sum()), x, None, length=3)
    count = lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, x)
    choose = lambda x: lax.cond(x[0] > 0, jnp.cos, jnp.sin, x)
    own = meshrt.custom_vjp(lambda x: x * x)
    own.defvjp(lambda x: (x * x, x), lambda x, ct: (3 * ct * x,))
    forward = meshrt.custom_jvp(jnp.exp)
    forward.defjvp(lambda p, t: (jnp.exp(*p), 2 * t[0]))

    def refs(x):
        r = meshrt.new_ref(x)
        r[1:] += r[:-1]
        return r[...]

    mesh = meshrt.make_mesh((1,), ("x",), (AxisType.Auto,))
    parts = meshrt.shard_map(jnp.tanh, mesh=mesh, in_specs=meshrt.P("x"), out_specs=meshrt.P("x"))
    plain = {"scan": lambda x: loop(x)[1], "while": count, "cond": choose, "vjp": own, "jvp": forward, "refs": refs,
             "shard_map": parts, "remat": meshrt.checkpoint(lambda x: jnp.sin(jnp.sin(x)))}  # fmt: skip
    derived = {f"grad of {k}": meshrt.grad(lambda x, f=f: f(x).sum()) for k, f in plain.items() if k != "while"}
    mapped = {f"vmap of {k}": (lambda x, f=f: meshrt.vmap(f)(jnp.stack([x, 2 * x]))) for k, f in plain.items()}
    return plain | derived | mapped


def described():
    """By name what each program is and gives."""
    x, out = np.linspace(0.1, 1, 3, dtype=np.float32), {}
    for name, f in programs().items():
        closed, lowered = meshrt.make_jaxpr(f)(x), meshrt.jit(f).lower(x)
        text = hashlib.sha256(lowered.as_text().encode()).hexdigest()
        out[name] = [str(closed), text, np.asarray(lowered.compile()(x)).tolist()]
    return out


def calls(layers=12):
    """How many calls of Python functions tracing the training step of a model takes, and how many of them are of what
    serves high types alone."""
    sizes = {"layers": layers, "width": 32, "heads": 2, "hidden": 64, "context": 8, "batch": 2}
    model = LanguageModel(meshrt, ModelConfig(**sizes, unrolled=True))
    mesh = meshrt.make_mesh((1, 1), ("data", "model"), (AxisType.Auto,) * 2)
    trace = lambda: meshrt.make_jaxpr(lambda *args: model.step(*args))(*model.example_arguments(mesh))
    with meshrt.set_mesh(mesh):
        trace()  # what is made once
        return _counted(trace)


def _counted(run):
    places = tuple(os.path.join(os.path.dirname(meshrt.__file__), *f.split("/")) for f in MACHINERY)
    folder = os.path.join(os.path.dirname(meshrt.__file__), "experimental", "hijax")
    found = [0, 0]

    def count(frame, event, arg):
        if event == "call":
            found[0] += 1
            name = frame.f_code.co_filename
            found[1] += name in places or name.startswith(folder)

    gc.collect()
    gc.disable()  # what it calls when it frees what was made before is not of this run
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
        gc.enable()
    return found


if __name__ == "__main__":
    found = {"programs": described(), "calls": calls()}
    assert not any(name.startswith("meshrt.experimental.hijax") for name in sys.modules), "a process without high types"
    print(json.dumps(found))
