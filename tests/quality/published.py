"""Computes the makespans of SAGA's schedulers in reference.json.

    python3 -m venv saga && saga/bin/pip install anrg-saga==2.0.2
    PYTHONHASHSEED=0 saga/bin/python tests/quality/published.py [FOLDER]

FOLDER is this one, or `structured`.

Replaces `heft`, `best_of_19` and `best_by` of each task graph, and keeps the optima. Only complete
and legal schedules count: every task has its time on one node, after its data has arrived, and
tasks of a node do not overlap. hbmct of SAGA 2.0.2 loses tasks: when it moves a task between two
nodes, it drops the tasks of its set on all others.
"""

import concurrent.futures
import json
import logging
import pathlib
import sys

from saga import Network, TaskGraph, schedulers

FOLDER = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
REFERENCE = FOLDER / "reference.json"
NAMES = """BIL Cpop Duplex ETF FastestNode FCP FLB GDL Hbmct Heft MaxMin MCT MET MinMin Msbc MST OLB
Sufferage WBA""".split()
# Sums of rounded times differ in their last digits.
TOLERANCE = 1e-9


def problem(instance, schedule):
    """Returns what is wrong with a schedule, or None."""
    speeds = {node["name"]: node["speed"] for node in instance["network"]["nodes"]}
    links = {}
    for edge in instance["network"]["edges"]:
        links[edge["source"], edge["target"]] = edge["speed"]
        links[edge["target"], edge["source"]] = edge["speed"]
    placed = {task.name: task for _, tasks in schedule.items() for task in tasks}
    slack = TOLERANCE * max(task.end for task in placed.values())
    for task in instance["task_graph"]["tasks"]:
        if task["name"] not in placed:
            return f"task {task['name']} is missing"
        found = placed[task["name"]]
        if found.end - found.start < task["cost"] / speeds[found.node] - slack:
            return f"task {task['name']} is too short"
    for edge in instance["task_graph"]["dependencies"]:
        before, after = placed[edge["source"]], placed[edge["target"]]
        arrival = before.end
        if before.node != after.node:
            arrival += edge["size"] / links[before.node, after.node]
        if after.start < arrival - slack:
            return f"task {after.name} starts before its data arrives"
    for _, tasks in schedule.items():
        tasks = sorted(tasks, key=lambda task: (task.start, task.end))
        for before, after in zip(tasks, tasks[1:]):
            if after.start < before.end - slack:
                return f"tasks {before.name} and {after.name} overlap"
    return None


def makespans(path):
    """Returns the makespan of every scheduler whose schedule is legal."""
    logging.disable(logging.WARNING)
    instance = json.loads(path.read_text())
    graph, network = instance["task_graph"], instance["network"]
    tasks = TaskGraph.create(
        [(task["name"], task["cost"]) for task in graph["tasks"]],
        [(edge["source"], edge["target"], edge["size"]) for edge in graph["dependencies"]],
    )
    nodes = Network.create(
        [(node["name"], node["speed"]) for node in network["nodes"]],
        [(edge["source"], edge["target"], edge["speed"]) for edge in network["edges"]],
    )
    found = {}
    for name in NAMES:
        try:
            schedule = getattr(schedulers, f"{name}Scheduler")().schedule(nodes, tasks)
        except Exception as error:  # a scheduler that fails has no makespan
            print(f"{path.stem}: {name}: {error!r}", file=sys.stderr)
            continue
        wrong = problem(instance, schedule)
        if wrong:
            print(f"{path.stem}: {name}: {wrong}", file=sys.stderr)
        else:
            found[name.lower()] = schedule.makespan
    return found


def main():
    reference = json.loads(REFERENCE.read_text())
    paths = {name: FOLDER / (name.replace("/", ".", 1) + ".json") for name in reference}
    with concurrent.futures.ProcessPoolExecutor() as pool:
        results = dict(zip(paths, pool.map(makespans, paths.values())))
    for name, found in results.items():
        best = min(found, key=found.get)
        row = reference[name]
        print(f"{name}: {row.get('best_of_19')} -> {found[best]} ({best})")
        row["heft"], row["best_of_19"], row["best_by"] = found["heft"], found[best], best
    REFERENCE.write_text(json.dumps(reference, indent=1) + "\n")


if __name__ == "__main__":
    main()
