"""Running programs: arrays, transfers, compilation, executables and their caches."""
