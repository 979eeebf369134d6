"""Numbers and names of arguments that `jit` is told, right and wrong; what is wrong beside where it goes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy

from .beside import assert_alike, outcome


def two(a, b):
    return b


def many(a, *rest):
    return a


def kinds(a, /, b, *, c=2):
    return b


_NUMBERS = [
    -7,
    -3,
    -2,
    -1,
    0,
    1,
    2,
    5,
    (0, 1),
    (0, -2),
    (7,),
    [0],
    0.0,
    1.5,
    (0, "a"),
    np.int32(1),
    np.array(0),
    (None,),
]
_NAMES = ["a", "b", "nope", "", ("a", "b"), ["a"], ("a", 1), 1, 0, True, (None,), b"a", {"a"}, "rest", "ab"]


@pytest.mark.parametrize("fun, values", [(two, (1, 2.0)), (many, (1.0, 2, 3)), (kinds, (1, 2.0))])
@pytest.mark.parametrize("option", ["static_argnums", "static_argnames", "donate_argnums", "donate_argnames"])
def test_numbers_and_names_of_arguments(fun, values, option):
    for given in _NAMES if option.endswith("names") else _NUMBERS:
        assert_alike(lambda library, given=given: library.jit(fun, **{option: given}) and 1)
        assert_alike(lambda library, given=given: library.jit(fun, **{option: given})(*values))


@pytest.mark.parametrize(
    "fun, options, words",
    [
        (
            two,
            {"static_argnums": -7},
            "Jitted function has static_argnums=(-7,), but only accepts 2 positional arguments",
        ),
        (
            many,
            {"static_argnums": -7},
            "must have value greater than or equal to -len(args) and less than len(args), but",
        ),
        (kinds, {"static_argnames": "a"}, "invalid argnames {'a'} in static_argnames. These are positional-only"),
        (two, {"donate_argnames": ("a", 1)}, "argument is not a string: 1"),
    ],
)
def test_words_about_wrong_ones(fun, options, words):
    for library in (jax, meshrt):
        assert words in str(outcome(lambda library: library.jit(fun, **options)(1.0, 2.0), library))


@pytest.mark.parametrize("value", [2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 10**30])
def test_numbers_that_do_not_fit_are_refused_before_the_function_is_traced(value):
    def program(library: Any) -> Any:
        return library.jit(lambda x: x + np.zeros(3, np.int32) @ np.zeros((2, 2), np.int32) if value >= 2**31 else x)(
            value
        )

    assert_alike(program)


@pytest.mark.parametrize(
    "value, device", [("a", 0), (np.array(["a"]), 0), (object(), {"a": None}), (np.array("2020", "M8"), (None, None))]
)
def test_device_put_says_first_what_is_no_array(value, device):
    assert_alike(lambda library: library.device_put(value, device))
