"""From a call to a running program: one file per station, each of which imports only those before it.

    static_arguments, placement    what a call gives: Python values that traces are made for, meshes and devices
    traced       Python function -> Jaxpr                                   TraceRecord, Traced
    lowered      Jaxpr -> global StableHLO with `sdy` annotations           Lowered
    propagated   every value has a sharding, with a log of why              Propagated
    partitioned  one device's program with explicit collectives             Partitioned
    program      the portable executable: compiled, bound to no device      CompiledProgram
    loaded       the executable on a list of devices                        Loaded
    entry        a call of known types, ready to run                        Entry
    compiled     a loaded program that a user calls (ahead of time)         Compiled
    ahead        a program for hardware that is not here                    TopologyCompiled
    driver       owns every cache and its key, and takes a value from one station to the next

A station's value is made once and never changes. It holds no cache, and before `loaded` no device but in what the
function itself captures or names (an array, a Mesh in a constraint): where it runs is known to the `Road` that was
handed to it, through which it reaches the stations after it. `meshrt.jit` is the face.
"""
