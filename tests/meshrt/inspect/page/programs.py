"""Programs for the tests of the page."""

from __future__ import annotations

import meshrt
import meshrt.numpy as jnp
from meshrt.inspect.model import Report
from meshrt.inspect.program_graph import program_row
from meshrt.pipeline.names import names_of
from meshrt.sharding import AbstractMesh, AxisType, NamedSharding
from meshrt.sharding import PartitionSpec as P

MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

SCRIPT = """
import meshrt
import meshrt.numpy as jnp
from meshrt.sharding import NamedSharding, PartitionSpec as P


def step(x):
    return jnp.tanh(x).sum(0)


def example_arguments(mesh):
    return meshrt.ShapeDtypeStruct((8, 4), jnp.float32, sharding=NamedSharding(mesh, P("x")))
"""


def struct(shape, *spec):
    return meshrt.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(MESH, P(*spec)))


def mlp(x, w):
    return jnp.tanh(x @ w) @ w.T


@meshrt.jit
def train(x, w):
    def loss(w):
        h = x
        for i in range(2):
            with meshrt.named_scope(f"layer{i}"):
                h = mlp(h, w)

        def body(h, _):
            with meshrt.named_scope("inner"):
                return jnp.sin(h), None

        return meshrt.lax.scan(body, h, None, length=3)[0].sum()

    value, slope = meshrt.value_and_grad(loss)(w)
    return value, w - 0.1 * slope


def lowered():
    return train.lower(struct((64, 32), "data"), struct((32, 128), None, "model"))


def report_with_program(name: str = "train") -> Report:
    """The report of `train` with its program."""
    stage = lowered()
    propagated = stage.propagate()
    made = meshrt.inspect.report(stage, name=name)
    fields = {field: getattr(made, field) for field in Report.__dataclass_fields__}
    return Report(**{**fields, "program": program_row(propagated.result, *names_of(stage))})
