"""Sharding rules of users: the grammar and what rules are bound to, judged by JAX on texts drawn at random."""

from __future__ import annotations

import random
import re

import pytest
from jax._src.custom_partitioning_sharding_rule import sdy_sharding_rule_to_mlir, str_to_sdy_sharding_rule
from jax._src.interpreters.mlir import make_ir_context
from jax._src.lib.mlir import ir

from meshrt import errors
from meshrt.sharding.rules import BATCHING, ArrayMapping, CompoundFactor, ShardingRule, parse_rule, with_batch

PIECES = [
    "i", "j", "k2", "_a", "b_c", "(", ")", ",", "->", "...", "...1", "...01", "3", " ", "  ", "(i j)", "(a b)", ".",
    "*", "i ", "é", "\t",
]  # fmt: skip


def _parsed(parse, text, keywords):
    try:
        rule = parse(text, **keywords)
    except ValueError:
        return "ValueError"
    return tuple(map(tuple, rule.operand_mappings)), tuple(map(tuple, rule.result_mappings)), dict(rule.factor_sizes)


@pytest.mark.parametrize("seed", range(4))
def test_texts_are_read_as_jax_reads_them(seed):
    rng, read = random.Random(seed), 0
    for _ in range(5000):
        text = "".join(rng.choice(PIECES) for _ in range(rng.randint(0, 6)))
        if rng.random() < 0.6:
            text += "->" + "".join(rng.choice(PIECES) for _ in range(rng.randint(0, 4)))
        if any("," in inside.split(")")[0] for inside in text.split("(")[1:]):
            continue  # JAX reads a comma inside brackets as the end of an operand, and goes on inside of them
        keywords: dict = {c: rng.choice([2, 3, 4]) for c in rng.sample("ijab", 2)} if rng.random() < 0.4 else {}
        for kind in ("reduction_factors", "need_replication_factors", "permutation_factors"):
            if rng.random() < 0.2:
                keywords[kind] = tuple(rng.choice("ijk") for _ in range(rng.randint(1, 2)))
        want = _parsed(str_to_sdy_sharding_rule, text, keywords)
        assert _parsed(parse_rule, text, keywords) == want, (text, keywords)
        read += not isinstance(want, str)
    assert read > 100


SOUND = [
    "i j, j k -> i k", "->", " -> ", "i->", "->i", "i ->i", "...->...", "... i -> ... i", "...i->...i",
    "...0 i, ...1 j -> ...1 i j", "i,->i", "(i j) -> i j", "i j -> (i j)",
    "(a b c) d -> d (a b c)", "abc de_f -> de_f abc", "i2 -> i2", "i, j -> i j, j i",
]  # fmt: skip


@pytest.mark.parametrize("text", SOUND)
def test_sound_texts(text):
    sizes = dict.fromkeys("abc", 2) if "a b c" in text else {}
    assert _parsed(parse_rule, text, sizes) == _parsed(str_to_sdy_sharding_rule, text, sizes)
    assert str(parse_rule(text, **sizes)) == str(str_to_sdy_sharding_rule(text, **sizes))


BAD = {
    "i j": "There is no ->",
    "i -> j -> k": "There is 2 ->",
    "i…j -> i": "Unknown character '…'",
    "i.j -> i": "'.' must be used inside ellipsis",
    "i ... -> i": "Ellipsis can only be used at the beginning",
    "(... i) -> i": "Ellipsis can only be used at the beginning",
    "1i -> i": "start with a letter",
    "_i -> i": "start with a letter",
    "i* -> i": "Unknown character '\\*'",
    "((i j) k) -> i": "nested brackets",
    "(i j -> i": "not balanced",
    "i j) -> i": "not balanced",
    "(i) -> i": "at least two factors",
    "() -> i": "at least two factors",
    "(i, j) -> i": "not balanced",
    "(i j) -> k": "must specify its size",
}


@pytest.mark.parametrize("text", BAD)
def test_texts_outside_of_the_grammar_are_refused_with_the_rule(text):
    with pytest.raises(errors.ShardingRuleError, match=BAD[text]) as caught:
        parse_rule(text)
    assert isinstance(caught.value, ValueError)
    if "…" not in text:
        assert repr(text) in str(caught.value)


KEYWORDS = [
    ("i -> i", {"reduction_factors": ("j",)}, "is not used in the rule"),
    ("i -> i", {"reduction_factors": ["i"]}, "must be a tuple"),
    ("i -> i", {"reduction_factors": ("i", "i")}, "duplicated factors"),
    ("i -> i", {"reduction_factors": ("i",), "permutation_factors": ("i",)}, "can only be in one of"),
    ("i -> i", {"i": 4}, "represents a whole dimension"),
    ("i -> i", {"j": 4}, "not used in the rule, but size is provided"),
    ("(i j) -> i", {"j": 0}, "must be positive"),
]


@pytest.mark.parametrize("text, keywords, message", KEYWORDS)
def test_keywords_that_do_not_fit(text, keywords, message):
    with pytest.raises(errors.ShardingRuleError, match=message):
        parse_rule(text, **keywords)


def test_types_of_arguments():
    with pytest.raises(TypeError, match="rule must be a str, but got <class 'int'>"):
        parse_rule(3)
    with pytest.raises(TypeError, match="must be an int"):
        parse_rule("(i j) -> i", j=2.5)
    with pytest.raises(errors.ShardingRuleError, match="at least two"):
        CompoundFactor("i")
    with pytest.raises(errors.ShardingRuleError, match="can't be used in a compound"):
        CompoundFactor("i", BATCHING)
    with pytest.raises(errors.ShardingRuleError, match="must be a str"):
        CompoundFactor("i", 3)
    with pytest.raises(errors.ShardingRuleError, match="str or CompoundFactor"):
        ArrayMapping(("i", "j"))
    with pytest.raises(errors.ShardingRuleError, match="beginning"):
        ArrayMapping("i", BATCHING)


def test_a_rule_by_hand_is_the_one_that_is_read():
    made = ShardingRule((ArrayMapping(BATCHING, CompoundFactor("a", "b")),), ((BATCHING, "a"),), b=2)
    assert made.operand_mappings == ((BATCHING, ("a", "b")),)
    assert made.bind([(3, 8)], [(3, 4)]).to_text() == "([i, jk])->([i, j]) {i=3, j=4, k=2}, custom"


# ---------------------------------------------------------------------------------------------------------------------
# Bound to shapes


def _jax_text(text, keywords, ins, outs):
    with make_ir_context(), ir.Location.unknown():
        kind = lambda s: ir.RankedTensorType.get(s, ir.F32Type.get())
        rule = str_to_sdy_sharding_rule(text, **keywords)
        made = sdy_sharding_rule_to_mlir(rule, [kind(s) for s in ins], [kind(s) for s in outs])
        return str(made).removeprefix("#sdy.op_sharding_rule<")[:-1]


def _ours(text, keywords, ins, outs):
    return parse_rule(text, **keywords).bind(ins, outs).to_text()


def _outcome(f, *args):
    try:
        return f(*args)
    except ValueError:
        return "ValueError"


@pytest.mark.parametrize("seed", range(3))
def test_rules_bind_to_shapes_as_in_jax(seed):
    rng, bound = random.Random(seed), 0
    for _ in range(250):
        sizes = {f: rng.choice([2, 3, 4, 6]) for f in "abcd"}
        values, shapes = [], []
        lead = {g: [rng.choice([2, 3]) for _ in range(rng.randint(0, 2))] for g in ("...", "...1")}
        for _ in range(rng.randint(2, 4)):
            factors = rng.sample("abcd", rng.randint(0, 3))
            dims, shape = [], []
            while factors:
                if len(factors) > 1 and rng.random() < 0.3:
                    pair = [factors.pop(), factors.pop()]
                    dims.append(f"({' '.join(pair)})")
                    shape.append(sizes[pair[0]] * sizes[pair[1]])
                else:
                    dims.append(factors[-1])
                    shape.append(sizes[factors.pop()])
            if rng.random() < 0.4:
                group = rng.choice(list(lead))
                dims.insert(0, group)
                shape = lead[group] + shape
            values.append(" ".join(dims))
            shapes.append(tuple(shape))
        if rng.random() < 0.2 and shapes[0]:
            shapes[0] = (*shapes[0][:-1], rng.choice([1, 5]))
        if rng.random() < 0.1:
            shapes[-1] = (*shapes[-1], 2)
        count = rng.randint(1, len(values) - 1)
        text = ", ".join(values[:count]) + " -> " + ", ".join(values[count:])
        inside = {f for v in values for part in v.split("(")[1:] for f in part.split(")")[0].split()}
        alone = {f for v in values for f in re.sub(r"\(.*?\)", "", v).split()}
        keywords: dict = {f: sizes[f] for f in inside - alone}
        named = sorted(inside | {f for f in alone if not f.startswith(".")})
        if named and rng.random() < 0.5:
            keywords[rng.choice(["reduction_factors", "need_replication_factors"])] = (rng.choice(named),)
        args = text, keywords, shapes[:count], shapes[count:]
        want = _outcome(_jax_text, *args)
        assert _outcome(_ours, *args) == want, args
        bound += want != "ValueError"
    assert bound > 80


def test_what_does_not_fit_names_the_operand():
    rule = parse_rule("... i, ... j -> i j")
    with pytest.raises(
        errors.ShardingRuleError, match="Ellipsis represents different number of leading dimensions 1 and 0"
    ):
        rule.bind([(2, 3), (4,)], [(3, 4)])
    with pytest.raises(errors.ShardingRuleError, match="Batching dimension 0_0 corresponds to two sizes: 2 and 3"):
        rule.bind([(2, 3), (3, 4)], [(3, 4)])
    with pytest.raises(
        errors.ShardingRuleError, match="0th result has rank 2, but the operation 0th result has rank 1"
    ):
        rule.bind([(3,), (4,)], [(3,)])
    with pytest.raises(errors.ShardingRuleError, match="has 2 operands, but the operation has 1"):
        rule.bind([(3,)], [(3, 4)])
    with pytest.raises(errors.ShardingRuleError, match="1th operand actual size 9 doesn't match the size 8"):
        parse_rule("i, (i j) -> i j").bind([(2,), (9,)], [(2, 4)])


def test_a_mapped_dimension_is_one_more_factor():
    rule = parse_rule("i j, j -> i", reduction_factors=("j",)).bind([(4, 8), (8,)], [(4,)])
    text = with_batch(rule, 3, [True, False], [True]).to_text()
    assert text == "([i, j, k], [k])->([i, j]) {i=3, j=4, k=8} reduction={k}, custom"
