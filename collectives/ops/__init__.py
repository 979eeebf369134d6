"""How each operation runs on pieces of its operands: one file per family, under the same stem as in
`propagation.rules` and `meshrt.primitives`. `walk.families` says what a file exports.
"""
