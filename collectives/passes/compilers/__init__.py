"""Passes that encode the habits of one compiler, each with what was measured."""
