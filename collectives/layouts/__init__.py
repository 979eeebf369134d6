"""Layouts of values: what is known, and what it costs to have another.

state, known           which versions of a value the per-device program holds
siblings               which value a tensor of that program is a version of
costs                  what rules decide by
writing, context       writing operations; the whole context, which rules are given (start reading here)
drafts                 what writing changes of a context, as a value to take or drop
loop_carries           layouts of what loops carry
recompute, provenance  computing again instead of resharding; why values are asked for
"""
