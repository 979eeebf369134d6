"""Function transformations: differentiation, batching, checkpointing and custom derivatives."""
