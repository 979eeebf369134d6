"""Runs the examples of docstrings and pages: Python's doctest, with numbers compared to a tolerance."""

from __future__ import annotations

import doctest
import re
from typing import Any

import numpy as np

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?(?![\w.])")
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


class Checker(doctest.OutputChecker):
    """Takes texts as equal whose numbers are nearly so: last digits differ between versions of XLA and processors."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        if super().check_output(want, got, optionflags):
            return True
        if "." not in want:
            return False
        words = [re.sub(r"\s+", "", _NUMBER.sub("#", text)) for text in (want, got)]
        numbers = [[float(n) for n in _NUMBER.findall(text)] for text in (want, got)]
        if words[0] != words[1] or len(numbers[0]) != len(numbers[1]):
            return False
        return bool(np.allclose(numbers[1], numbers[0], rtol=2e-5, atol=1e-6, equal_nan=True))


def run_examples(text: str, names: dict[str, Any], where: str) -> str:
    """Runs the examples in `text` with `names` defined; what failed, or an empty string."""
    test = doctest.DocTestParser().get_doctest(text, dict(names), where, None, None)
    said: list[str] = []
    doctest.DocTestRunner(checker=Checker(), verbose=False, optionflags=FLAGS).run(test, out=said.append)
    return "".join(said)
