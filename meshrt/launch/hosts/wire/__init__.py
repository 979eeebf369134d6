"""The messages of coordinators and agents: coordinator.proto, and what `make protos` makes of it."""
