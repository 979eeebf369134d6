"""An operation mapped over a dimension by what is known of it: `batch_dim_rule`, and its own methods under vmap."""

from __future__ import annotations

from typing import Any

from meshrt import tree_util
from meshrt.experimental.hijax.operations import AxisData
from meshrt.experimental.hijax.vjp_operations import Static, VJPHiPrimitive
from meshrt.interpreters.ad import Zero
from meshrt.transforms.batching import batch_flat
from meshrt.transforms.vmap import vmap

__all__ = ["VmapOf"]


def _batched(aval: Any, dim: Any, size: int) -> Any:
    return aval if dim is None else aval.inc_rank(size, dim)


def _member(aval: Any, dim: Any, size: int) -> Any:
    return aval if dim is None else aval.dec_rank(size, dim)


class VmapOf(VJPHiPrimitive):
    """`prim` mapped over `axis_data`: its arguments along `in_dims`, its results along `out_dim`."""

    prim: VJPHiPrimitive
    axis_data: AxisData
    in_dims: Any
    out_dim: Any

    def __init__(self, prim: VJPHiPrimitive, axis_data: AxisData, in_dims: Any, out_dim: Any):
        self._in, self._out = prim.in_tree.flatten_up_to(in_dims), prim.out_tree.flatten_up_to(out_dim)
        size = axis_data.size
        self.in_avals = prim.in_tree.unflatten([_batched(a, d, size) for a, d in zip(prim.in_avals_flat, self._in)])
        self.out_aval = prim.out_tree.unflatten([_batched(a, d, size) for a, d in zip(prim.out_avals_flat, self._out)])
        self.params = dict(prim=prim, axis_data=axis_data, in_dims=_hashable(in_dims), out_dim=_hashable(out_dim))
        super().__init__()

    def _over(self, fun: Any, values: list[Any], dims: list[Any]) -> tuple[list[Any], list[Any]]:
        return batch_flat(fun, self.axis_data.mapped, values, dims)

    def _placed(self, outs: list[Any], found: list[Any], wanted: list[Any]) -> list[Any]:
        """Results with the mapped dimension where it is wanted."""
        size = self.axis_data.size
        fix = lambda o, d, w: o if d == w else vmap(lambda x: x, in_axes=(d,), out_axes=w, axis_size=size)(o)
        return [fix(o, d, w) for o, d, w in zip(outs, found, wanted)]

    def expand(self, *args: Any) -> Any:
        prim = self.prim
        flat = lambda *xs: tree_util.tree_leaves(prim.expand(*prim.in_tree.unflatten(xs)))
        outs, dims = self._over(flat, tree_util.tree_leaves(args), self._in)
        return self.out_tree.unflatten(self._placed(outs, dims, self._out))

    def jvp(self, primals: Any, tangents: Any) -> Any:
        prim, size = self.prim, self.axis_data.size
        shown = self.in_tree.flatten_up_to(tangents)
        live = [type(t) is not Zero for t in shown]
        zeros = [None if l else Zero(_member(t.aval, d, size)) for t, l, d in zip(shown, live, self._in)]
        out_live: list[bool] = []

        def flat(*xs: Any) -> list[Any]:
            count = prim.in_tree.num_leaves
            given = iter(xs[count:])
            ts = [next(given) if z is None else z for z in zeros]
            out, t_out = prim.jvp(prim.in_tree.unflatten(xs[:count]), prim.in_tree.unflatten(ts))
            t_flat = prim.out_tree.flatten_up_to(t_out)
            out_live[:] = [type(t) is not Zero for t in t_flat]
            return [*prim.out_tree.flatten_up_to(out), *[t for t, l in zip(t_flat, out_live) if l]]

        values = [*self.in_tree.flatten_up_to(primals), *[t for t, l in zip(shown, live) if l]]
        outs, dims = self._over(flat, values, [*self._in, *[d for d, l in zip(self._in, live) if l]])
        wanted = [*self._out, *[d for d, l in zip(self._out, out_live) if l]]
        placed = self._placed(outs, dims, wanted)
        count = len(self._out)
        rest = iter(placed[count:])
        t_outs = [next(rest) if l else Zero(a.to_tangent_aval()) for a, l in zip(self.out_avals_flat, out_live)]
        return self.out_tree.unflatten(placed[:count]), self.out_tree.unflatten(t_outs)

    def vjp_fwd(self, in_nzs: Any, /, *args: Any) -> Any:
        prim = self.prim
        kept: list[Any] = []

        def flat(*xs: Any) -> list[Any]:
            out, residuals, *more = prim.vjp_fwd(in_nzs, *prim.in_tree.unflatten(xs))
            leaves, tree = tree_util.tree_flatten(residuals)
            kept[:] = [tree, more]
            return [*prim.out_tree.flatten_up_to(out), *leaves]

        outs, dims = self._over(flat, self.in_tree.flatten_up_to(args), self._in)
        count = len(self._out)
        tree, more = kept
        result = self.out_tree.unflatten(self._placed(outs[:count], dims[:count], self._out))
        return result, (outs[count:], Static((tree, tuple(dims[count:])))), *more

    def vjp_bwd_retval(self, res: Any, outgrad: Any, /) -> Any:
        prim, size = self.prim, self.axis_data.size
        leaves, static = res
        tree, dims = static.val
        shown = self.out_tree.flatten_up_to(outgrad)
        live = [type(g) is not Zero for g in shown]
        zeros = [None if l else Zero(_member(g.aval, d, size)) for g, l, d in zip(shown, live, self._out)]
        in_live: list[bool] = []

        def flat(*xs: Any) -> list[Any]:
            given = iter(xs[len(leaves) :])
            cts = [next(given) if z is None else z for z in zeros]
            grads = prim.vjp_bwd_retval(tree.unflatten(xs[: len(leaves)]), prim.out_tree.unflatten(cts))
            pulled = prim.in_tree.flatten_up_to(grads)
            in_live[:] = [type(g) is not Zero and g is not None for g in pulled]
            return [g for g, l in zip(pulled, in_live) if l]

        values = [*leaves, *[g for g, l in zip(shown, live) if l]]
        outs, found = self._over(flat, values, [*dims, *[d for d, l in zip(self._out, live) if l]])
        pulled = iter(zip(outs, found))
        grads = [
            self._gathered(*next(pulled), d) if l else Zero(a.to_ct_aval())
            for a, d, l in zip(self.in_avals_flat, self._in, in_live)
        ]
        return self.in_tree.unflatten(grads)

    def _gathered(self, grad: Any, found: Any, wanted: Any) -> Any:
        """The cotangent of an argument: that of one that all members share is the sum of theirs."""
        if wanted is None:
            return grad * self.axis_data.size if found is None else grad.sum(found)
        return self._placed([grad], [found], [wanted])[0]

    def batch_dim_rule(self, axis_data: Any, in_dims: Any, /) -> Any:
        below = lambda d, own: d if d is None or own is None else d - (own < d)
        above = lambda d, own: d if d is None or own is None else d + (own < d)
        outer = self.in_tree.flatten_up_to(in_dims)
        inner = self.in_tree.unflatten([below(d, own) for d, own in zip(outer, self._in)])
        found = self.prim.out_tree.flatten_up_to(self.prim.batch_dim_rule(axis_data, inner))
        return self.out_tree.unflatten([above(d, own) for d, own in zip(found, self._out)])


def _hashable(dims: Any) -> Any:
    return tuple(map(_hashable, dims)) if isinstance(dims, list | tuple) else dims


VJPHiPrimitive.mapped = VmapOf
