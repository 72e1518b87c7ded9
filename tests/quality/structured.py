"""Makes the task graphs in `structured`: shapes of parallel programs, and random layers.

    python3 tests/quality/structured.py

Each shape is made with little and with much communication. The graphs depend on nothing but this
file. `optima.py` and `published.py` compute what is known of them.
"""

import json
import pathlib
import random

FOLDER = pathlib.Path(__file__).parent / "structured"
# The communication of a graph as a part of its computation, on the mean link.
COMMUNICATION = {"low": 0.2, "high": 2.0}
SPEEDS = {2: [1.0, 2.0], 3: [1.0, 1.5, 3.0], 4: [1.0, 1.25, 2.0, 2.5]}


def cholesky(n):
    """Tiled Cholesky factorization of n x n tiles."""
    last, edges, costs = {}, [], {}
    def task(name, cost, reads, writes):
        costs[name] = cost
        for tile in [*reads, writes]:
            if tile in last:
                edges.append((last[tile], name))
        last[writes] = name
    for k in range(n):
        task(f"potrf{k}", 1, [], (k, k))
        for i in range(k + 1, n):
            task(f"trsm{k}.{i}", 3, [(k, k)], (i, k))
        for i in range(k + 1, n):
            for j in range(k + 1, i + 1):
                name, cost = (f"syrk{k}.{i}", 3) if i == j else (f"gemm{k}.{i}.{j}", 6)
                task(name, cost, [(i, k), (j, k)], (i, j))
    return costs, edges


def fft(n):
    """Butterflies over n points, a task per point and step."""
    costs = {f"s0.{i}": 1 for i in range(n)}
    edges, step, stride = [], 1, 1
    while stride < n:
        for i in range(n):
            costs[f"s{step}.{i}"] = 2
            for other in (i, i ^ stride):
                edges.append((f"s{step - 1}.{other}", f"s{step}.{i}"))
        step, stride = step + 1, stride * 2
    return costs, edges


def stencil(steps, width):
    """Each cell reads three neighbours of the step before."""
    costs = {f"t{s}.{i}": 2 for s in range(steps) for i in range(width)}
    edges = [
        (f"t{s - 1}.{j}", f"t{s}.{i}")
        for s in range(1, steps)
        for i in range(width)
        for j in range(max(0, i - 1), min(width, i + 2))
    ]
    return costs, edges


def wavefront(n):
    """Each cell reads those above and to the left."""
    costs = {f"c{i}.{j}": 2 for i in range(n) for j in range(n)}
    edges = [(f"c{i - 1}.{j}", f"c{i}.{j}") for i in range(1, n) for j in range(n)]
    edges += [(f"c{i}.{j - 1}", f"c{i}.{j}") for i in range(n) for j in range(1, n)]
    return costs, edges


def tree(depth, outward):
    """A binary tree, from the root to the leaves or back."""
    costs = {f"n{i}": 2 for i in range(1, 2**depth)}
    edges = [(f"n{i // 2}", f"n{i}") for i in range(2, 2**depth)]
    return costs, edges if outward else [(b, a) for a, b in edges]


def fork_join(width, stages):
    """Stages of independent tasks between two tasks each."""
    costs, edges = {"join0": 1}, []
    for s in range(1, stages + 1):
        costs[f"join{s}"] = 1
        for i in range(width):
            costs[f"w{s}.{i}"] = 3
            edges += [(f"join{s - 1}", f"w{s}.{i}"), (f"w{s}.{i}", f"join{s}")]
    return costs, edges


def layers(rng, n, width):
    """Random layers: each task reads one to three of the two layers before."""
    costs, edges, rows = {}, [], []
    while sum(map(len, rows)) < n:
        row = [f"r{len(rows)}.{i}" for i in range(rng.randint(1, width))]
        before = [name for earlier in rows[-2:] for name in earlier]
        for name in row:
            costs[name] = rng.randint(1, 9)
            for producer in rng.sample(before, min(len(before), rng.randint(1, 3))):
                edges.append((producer, name))
        rows.append(row)
    return costs, edges


def shapes(rng):
    return {
        "cholesky_3": cholesky(3),
        "cholesky_4": cholesky(4),
        "fft_4": fft(4),
        "stencil_4x4": stencil(4, 4),
        "wavefront_4": wavefront(4),
        "out_tree_4": tree(4, True),
        "in_tree_4": tree(4, False),
        "fork_join_4x3": fork_join(4, 3),
        "layers_14": layers(rng, 14, 4),
        "layers_18": layers(rng, 18, 5),
        "layers_20": layers(rng, 20, 3),
    }


def instance(name, costs, edges, communication, n_nodes, rng):
    """Varies costs and sizes by a third, so that few schedules are equally long."""
    vary = lambda value: round(value * rng.uniform(2 / 3, 4 / 3), 3)
    speeds = SPEEDS[n_nodes]
    costs = {task: vary(cost) for task, cost in costs.items()}
    mean_work = sum(costs.values()) / len(speeds) * sum(1 / speed for speed in speeds)
    size = communication * mean_work / len(edges)
    nodes = [f"N{i}" for i in range(n_nodes)]
    return {
        "source": "structured.py",
        "license": "Apache-2.0",
        "name": name,
        "task_graph": {
            "tasks": [{"name": task, "cost": cost} for task, cost in costs.items()],
            "dependencies": [
                {"source": a, "target": b, "size": vary(size)} for a, b in dict.fromkeys(edges)
            ],
        },
        "network": {
            "nodes": [{"name": node, "speed": s} for node, s in zip(nodes, speeds)],
            "edges": [
                {"source": a, "target": b, "speed": 1e9 if a == b else rng.choice([0.75, 1.0, 1.5])}
                for i, a in enumerate(nodes)
                for b in nodes[i:]
            ],
        },
    }


def main():
    FOLDER.mkdir(exist_ok=True)
    rng = random.Random(2026)
    reference = {}
    for number, (shape, (costs, edges)) in enumerate(shapes(rng).items()):
        for level, communication in COMMUNICATION.items():
            name = f"structured/{shape}_{level}"
            made = instance(name, costs, edges, communication, 2 + number % 3, rng)
            path = FOLDER / (name.replace("/", ".", 1) + ".json")
            path.write_text(json.dumps(made, separators=(",", ":")) + "\n")
            graph, network = made["task_graph"], made["network"]
            reference[name] = {
                "tasks": len(graph["tasks"]),
                "edges": len(graph["dependencies"]),
                "nodes": len(network["nodes"]),
            }
    (FOLDER / "reference.json").write_text(json.dumps(reference, indent=1) + "\n")


if __name__ == "__main__":
    main()
