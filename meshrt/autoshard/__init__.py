"""Which shardings of a program's arguments make it fast: `meshrt suggest`, and which mesh: `meshrt plan`.

Every candidate is judged by what would run it: propagation, the partitioner, the estimates of memory and time
(`collectives.plan.memory`, `collectives.plan.timing`). There is no second model of costs that could say otherwise.
"""
