"""Random programs with callbacks, written once for JAX and for meshrt, and meshes to run programs on."""

from __future__ import annotations

import random
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback as jax_io_callback

import meshrt
import meshrt.numpy as mnp
from meshrt.experimental import io_callback

LEAVES = ("print", "ordered print", "pure", "io", "ordered io", "mul", "sin")
NESTS = ("scan", "while", "fori", "cond", "jit", "checkpoint", "custom_jvp", "custom_vjp")


def library(jx, np_, io):
    """A library under test: `log` has what unordered callbacks saw, `debugged` and `done` what ordered ones did."""
    return SimpleNamespace(jax=jx, np=np_, io=io, log=[], debugged=[], done=[])


def both():
    return library(jax, jnp, jax_io_callback), library(meshrt, mnp, io_callback)


def mesh_of(*sizes, devices=None):
    names = ("x", "y", "z")[: len(sizes)]
    count = int(np.prod(sizes))
    devices = meshrt.devices()[:count] if devices is None else devices
    return meshrt.sharding.Mesh(np.array(devices).reshape(sizes), names)


def put(x, mesh, *spec):
    return meshrt.device_put(x, meshrt.NamedSharding(mesh, meshrt.P(*spec)))


def _leaf(kind, tag, lib):
    j, stop = lib.jax, lib.jax.lax.stop_gradient
    like = lambda x: j.ShapeDtypeStruct(x.shape, x.dtype)
    seen = lambda log, v: log.append((tag, np.asarray(v).round(3).tolist()))

    def twice(log):
        return lambda v: (seen(log, v), np.asarray(v) * 2)[1]

    def look(log, **options):
        def f(x):
            j.debug.callback(lambda v: seen(log, v), x, **options)
            return x

        return f

    return {
        "print": look(lib.log),
        "ordered print": look(lib.debugged, ordered=True),
        "pure": lambda x: x + 0.5 * stop(
            j.pure_callback(lambda v: np.cos(np.asarray(v)), like(x), stop(x), vmap_method="sequential")
        ),
        "io": lambda x: x + 0.1 * lib.io(twice(lib.log), like(x), stop(x)),
        "ordered io": lambda x: x + 0.1 * lib.io(twice(lib.done), like(x), stop(x), ordered=True),
        "mul": lambda x: x * (1 + tag / 2000),
        "sin": lambda x: lib.np.sin(x),
    }[kind]  # fmt: skip


def _nest(kind, tag, body, lib):
    j, lax = lib.jax, lib.jax.lax

    def by_jvp(x):
        f = j.custom_jvp(body)
        f.defjvp(lambda p, t: (body(p[0]), t[0] * 2))
        return f(x)

    def by_vjp(x):
        f = j.custom_vjp(body)
        f.defvjp(lambda p: (body(p), p), lambda r, t: (t * 2,))
        return f(x)

    def scanned(x):
        carry, ys = lax.scan(lambda c, a: (body(c) * 0.5 + a, c), x, lib.np.arange(3.0))
        return carry + ys.sum(0) * 0.1

    return {
        "scan": scanned,
        "while": lambda x: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, body(s[1])), (0, x))[1],
        "fori": lambda x: lax.fori_loop(0, 2, lambda i, c: body(c), x),
        "cond": lambda x: lax.cond(x.sum() > tag / 500, body, lambda x: x * 2, x),
        "jit": lambda x: j.jit(body)(x),
        "checkpoint": lambda x: j.checkpoint(body)(x),
        "custom_jvp": by_jvp,
        "custom_vjp": by_vjp,
    }[kind]


def step(rng: random.Random, lib, depth: int = 0):
    """A random function from f32[4] to f32[4]."""
    kind = rng.choice(LEAVES + (NESTS if depth < 2 else ()))
    tag = rng.randrange(1000)
    if kind in LEAVES:
        return _leaf(kind, tag, lib)
    inner = [step(rng, lib, depth + 1) for _ in range(rng.randint(1, 2))]

    def body(x):
        # JAX takes what does not depend on the carry out of a loop under grad, and then calls it once.
        x = x * 1.01
        for f in inner:
            x = f(x)
        return x

    return _nest(kind, tag, body, lib)


def program(seed: int, lib, steps: int = 3):
    rng = random.Random(seed)
    fs = [step(rng, lib) for _ in range(steps)]

    def run(x):
        for f in fs:
            x = f(x)
        return x

    return run
