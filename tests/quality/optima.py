"""Computes the optima in the reference.json of a folder with OR-Tools' CP-SAT.

    python3 -m venv solver && solver/bin/pip install ortools==9.15.6755
    solver/bin/python tests/quality/optima.py tests/quality/structured [SECONDS]

A task takes its cost, divided by the speed of its node; data takes its size, divided by the speed
of the link; a node executes one task at a time; transfers do not slow each other down. Times are
rounded to a millionth of the longest schedule that is considered, so an optimum is exact to some
millionths. It is proven within SECONDS (60) on one thread, or null.
"""

import json
import pathlib
import sys

from ortools.sat.python import cp_model

STEPS = 1_000_000


def solve(instance, known, seconds):
    """Returns the least makespan and a lower bound. `known` is a makespan that is possible."""
    graph, network = instance["task_graph"], instance["network"]
    speeds = {node["name"]: node["speed"] for node in network["nodes"]}
    links = {}
    for edge in network["edges"]:
        links[edge["source"], edge["target"]] = edge["speed"]
        links[edge["target"], edge["source"]] = edge["speed"]
    step = known * 1.001 / STEPS
    model = cp_model.CpModel()
    end = model.new_int_var(0, STEPS, "end")
    starts, places, of_node = {}, {}, {node: [] for node in speeds}
    for task in graph["tasks"]:
        name = task["name"]
        starts[name] = model.new_int_var(0, STEPS, name)
        for node, speed in speeds.items():
            is_here = model.new_bool_var(f"{name}@{node}")
            length = round(task["cost"] / speed / step)
            of_node[node].append(
                model.new_optional_fixed_size_interval_var(starts[name], length, is_here, name)
            )
            places[name, node] = is_here, length
            model.add(end >= starts[name] + length).only_enforce_if(is_here)
        model.add_exactly_one(places[name, node][0] for node in speeds)
    for intervals in of_node.values():
        model.add_no_overlap(intervals)
    for edge in graph["dependencies"]:
        before, after = edge["source"], edge["target"]
        for first in speeds:
            here, length = places[before, first]
            for second in speeds:
                lag = 0 if first == second else round(edge["size"] / links[first, second] / step)
                there = places[after, second][0]
                model.add(starts[after] >= starts[before] + length + lag).only_enforce_if(here, there)
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    bound = solver.best_objective_bound * step
    if status == cp_model.OPTIMAL:
        return solver.objective_value * step, bound
    return None, bound


def main():
    folder = pathlib.Path(sys.argv[1])
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    path = folder / "reference.json"
    reference = json.loads(path.read_text())
    for name, row in reference.items():
        instance = json.loads((folder / (name.replace("/", ".", 1) + ".json")).read_text())
        row["optimum"], row["lower_bound"] = solve(instance, row["best_of_19"], seconds)
        print(f"{name}: {row['optimum']} (best of 19: {row['best_of_19']})", flush=True)
        path.write_text(json.dumps(reference, indent=1) + "\n")


if __name__ == "__main__":
    main()
