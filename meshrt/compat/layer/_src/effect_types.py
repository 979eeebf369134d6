"""Which classes of effects operations may have where, as `jax._src.effects` declares them.

They are for programs that declare effects of their own. meshrt asks those for control flow and for lowering; what
cannot be done under a transformation is refused where that is found out.
"""

from __future__ import annotations

from meshrt.core.effects import EffectTypes, control_flow_allowed_effects, lowerable_effects

__all__ = [
    "EffectTypeSet", "control_flow_allowed_effects", "custom_derivatives_allowed_effects", "lowerable_effects",
    "ordered_effects", "partial_eval_kept_effects", "remat_allowed_effects", "shardable_ordered_effects",
]  # fmt: skip

EffectTypeSet = EffectTypes

ordered_effects = EffectTypeSet()
shardable_ordered_effects = EffectTypeSet()
custom_derivatives_allowed_effects = EffectTypeSet()
remat_allowed_effects = EffectTypeSet()
partial_eval_kept_effects = EffectTypeSet()
