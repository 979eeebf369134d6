"""A kernel's Jaxpr on one simulated core, equation by equation.

References are memories or semaphores of the machine. What has to wait yields a `Wait`; everything that runs Jaxprs is
therefore a generator.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from meshrt import errors, tree_util
from meshrt.core.jaxpr import Eqn, Jaxpr, Literal
from meshrt.core.naming import body_name
from meshrt.experimental.checkify.failures import JaxRuntimeError
from meshrt.experimental.kernels.memory import MemorySpace, TpuMemorySpace, copied_bytes
from meshrt.experimental.kernels.simulator.arithmetic import computed
from meshrt.experimental.kernels.simulator.machine import Copy, Core, Semaphores, Wait
from meshrt.experimental.kernels.simulator.memory import Actor, Memory
from meshrt.primitives.reduce_general import reduce_p
from meshrt.primitives.state_views import view_of
from meshrt.primitives.window import reduce_window_p

__all__ = ["run_jaxpr"]

Run = Generator[Wait, None, list[Any]]

# Their Jaxpr is a function of two elements, not what they call.
_OF_ELEMENTS = (reduce_p, reduce_window_p)


def run_jaxpr(core: Core, jaxpr: Jaxpr, args: Sequence[Any]) -> Run:
    """Runs a Jaxpr without constvars; returns its results. Without a core (None) it may not touch memory."""
    env: dict[Any, Any] = dict(zip(jaxpr.invars, args))
    skips = core is not None and core.machine.checks.skip_floating_point_ops
    for eqn in jaxpr.eqns:
        operands = [_constant(a) if type(a) is Literal else env[a] for a in eqn.invars]
        name = eqn.primitive.name
        if name in _PROGRAMS:
            outs = yield from _PROGRAMS[name](core, eqn, operands)
        elif name in _OPERATIONS:
            outs = _OPERATIONS[name](core, eqn, operands)
        elif isinstance(inner := eqn.params.get(body_name(eqn.params)), Jaxpr) and eqn.primitive not in _OF_ELEMENTS:
            outs = yield from run_jaxpr(core, inner, operands)
        else:
            outs = computed(eqn, operands, skips)
        env.update(zip(eqn.outvars, outs))
    return [_constant(a) if type(a) is Literal else env[a] for a in jaxpr.outvars]


def _constant(literal: Literal) -> Any:
    return np.asarray(literal.val, literal.aval.dtype)


# ----------------------------------------------------------------------------------------------------------------------
# Programs of programs


def _cond(core: Core, eqn: Eqn, operands: Sequence[Any]) -> Run:
    branches = eqn.params["branches"]
    index = min(max(int(operands[0]), 0), len(branches) - 1)
    return (yield from run_jaxpr(core, branches[index], operands[1:]))


def _scan(core: Core, eqn: Eqn, operands: Sequence[Any]) -> Run:
    p = eqn.params
    first, last = p["num_consts"], p["num_consts"] + p["num_carry"]
    consts, carry, xs = operands[:first], list(operands[first:last]), operands[last:]
    ys: list[list[Any]] = []
    order = range(p["length"])
    for i in reversed(order) if p["reverse"] else order:
        outs = yield from run_jaxpr(core, p["jaxpr"], [*consts, *carry, *[x[i] for x in xs]])
        carry = outs[: p["num_carry"]]
        ys.append(outs[p["num_carry"] :])
    if p["reverse"]:
        ys.reverse()
    kinds = [v.aval for v in eqn.outvars[p["num_carry"] :]]
    stacked = [np.stack(column) if ys else np.zeros(k.shape, k.dtype) for column, k in zip(zip(*ys), kinds)]
    return [*carry, *stacked]


def _while(core: Core, eqn: Eqn, operands: Sequence[Any]) -> Run:
    p = eqn.params
    first, second = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
    cond_consts, body_consts, carry = operands[:first], operands[first:second], list(operands[second:])
    while True:
        (going,) = yield from run_jaxpr(core, p["cond_jaxpr"], [*cond_consts, *carry])
        if not going:
            return carry
        carry = yield from run_jaxpr(core, p["body_jaxpr"], [*body_consts, *carry])


def _semaphore_wait(core: Core, eqn: Eqn, operands: Sequence[Any]) -> Run:
    semaphores, *leaves = operands
    view, count = tree_util.tree_unflatten(eqn.params["tree"], leaves)
    at = semaphores.place(view, eqn.source)
    yield from _await(core, semaphores, at, int(count), eqn.source)
    semaphores.take(at, int(count) if eqn.params["decrement"] else 0, core.actor)
    return []


def _dma_wait(core: Core, eqn: Eqn, operands: Sequence[Any]) -> Run:
    copy = tree_util.tree_unflatten(eqn.params["tree"], operands)
    semaphores, view = copy.sent if eqn.params["of_send"] else copy.arrived
    memory, seen = copy.source if eqn.params["of_send"] else copy.destination
    at = semaphores.place(view, eqn.source)
    count = copied_bytes(memory.elements(seen).size, memory.data.dtype)
    yield from _await(core, semaphores, at, count, eqn.source)
    semaphores.take(at, count, core.actor)
    return []


def _await(core: Core, semaphores: Semaphores, at: int, count: int, where: Any) -> Generator[Wait, None, None]:
    def is_over() -> bool:
        core.machine.deliver(semaphores, at, count)
        return bool(semaphores.counts[at] >= count)

    if not is_over():
        yield Wait(
            is_over, f"waits until {semaphores.name} has reached {count} (it is at {semaphores.counts[at]})", where
        )


# ----------------------------------------------------------------------------------------------------------------------
# Operations on references


def _place(eqn: Eqn, operands: Sequence[Any], skip: int) -> Any:
    return view_of(eqn.params["tree"], operands[skip:])


def _get(core: Core, eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    return [operands[0].read(_place(eqn, operands, 1), core.actor, eqn.source)]


def _swap(core: Core, eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    memory, value = operands[:2]
    view = _place(eqn, operands, 2)
    # What was there is read without a check: most programs do not use it.
    before = _unchecked(memory, view)
    memory.write(view, value, core.actor, eqn.source)
    return [before]


def _unchecked(memory: Memory, view: Any) -> Any:
    numbers = memory.elements(view)
    plain = memory.data.reshape(-1)
    return plain[np.where(numbers < 0, 0, numbers)] if plain.size else np.zeros(numbers.shape, plain.dtype)


def _addupdate(core: Core, eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    memory, value = operands[:2]
    view = _place(eqn, operands, 2)
    before = memory.read(view, core.actor, eqn.source)
    named = memory.named(view)
    if named is None or np.unique(named[0]).size == named[0].size:
        memory.write(view, before + value, core.actor, eqn.source)
    else:
        memory.write(view, before, core.actor, eqn.source)
        numbers, held = named
        np.add.at(held, numbers, value)
    return []


def _masked_load(core: Core, eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    view, mask, other = tree_util.tree_unflatten(eqn.params["tree"], operands[1:])
    found = operands[0].read(view, core.actor, eqn.source, mask)
    return [found if mask is None or other is None else np.where(mask, found, other).astype(found.dtype)]


def _masked_swap(core: Core, eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    view, value, mask = tree_util.tree_unflatten(eqn.params["tree"], operands[1:])
    before = _unchecked(operands[0], view)
    operands[0].write(view, value, core.actor, eqn.source, mask)
    return [before]


_COMBINED: dict[str, Callable[..., Any]] = {
    "add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "xchg": lambda x, y: y, "cas": lambda x, cmp, val: np.where(x == cmp, val, x),
}  # fmt: skip


def _atomic_update(core: Core, eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    view, values, mask = tree_util.tree_unflatten(eqn.params["tree"], operands[1:])
    change = _COMBINED[eqn.params["kind"]]
    return [operands[0].update(view, change, values, core.actor, eqn.source, mask)]


def _empty_ref(core: Core, eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    core.scoped += 1
    aval = eqn.outvars[0].aval
    is_far = getattr(aval, "memory_space", None) in (TpuMemorySpace.HBM, MemorySpace.ANY)
    if is_far and not core.machine.checks.allow_hbm_allocation_in_run_scoped:
        raise errors.ArgumentValueError(
            f"Cannot allocate HBM in `run_scoped`: {aval} at {eqn.source}. A core has none to give: take scratch in "
            "VMEM, a result of the call, or InterpretParams(allow_hbm_allocation_in_run_scoped=True)"
        )
    name = f"the {aval} made at {eqn.source}"
    return [core.allocate(aval, name, ("scoped", core.scoped))]


def _free_ref(core: Core, eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    memory = operands[0]
    if isinstance(memory, Semaphores) and memory.counts.any():
        raise errors.MissingWaitError(
            f"{memory.name} is at {int(memory.counts[memory.counts != 0][0])} where it ends ({eqn.source}): wait for "
            f"what counts on it, last at {memory.last.get(int(np.flatnonzero(memory.counts)[0]))}"
        )
    if any(memory in (c.source[0], c.target[0], c.arrived[0]) for c in core.machine.copies):
        raise errors.MissingWaitError(f"{memory.name} ends while a copy uses it: wait for the copy before")
    core.memories.pop(memory.key, None)
    return []


# ----------------------------------------------------------------------------------------------------------------------
# Semaphores and copies


def _device(core: Core, device: Any, kind: str) -> int:
    """The number of a chip that a kernel names."""
    machine = core.machine
    own = machine.coordinates(core.device)
    if device is None:
        return core.device
    if not isinstance(device, dict) and kind == "logical":
        return int(device)
    sizes = dict(machine.axes)
    if isinstance(device, dict):
        for name, index in device.items():
            rest = int(index)
            for n in reversed(name if isinstance(name, tuple) else (name,)):
                if n not in sizes:
                    raise errors.ArgumentValueError(
                        f"device_id names the axis {n!r}, but the axes of the manual region are {tuple(sizes)}"
                    )
                own[n] = rest % sizes[n] if isinstance(name, tuple) else rest
                rest //= sizes[n]
    else:
        given = list(device) if isinstance(device, tuple | list) else [device]
        if len(given) != len(sizes):
            raise errors.ArgumentValueError(
                f"Number of device ids must match the number of mesh axes, but got {len(given)} ids for a "
                f"{len(sizes)}D mesh."
            )
        own = {name: int(i) for name, i in zip(sizes, given)}
    number = 0
    for name, size in machine.axes:
        number = number * size + own[name]
    return number


def _signal(core: Core, eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    semaphores, *leaves = operands
    view, count, device, other = tree_util.tree_unflatten(eqn.params["tree"], leaves)
    at = semaphores.place(view, eqn.source)
    if device is not None or other is not None:
        chip = _device(core, device, eqn.params["device_id_type"].value)
        number = core.number if other is None else int(other)
        semaphores = core.machine.there(semaphores, chip, number, eqn.source)
    semaphores.signal(at, int(count), core.actor.clock, eqn.source)
    core.actor.advance()
    return []


def _read_semaphore(core: Core, eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    at = operands[0].place(_place(eqn, operands, 1), eqn.source)
    return [np.int32(operands[0].counts[at])]


def _barrier(core: Core, eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    ref: Any = eqn.outvars[0].aval
    inner = ref.inner_aval
    for other in core.machine.cores:  # each core has one, before it begins
        other.memories.setdefault("barrier", Semaphores(inner, "the barrier semaphore", "barrier"))
    return [core.memories["barrier"]]


def _dma_start(core: Core, eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    copy = tree_util.tree_unflatten(eqn.params["tree"], operands)
    machine, where = core.machine, eqn.source
    target, arrived = copy.destination[0], copy.arrived[0]
    if copy.is_remote:
        chip = _device(core, copy.device, eqn.params["device_id_type"].value)
        number = core.number if copy.core is None else int(copy.core)
        target = machine.there(target, chip, number, where)
        arrived = machine.there(arrived, chip, number, where)
    name = f"copy {machine.started} started by {core.name}"
    sent = None if copy.sent is None else (copy.sent[0], copy.sent[0].place(copy.sent[1], where))
    flight = Copy(
        copy.source, (target, copy.destination[1]), (arrived, arrived.place(copy.arrived[1], where)), sent,
        Actor(name, {**core.actor.clock, name: 1}), eqn.params["add"], where,
    )  # fmt: skip
    core.actor.advance()
    machine.start(flight)
    return []


# ----------------------------------------------------------------------------------------------------------------------
# What is left


def _axis_index(core: Core, eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    return [np.int32(core.machine.coordinates(core.device)[eqn.params["axis_name"]])]


def _print(core: Core, eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    print(eqn.params["fmt"].format(*operands))
    return []


def _check(core: Core, eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    if eqn.params["debug"] and not core.machine.debug_checks:
        return []
    found = tree_util.tree_unflatten(eqn.params["structure"], operands).get_exception()
    if found is not None:
        raise JaxRuntimeError(f"{found} at {eqn.source}, in the kernel {core.machine.kernel} on {core.name}")
    return []


def _nothing(core: Core, eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    return []


def _seed(core: Core, eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    core.random = np.random.Generator(np.random.Philox([int(s) & 0xFFFFFFFF for s in operands[1:]]))
    return []


def _random_bits(core: Core, eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    return [core.random.integers(0, 1 << 32, eqn.params["shape"], np.uint32).view(np.int32)]


def _new_ref(core: Core, eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    (memory,) = _empty_ref(core, eqn, operands)
    memory.fill(operands[0])
    return [memory]


_PROGRAMS: dict[str, Callable[..., Run]] = {
    "cond": _cond, "scan": _scan, "while": _while, "semaphore_wait": _semaphore_wait, "dma_wait": _dma_wait,
}  # fmt: skip
_OPERATIONS: dict[str, Callable[[Core, Eqn, Sequence[Any]], list[Any]]] = {
    "get": _get, "swap": _swap, "addupdate": _addupdate, "masked_load": _masked_load, "masked_swap": _masked_swap,
    "atomic_update": _atomic_update, "empty_ref": _empty_ref, "free_ref": _free_ref, "new_ref": _new_ref,
    "freeze": lambda core, eqn, operands: [operands[0].read((), core.actor, eqn.source)],
    "semaphore_signal": _signal, "semaphore_read": _read_semaphore, "get_barrier_semaphore": _barrier,
    "dma_start": _dma_start, "axis_index": _axis_index, "debug_print": _print, "touch": _nothing, "delay": _nothing,
    "check": _check, "trace_value": _nothing, "debug_barrier": _nothing, "prng_seed": _seed,
    "prng_random_bits": _random_bits,
}  # fmt: skip


def exhausted(core: Core, jaxpr: Jaxpr, args: Sequence[Any]) -> list[Any]:
    """The results of a Jaxpr that cannot wait for anything (an index map)."""
    steps = run_jaxpr(core, jaxpr, args)
    try:
        next(steps)
    except StopIteration as e:
        return list(e.value)
    raise errors.UnsupportedError(f"{jaxpr.name} waits for a semaphore: only kernels may")
