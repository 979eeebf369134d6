"""Errors of traced functions show the user's frames only."""

import pickle
import traceback
from types import FunctionType

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors

X = np.ones((3, 4), np.float32)


def mistake(x):
    return jnp.dot(x, np.ones((5, 6)))


def users_mistake(x):
    return x / (1 // 0)


def through_scan(f):
    return lambda x: meshrt.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0].sum()


CALLS = {
    "jit": lambda f: meshrt.jit(lambda x: f(x))(X),
    "jit of grad of scan": lambda f: meshrt.jit(meshrt.grad(through_scan(f)))(X),
    "vmap": lambda f: meshrt.vmap(lambda x: f(x))(X),
    "value_and_grad": lambda f: meshrt.value_and_grad(lambda x: f(x).sum())(X),
    "jvp": lambda f: meshrt.jvp(lambda x: f(x), (X,), (X,)),
    "vjp": lambda f: meshrt.vjp(lambda x: f(x), X),
    "checkpoint": lambda f: meshrt.checkpoint(lambda x: f(x))(X),
    "cond": lambda f: meshrt.lax.cond(X[0, 0] > 0, lambda x: f(x), lambda x: x, X),
    "while_loop": lambda f: meshrt.lax.while_loop(lambda x: x.sum() < 1, lambda x: f(x), X),
    "fori_loop": lambda f: meshrt.lax.fori_loop(0, 2, lambda i, x: f(x), X),
    "lower": lambda f: meshrt.jit(lambda x: f(x)).lower(X),
    "eval_shape": lambda f: meshrt.eval_shape(lambda x: f(x), X),
    "make_jaxpr": lambda f: meshrt.make_jaxpr(lambda x: f(x))(X),
}


EAGER = {
    "operator": lambda x: x @ np.ones((5, 6)),
    "reflected operator": lambda x: np.ones((5, 6)) @ x,
    "operator of equal sizes": lambda x: x + jnp.ones((5, 6)),
    "function of two": lambda x: jnp.add(x, jnp.ones(7)),
    "function in one program": lambda x: jnp.dot(x, np.ones((5, 6))),
    "function that looks first": lambda x: jnp.concatenate([x, jnp.ones(7)]),
    "method": lambda x: x.reshape(5),
    "method of a function": lambda x: x.sum(axis=7),
    "index": lambda x: x["name"],
    "operation": lambda x: meshrt.lax.dot_general(x, x, (((0,), (1,)), ((), ()))),
    "dtype": lambda x: x.astype("none"),
    "random": lambda x: meshrt.random.normal(meshrt.random.key(0), (3, -1)),
    "layer": lambda x: meshrt.nn.one_hot(x, "many"),
    "update": lambda x: x.at[0].set(jnp.ones((7, 9))),
    "chosen": lambda x: x.at[0, 0, 0, 0].get(),
    "system": lambda x: jnp.linalg.inv(x[0]),
    "transform": lambda x: jnp.fft.fft(x, norm="none"),
    "special": lambda x: meshrt.scipy.special.logsumexp(x, axis=9),
    "factors": lambda x: meshrt.scipy.linalg.toeplitz("text"),
    "convolution": lambda x: meshrt.scipy.signal.convolve(x, x[0, 0]),
    "ranks": lambda x: meshrt.scipy.stats.rankdata(x, method="none"),
    "minimum": lambda x: meshrt.scipy.optimize.minimize(jnp.sum, x[0], method="none"),
    "solver": lambda x: meshrt.scipy.sparse.linalg.cg(jnp.ones((2, 3)), x[0]),
    "coordinates": lambda x: meshrt.scipy.ndimage.map_coordinates(x, [x], 7),
    "clusters": lambda x: meshrt.scipy.cluster.vq.vq(x, x[0]),
    "cosines": lambda x: meshrt.scipy.fft.dct(x, type=7),
}


def raised(call, f, filtering):
    with meshrt.config.override(traceback_filtering=filtering), pytest.raises(Exception) as caught:
        call(f)
    return caught.value, [(e.filename, e.name) for e in traceback.extract_tb(caught.value.__traceback__)]


@pytest.mark.parametrize("name", CALLS)
def test_only_the_users_frames(name):
    for f, kind in ((mistake, errors.MeshrtError), (users_mistake, ZeroDivisionError)):
        error, frames = raised(CALLS[name], f, "remove_frames")
        assert isinstance(error, kind)
        assert {file for file, _ in frames} == {__file__}
        assert frames[-1] == (__file__, f.__name__)


@pytest.mark.parametrize("filtering", ["auto", "quiet_remove_frames"])
def test_other_names_of_leaving_our_frames_out(filtering):
    _, frames = raised(next(iter(CALLS.values())), mistake, filtering)
    assert {file for file, _ in frames} == {__file__}


@pytest.fixture
def filtered():
    """The setting as users have it; no override, with which eager calls would go another way."""
    before = meshrt.config.settings.traceback_filtering
    meshrt.config.update("traceback_filtering", "remove_frames")
    yield
    meshrt.config.update("traceback_filtering", before)


@pytest.mark.parametrize("name", EAGER)
def test_only_the_users_frames_outside_of_jit(filtered, name):
    with pytest.raises(errors.MeshrtError) as caught:
        EAGER[name](jnp.asarray(X))
    seen = [caught.value, caught.value.__cause__, caught.value.__context__]
    frames = [f.filename for e in seen if e is not None for f in traceback.extract_tb(e.__traceback__)]
    assert len(frames) == 2 and {*frames} == {__file__}


OF_JOBS = {
    "a coordinator": lambda folder: meshrt.distributed.initialize("nowhere", 2, 0),
    "an array of parts": lambda folder: meshrt.make_array_from_callback((3,), 2, lambda index: X[0]),
    "a checkpoint": lambda folder: meshrt.checkpoint.restore(folder / "absent"),
    "a checkpoint of a run": lambda folder: meshrt.checkpoint.CheckpointManager(folder).restore(),
}


@pytest.mark.parametrize("name", OF_JOBS)
def test_only_the_users_frames_around_jobs_and_their_files(filtered, name, tmp_path):
    with pytest.raises(errors.MeshrtError) as caught:
        OF_JOBS[name](tmp_path)
    assert {f.filename for f in traceback.extract_tb(caught.value.__traceback__)} == {__file__}


def test_what_was_handled_on_the_way_is_left_out(filtered):
    """A miss in a table of ours leads to no error of the user's; what the user was handling does."""
    with pytest.raises(errors.MeshrtError) as caught:
        try:
            {}["absent"]
        except KeyError as e:
            users = e
            EAGER["operation"](jnp.asarray(X))
    assert caught.value.__context__ in (None, users)


@pytest.mark.parametrize("module", [jnp, meshrt.lax, meshrt.random, meshrt.nn], ids=lambda m: m.__name__)
def test_functions_are_pickled_by_name(module):
    functions = [f for name in module.__all__ if type(f := getattr(module, name)) is FunctionType]
    assert len(functions) > 10
    for function in functions:
        assert pickle.loads(pickle.dumps(function)) is function, function


def test_all_frames_on_demand():
    _, frames = raised(CALLS["jit"], mistake, "off")
    assert any(file.endswith("meshrt/jit.py") for file, _ in frames) and frames[-1][0] != __file__


def test_failures_of_ours_keep_their_frames():
    def internal(x):
        raise errors.InternalError("a bug")

    assert len(raised(CALLS["jit"], internal, "remove_frames")[1]) > 4
