"""Running programs: arrays, transfers, compilation, executables and the door to jaxlib."""
