"""The last station: a call of known types, ready to run.

An Entry plans once how the arguments of such a call reach the devices; running it is one launch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import config, dtypes, errors
from meshrt.pipeline.loaded import Loaded
from meshrt.pipeline.nonfinite import explainer
from meshrt.pipeline.structures import Bare, builder, only
from meshrt.pipeline.written import Written
from meshrt.runtime import process_groups, transfer
from meshrt.runtime.array import Array, Signature, arrays, blank, copy_array, sharing, signature
from meshrt.runtime.layouts import relayout
from meshrt.runtime.reshard import reshard
from meshrt.runtime.results import runner
from meshrt.runtime.signature import handlers
from meshrt.sharding.layout import Layout
from meshrt.transforms.arguments import not_an_argument
from meshrt.xla import jaxlib_api

__all__ = ["Entry", "any_committed", "in_place"]

_buf = operator.attrgetter("_buf")


def any_committed(leaves: Sequence[Any]) -> bool:
    return any(type(x) is Array and x.committed for x in leaves)


class Entry:
    """A compiled call for one signature: `run(leaves)` gives the flat results, `result(leaves)` their pytree.

    `direct(buffers, leaves)` is the same as `result` for a caller that has the buffers of all leaves; `usual` is that
    too, or what it consists of.
    """

    __slots__ = (
        "after", "build", "consts", "direct", "donated", "empty", "is_placed", "kept", "launch", "moves", "name",
        "out_tree", "parted", "plain", "record", "signatures", "usual",
    )  # fmt: skip

    def __init__(self, name: str, loaded: Loaded, leaves: Sequence[Any], committed: bool, written: Written | None):
        program = loaded.program
        record, request = program.record, program.request
        self.name, self.record, self.out_tree = name, record, record.out_tree
        self.is_placed = committed  # whether more than the mesh in context says where it runs
        self.kept = program.kept
        self.consts = loaded.const_buffers
        offset = len(program.consts)
        # What has to be brought into place: position, signature there, whether equal scalars may share a buffer.
        self.moves = [
            (k, sig, not request.donated[i])
            for k, i in enumerate(program.kept) if not in_place(leaves[i], sig := self._taken(loaded, offset + k, i))
        ]  # fmt: skip
        self.donated = (
            [
                (i, f"donated as argument {path} of {name}")
                for i, (donated, path) in enumerate(zip(request.donated, record.arg_paths()))
                if donated
            ]
            if any(request.donated)
            else []
        )
        # Donated ones that go along when their copy does, as it keeps them whole on their own device: buffer, argument.
        self.parted = [
            (offset + k, program.kept[k]) for k, sig, shared in self.moves
            if not shared and _is_kept_by(leaves[program.kept[k]], sig)
        ]  # fmt: skip
        avals = program.out_avals
        committed = committed or (written is not None and written.named)
        self.signatures = [
            signature(a, s, committed, loaded.out_layouts.get(i))
            for i, (a, s) in enumerate(zip(avals, loaded.shown(written)))
        ]
        # Results whose elements are put into another order behind the program: position, layout.
        self.after = [(i, layout) for i, (_, layout) in enumerate(loaded.delivered(written)) if layout is not None]
        # The common case: every argument is used, in its place, nothing is captured, and results stay where they are.
        # Results that hold nothing, which are given to the host as zeros of float0.
        self.empty = [(i, a.shape) for i, a in enumerate(avals) if a.dtype == dtypes.float0]
        in_order = not self.moves and not self.after and not self.empty
        self.plain = len(program.kept) == len(leaves) and in_order and not self.consts
        self.build = builder(record.out_tree)
        checked = config.settings.debug_nans or config.settings.debug_infs
        self.launch = runner(loaded.executable, self.signatures, explainer(name, loaded) if checked else None)
        self.direct = self._direct()
        self.usual = self.direct if checked else self._bare(loaded.executable.bare) or self.direct

    @staticmethod
    def _taken(loaded: Loaded, at: int, i: int) -> Signature:
        """As what the program takes the argument `i`, number `at` of the module's."""
        aval, sharding = loaded.program.in_avals[i], loaded.arg_shardings[at]
        return signature(aval, sharding, layout=loaded.arg_layouts.get(at))

    def _bare(self, execute: Callable[[Sequence[Any]], Any] | None) -> Bare | None:
        """The call in parts, where it is the launch of a program with one result and nothing else."""
        if execute is None or not self.plain or self.donated or self.build is not only or len(self.signatures) != 1:
            return None
        making = handlers(self.signatures)
        return Bare(execute, making, self.signatures[0], blank, jaxlib_api.XlaError, self._explained)

    def _direct(self) -> Callable[[list[Any], Sequence[Any]], Any]:
        """The call as one function with everything that can be looked up beforehand looked up."""
        launch, signatures, build, explained = self.launch, self.signatures, self.build, self._explained
        if not self.plain:
            return lambda buffers, leaves: self.result(leaves)
        if self.donated:
            return self._direct_donating()
        if len(signatures) == 1 and build is only:
            signature = signatures[0]

            def call_for_one(buffers: list[Any], leaves: Sequence[Any]) -> Any:
                try:
                    (buf,) = launch(buffers)
                except jaxlib_api.XlaError as e:
                    raise explained(e, leaves) from None
                out = blank()
                out._buf, out._sig = buf, signature
                return out

            return call_for_one

        def call(buffers: list[Any], leaves: Sequence[Any]) -> Any:
            try:
                outs = launch(buffers)
            except jaxlib_api.XlaError as e:
                raise explained(e, leaves) from None
            return build(arrays(outs, signatures))

        return call

    def _direct_donating(self) -> Callable[[list[Any], Sequence[Any]], Any]:
        launch, signatures, build, explained = self.launch, self.signatures, self.build, self._explained
        count, mark = len(self.kept), self._mark_donated

        def call_donating(buffers: list[Any], leaves: Sequence[Any]) -> Any:
            if sharing or len(set(map(id, buffers))) < count:  # what another array holds as well; one array given twice
                return self.result(leaves)
            try:
                outs = launch(buffers)
            except jaxlib_api.XlaError as e:
                raise explained(e, leaves) from None
            mark(leaves)
            return build(arrays(outs, signatures))

        return call_donating

    def result(self, leaves: Sequence[Any]) -> Any:
        """Launches the program on the call's flat arguments; returns its result."""
        return self.build(self.run(leaves))

    def run(self, leaves: Sequence[Any]) -> list[Any]:
        """Launches the program on the call's flat arguments; returns its flat results."""
        given = leaves
        if self.donated and sharing:
            leaves = self._unshared(leaves)
        buffers = [x._buf for x in leaves] if self.plain else self._buffers(leaves)
        if self.donated and len(set(map(id, buffers))) < len(buffers):
            self._check_donated_once(leaves)
        try:
            outs: list[Any] = arrays(self.launch(buffers), self.signatures)
        except jaxlib_api.XlaError as e:
            raise self._explained(e, leaves) from None
        if self.donated:
            self._mark_donated(leaves)
            for k, i in self.parted:
                if buffers[k].is_deleted():
                    leaves[i]._give_up(leaves[i]._fate)
            if given is not leaves:
                for i, fate in self.donated:
                    if given[i] is not leaves[i] and leaves[i].is_deleted():  # the program took the copy
                        given[i]._give_up(fate)
        for i, layout in self.after:
            outs[i] = relayout(outs[i], layout)
        for i, shape in self.empty:
            outs[i] = np.zeros(shape, dtypes.float0)
        return outs

    def _unshared(self, leaves: Sequence[Any]) -> list[Any]:
        """The arguments with copies of those donated arrays whose memory another array holds as well."""
        out = list(leaves)
        for i, _ in self.donated:
            if id(out[i]) in sharing and not out[i].is_deleted():
                out[i] = copy_array(out[i])
        return out

    def _buffers(self, leaves: Sequence[Any]) -> list[Any]:
        """What the program takes: captured arrays, then the arguments that it uses, moved to their places."""
        kept = [leaves[i] for i in self.kept]
        for k, sig, shared in self.moves:
            try:
                kept[k] = _place(kept[k], sig, shared)
            except errors.IntegerOverflowError as e:
                path = self.record.arg_paths()[self.kept[k]]
                raise not_an_argument(self.name, kept[k], path, e) from None
        return self.consts + list(map(_buf, kept))

    def _explained(self, e: Exception, leaves: Sequence[Any]) -> errors.MeshrtError:
        """Names the argument that is gone; everything else is the runtime's own failure."""
        for path, x in zip(self.record.arg_paths(), leaves):
            if type(x) is Array and x.is_deleted():
                how = f" It was {x._fate}." if x._fate else ""
                return errors.DeletedArrayError(
                    f"Array has been deleted with shape={str(x.aval).lstrip('~')}. It is argument {path} of "
                    f"{self.name}.{how} Use the result of that call instead, or don't donate it"
                )
        return process_groups.explained(e, f"running {self.name} failed")

    def _check_donated_once(self, leaves: Sequence[Any]) -> None:
        """A donated array that is also another argument: XLA would fail on some devices and wait on the others."""
        places: dict[int, int] = {}
        for i, x in enumerate(leaves):
            if type(x) is not Array or x.is_deleted():
                continue  # those that are gone share one buffer, and the launch says so
            if places.setdefault(id(x._buf), i) != i:
                first = places[id(x._buf)]
                if any(k in (first, i) for k, _ in self.donated):
                    paths = self.record.arg_paths()
                    raise errors.DonatedTwiceError(
                        f"{self.name} was given one array (shape {x.aval.short()}) as argument {paths[first]} and "
                        f"as argument {paths[i]}, and donates it: it cannot be used twice. Pass a copy (x.copy()) as "
                        "one of them, or don't donate it (donate_argnums)"
                    )

    def _mark_donated(self, leaves: Sequence[Any]) -> None:
        gone = None
        for i, fate in self.donated:
            x = leaves[i]
            if type(x) is Array:
                x._set_fate = fate
                # Its memory is gone. Were this buffer used again, the runtime would print a line of its own before we
                # say what happened, and crash with several devices; one that is known to be deleted does neither.
                if x._buf.is_deleted():
                    if gone is None:
                        gone = jaxlib_api.deleted_buffer(x._sig.local_devices[0])
                    x._buf = gone


def _place(x: Any, sig: Signature, shared: bool) -> Array:
    """An argument laid out as the program wants it."""
    if type(x) is Array:
        if sig.layout is None:
            return reshard(x, sig.sharding)
        return relayout(x if _lies_on(x, sig.sharding) else reshard(x, sig.sharding), sig.layout)
    if sig.layout is not None:
        return relayout(_place(x, signature(sig.aval, sig.sharding), shared), sig.layout)
    if shared and isinstance(x, transfer.SCALARS):
        return transfer.scalar(x, sig)
    return Array(transfer.buffer_of(x, sig), sig)


def _is_kept_by(x: Any, sig: Signature) -> bool:
    """Whether an array stays on its devices when it is laid out so: one on a single device that stays there, whole, and
    one of which only the elements are put into another order."""
    if type(x) is not Array:
        return False
    if (x._sig.layout or sig.layout) is not None and _lies_on(x, sig.sharding):
        return True
    if x.sharding.num_devices != 1 or not sig.sharding.is_fully_replicated:
        return False
    return x.device in sig.sharding.device_assignment


def in_place(x: Any, sig: Signature) -> bool:
    """Whether a program that takes an argument as `sig` says takes `x` as it is."""
    return type(x) is Array and _alike(x._sig.layout, sig.layout) and _lies_on(x, sig.sharding)


def _alike(found: Layout | None, wanted: Layout | None) -> bool:
    return found is wanted or (found is not None and wanted is not None and found.agrees(wanted))


def _lies_on(x: Array, sharding: Any) -> bool:
    return x.sharding is sharding or x.sharding.is_equivalent_to(sharding, x.aval.physical().ndim)
