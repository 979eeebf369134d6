"""What is read out of an attribute is kept for the function that read it."""

from __future__ import annotations

from jaxlib.mlir import ir

from propagation.attributes import cached


def test_functions_of_one_name_keep_what_they_read_apart():
    def reading(form):
        calls = []

        @cached
        def read(attr):
            calls.append(attr)
            return form(ir.IntegerAttr(attr).value)

        return read, calls

    (as_text, texts), (as_number, numbers) = reading(str), reading(int)
    with ir.Context():
        attr = ir.Attribute.parse("7 : i32")
        assert [as_text(attr), as_number(attr), as_text(attr), as_number(attr)] == ["7", 7, "7", 7]
    assert (len(texts), len(numbers)) == (1, 1)
