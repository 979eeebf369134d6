"""Jaxpr to global StableHLO, written as text."""
