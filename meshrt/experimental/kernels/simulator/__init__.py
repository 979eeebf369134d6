"""A simulator of chips for kernels: memories, semaphores, copies, cores that run at the same time.

`pallas_call(..., interpret=InterpretParams())` runs a kernel here, as a callback of the program. What a chip does not
say is an error with the kernel's line: races, accesses out of bounds, deadlocks, memory that nobody wrote, copies that
nobody waits for.

    params       what users choose, and how a call gets here
    machine      cores that take turns, semaphores, copies in flight
    steps        the grid of one core: blocks copied in and out
    evaluator    a kernel's Jaxpr, equation by equation
    memory       what memories hold, and who touched what
    arithmetic   operations on values, by NumPy
"""
