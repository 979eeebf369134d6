"""Derivatives with respect to the data of sparse arrays: what they say of a coordinate that is not specified is not
asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import api, jacobians
from meshrt.core.naming import wraps
from meshrt.experimental.sparse.arrays import JAXSparse
from meshrt.transforms.vmap import vmap
from meshrt.tree_util import tree_flatten, tree_map, tree_unflatten

__all__ = ["grad", "jacfwd", "jacobian", "jacrev", "value_and_grad"]

Function = Callable[..., Any]


def _is_sparse(x: Any) -> bool:
    return isinstance(x, JAXSparse)


def _data_only(arg: Any) -> tuple[Any, Callable[[Any], Any]]:
    """An argument with the data in place of sparse arrays, and what puts others into them."""

    def rebuilt(data: Any) -> Any:
        return tree_map(_with_data, arg, data, is_leaf=_is_sparse)

    return tree_map(lambda x: x.data if _is_sparse(x) else x, arg, is_leaf=_is_sparse), rebuilt


def _with_data(like: Any, data: Any) -> Any:
    if not _is_sparse(like):
        return data
    (_, *rest), tree = tree_flatten(like)
    rebuild = lambda d: tree_unflatten(tree, [d, *rest])
    for _ in range(data.ndim - like.data.ndim):  # a Jacobian's dimensions before
        rebuild = vmap(rebuild)
    return rebuild(data)


def _of_data(transform: Function, fun: Function, argnums: Any, has_value: bool, **options: Any) -> Function:
    one = isinstance(argnums, int)

    @wraps(fun)
    def derived(*args: Any, **kwargs: Any) -> Any:
        places = [n % len(args) for n in ((argnums,) if one else argnums)]
        parts = [_data_only(args[n]) for n in places]

        def of_parts(*data: Any) -> Any:
            full = list(args)
            for n, d, (_, rebuilt) in zip(places, data, parts):
                full[n] = rebuilt(d)
            return fun(*full, **kwargs)

        out = transform(of_parts, argnums=tuple(range(len(places))), **options)(*(p for p, _ in parts))
        value, slopes = out if has_value else (None, out)
        back = lambda slopes: _rebuilt([args[n] for n in places], slopes, one)
        if has_value:
            return value, back(slopes)
        if options.get("has_aux"):
            return back(slopes[0]), slopes[1]
        return back(slopes)

    return derived


def _rebuilt(args: Sequence[Any], slopes: Any, one: bool) -> Any:
    """Derivatives in the places of the arguments that they are of. Jacobians of a pytree of results come in its
    structure."""
    found = [tree_map(_with_data, a, s, is_leaf=_is_sparse) for a, s in zip(args, slopes)]
    return found[0] if one else tuple(found)


def value_and_grad(fun: Function, argnums: Any = 0, has_aux: bool = False, **kwargs: Any) -> Function:
    """`meshrt.value_and_grad`, where derivatives in sparse arguments are sparse, of the same coordinates.

    >>> sparse.value_and_grad(lambda m: (m.todense() ** 2).sum())(sparse.BCOO.fromdense(jnp.eye(2)))[0]
    Array(2., dtype=float32)
    """
    return _of_data(api.value_and_grad, fun, argnums, True, has_aux=has_aux, **kwargs)


def grad(fun: Function, argnums: Any = 0, has_aux: bool = False, **kwargs: Any) -> Function:
    """`meshrt.grad`, where derivatives in sparse arguments are sparse, of the same coordinates.

    >>> import meshrt.numpy as mnp
    >>> from meshrt.experimental import sparse
    >>> m = sparse.BCOO.fromdense(mnp.array([[0.0, 2.0], [3.0, 0.0]]))
    >>> sparse.grad(lambda m: (m @ mnp.array([1.0, 10.0])).sum())(m).todense()
    Array([[ 0., 10.],
           [ 1.,  0.]], dtype=float32)
    """
    return _of_data(api.grad, fun, argnums, False, has_aux=has_aux, **kwargs)


def jacfwd(fun: Function, argnums: Any = 0, has_aux: bool = False, **kwargs: Any) -> Function:
    """`meshrt.jacfwd`, where Jacobians in sparse arguments are sparse: results' dimensions are batch dimensions.

    >>> sparse.jacfwd(lambda m: 2 * m.sum())(sparse.BCOO.fromdense(jnp.eye(2))).shape
    (2, 2)
    """
    return _of_data(jacobians.jacfwd, fun, argnums, False, has_aux=has_aux, **kwargs)


def jacrev(fun: Function, argnums: Any = 0, has_aux: bool = False, **kwargs: Any) -> Function:
    """`meshrt.jacrev`, where Jacobians in sparse arguments are sparse: results' dimensions are batch dimensions.

    >>> sparse.jacobian(lambda m: 2 * m.sum())(sparse.BCOO.fromdense(jnp.eye(2))).shape
    (2, 2)
    """
    return _of_data(jacobians.jacrev, fun, argnums, False, has_aux=has_aux, **kwargs)


jacobian = jacrev
