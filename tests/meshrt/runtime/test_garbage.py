"""Launches leave nothing behind: jaxlib keeps the frames of each until it is told to let them go."""

import gc
import sys

import numpy as np
import pytest

import meshrt

pytestmark = pytest.mark.collects

AWAIT = {
    "an array": lambda x: x.block_until_ready(),
    "a tree": lambda x: meshrt.block_until_ready([x]),
    "the value": np.asarray,
    "Python's collector": lambda x: gc.collect(),
}


@pytest.mark.parametrize("wait", AWAIT.values(), ids=AWAIT)
def test_calls_keep_no_code_alive(wait):
    f = meshrt.jit(lambda x: x + 1)
    x = meshrt.device_put(np.ones(3, np.float32))

    def step():
        return f(x)

    for _ in range(3):
        wait(step())
    before = sys.getrefcount(step.__code__)
    gc.disable()
    try:
        for _ in range(50):
            out = step()
        wait(out)
    finally:
        gc.enable()
    assert sys.getrefcount(step.__code__) - before < 25
