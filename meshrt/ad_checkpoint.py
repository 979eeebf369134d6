"""Checkpointing (rematerialisation): what reverse mode saves, and policies for it."""

from meshrt.transforms.checkpoint import checkpoint as checkpoint
from meshrt.transforms.checkpoint import remat as remat
from meshrt.transforms.checkpoint_policies import checkpoint_name as checkpoint_name
from meshrt.transforms.checkpoint_policies import checkpoint_policies as checkpoint_policies
from meshrt.transforms.recompute import Offloadable as Offloadable
from meshrt.transforms.recompute import Recompute as Recompute
from meshrt.transforms.recompute import Saveable as Saveable
from meshrt.transforms.saved import print_saved_residuals as print_saved_residuals
from meshrt.transforms.saved import saved_residuals as saved_residuals
