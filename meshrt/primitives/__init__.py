"""The primitives, one file per family. Everything about a primitive stands in one place."""
