"""Branches of a graph run on the least loaded devices: guest/examples/branches in Python.

A node runs where its inputs are. A node that starts a branch runs on the least loaded device.
"""

from placewright_policy import Assignment, BadValue, Policy, Setting, constants, export, rows

PRELOADED = 16  # a bit of graph.edge_kinds(): the edge of a constant or a placeholder


class Branches(Policy):
    NAME = "branches-py"
    VERSION = "0.1.0"
    DESCRIPTION = "branches of a graph run on the least loaded devices"
    SETTINGS = [
        Setting(
            key="spread-above-ns",
            kind="f64",
            default="0",
            description="a branch that starts with a faster node stays on the preferred device",
        )
    ]

    def configure(self, config):
        value = config["spread-above-ns"]
        try:
            self.spread_above_ns = float(value)
        except ValueError:
            raise BadValue("spread-above-ns", value, "f64") from None

    def place(self, graph, devices, plan, seed):
        # Each getter copies a column: call it once.
        candidates, candidate_set = rows(graph.candidates()), graph.candidate_set()
        inputs, kinds = graph.predecessors(), graph.edge_kinds()
        costs, cost_row = graph.costs(), graph.cost_row()
        n_classes, class_of = graph.counts().cost_classes, devices.cost_classes()

        def cost_ns(node, device):
            return costs[cost_row[node] * n_classes + class_of[device]]

        placed = Assignment(graph)  # respects pins and colocation groups
        load_ns = [0.0] * devices.count()
        is_constant = constants(graph)
        starts, followers, grouped, held = [], [], [], []
        for node, (start, end) in enumerate(zip(inputs.offsets, inputs.offsets[1:])):
            legal = candidates[candidate_set[node]]  # never empty
            for edge in range(start, end):
                wanted = placed.devices[inputs.items[edge]]
                if not kinds[edge] & PRELOADED and wanted in legal:
                    reason = followers
                    break
            else:
                reason, wanted = starts, legal[0]
                if cost_ns(node, wanted) >= self.spread_above_ns:
                    wanted = min(legal, key=load_ns.__getitem__)
            device = placed.decide(node, wanted)
            load_ns[device] += cost_ns(node, device)
            if is_constant[node]:
                reason = held  # its device changes nothing
            elif device != wanted:
                reason = grouped
            reason.append(node)

        plan.set_devices(placed.devices)
        plan.offer()  # an illegal plan raises its violation, which reaches the user
        if plan.explain_wanted():
            plan.explain(starts, "starts a branch")
            plan.explain(followers, "runs where an input is")
            plan.explain(grouped, "its colocation group is there")
            plan.explain(held, "constant, held by its readers")


Lifecycle, WholeGraph = export(Branches)
