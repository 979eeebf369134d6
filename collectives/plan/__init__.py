"""What is known of a finished per-device program: what it sends (`communication`), holds (`liveness`, `memory`,
`capacity`) and takes (`timing`)."""

from ..findings import Finding, human, human_time
from .communication import CommunicationPlan, Origin, PlanEntry, plan_of

__all__ = ["CommunicationPlan", "Finding", "Origin", "PlanEntry", "human", "human_time", "plan_of"]
