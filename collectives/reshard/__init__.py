"""Resharding: planned as the cheapest way from one layout to another, and written into a per-device program.

planner, search, moves    which collectives
pieces, boxes, tiles      exchanges of exact pieces, where no collective moves as little
realise*, words           plans as operations
"""

from .moves import ReshardStep
from .planner import Planner, ReshardPlan, runs_of, step_cost

__all__ = ["Planner", "ReshardPlan", "ReshardStep", "runs_of", "step_cost"]
