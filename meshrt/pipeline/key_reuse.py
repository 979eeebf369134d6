"""Calls under the setting `debug_key_reuse`: a random key that was used up is refused as an argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt.core.jaxpr import ClosedJaxpr
from meshrt.core.key_use import KeyReuseSignature, fitted
from meshrt.core.source import capture
from meshrt.pipeline.entry import Entry
from meshrt.primitives.key_uses import check_unused, jaxpr_signature
from meshrt.runtime.key_states import KeyState, set_state, state_of

__all__ = ["KeyCheckedEntry"]


class KeyCheckedEntry(Entry):
    """An Entry that looks at the keys among the arguments of each call, and says of them what the program does."""

    __slots__ = ("captured", "signature", "who")

    captured: Sequence[Any]
    signature: KeyReuseSignature
    who: str

    def watch(self, closed: ClosedJaxpr, operation: Any) -> None:
        """Before the first call of the program `closed`; `operation` is the primitive that it is an application of, if
        it is one."""
        self.signature, self.captured = jaxpr_signature(closed.jaxpr), closed.consts
        self.who = "jit-compiled function" if operation is None else operation.name
        self.direct = self.usual = lambda buffers, leaves: self.result(leaves)

    def run(self, leaves: Sequence[Any]) -> list[Any]:
        """As of any Entry.

        Raises:
          KeyReuseError: an argument is a key that an earlier call used up, and the program uses it.
        """
        given = [*leaves, *self.captured]
        before = [state_of(x) for x in given]
        check_unused(self.signature, [s.used for s in before], self.who, [s.where for s in before])
        outs = super().run(leaves)
        where = capture()
        for sink in self.signature.sinks:
            x, old = given[sink.idx], state_of(given[sink.idx])
            used = np.logical_or(fitted(sink.mask, np.shape(x)), old.used)
            set_state(x, KeyState(used, where if old.where is None else old.where))
        new = {s.idx: ~np.asarray(s.mask) for s in self.signature.sources}
        for i, out in enumerate(outs):
            set_state(out, KeyState(new.get(i, True), where))
        for forward in self.signature.forwards:
            shape = np.shape(outs[forward.out_idx])
            old = state_of(given[forward.in_idx])
            set_state(outs[forward.out_idx], KeyState(fitted(old.used, shape), old.where))
        return outs
