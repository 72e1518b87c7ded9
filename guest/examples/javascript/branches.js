// Branches of a graph run on the least loaded devices: guest/examples/branches in JavaScript.
//
// A node runs where its inputs are. A node that starts a branch runs on the least loaded device.

import { Assignment, BadValue, exportPolicy, rows } from "./placewright-policy.js";

const PRELOADED = 16; // a bit of graph.edgeKinds(): the edge of a constant or a feed

let spreadAboveNs;

export const { lifecycle, wholeGraph } = exportPolicy({
  describe: () => ({
    name: "branches-js",
    version: "0.1.0",
    description: "branches of a graph run on the least loaded devices",
  }),

  settings: [
    {
      key: "spread-above-ns",
      kind: "f64",
      default: "0",
      description: "a branch that starts with a faster node stays on the preferred device",
    },
  ],

  configure(config) {
    const value = config["spread-above-ns"];
    spreadAboveNs = Number(value);
    if (Number.isNaN(spreadAboveNs)) throw new BadValue("spread-above-ns", value, "f64");
  },

  place(graph, devices, plan, _seed) {
    // Each getter copies a column: call it once.
    const candidates = rows(graph.candidates());
    const candidateSet = graph.candidateSet();
    const inputs = graph.predecessors();
    const kinds = graph.edgeKinds();
    const costs = graph.costs();
    const costRow = graph.costRow();
    const { nodes, costClasses } = graph.counts();
    const classOf = devices.costClasses();
    const costNs = (node, device) => costs[costRow[node] * costClasses + classOf[device]];

    const placed = new Assignment(graph); // respects pins and colocation groups
    const loadNs = new Float64Array(devices.count());
    const [starts, followers, grouped] = [[], [], []];
    for (let node = 0; node < nodes; node++) {
      const legal = candidates[candidateSet[node]]; // never empty
      let wanted, reason;
      for (let edge = inputs.offsets[node]; edge < inputs.offsets[node + 1] && !reason; edge++) {
        wanted = placed.devices[inputs.items[edge]];
        if (!(kinds[edge] & PRELOADED) && legal.includes(wanted)) reason = followers;
      }
      if (!reason) {
        reason = starts;
        wanted = legal[0];
        if (costNs(node, wanted) >= spreadAboveNs) {
          wanted = legal.reduce((best, device) => (loadNs[device] < loadNs[best] ? device : best));
        }
      }
      const device = placed.decide(node, wanted);
      loadNs[device] += costNs(node, device);
      (device === wanted ? reason : grouped).push(node);
    }

    plan.setDevices(placed.devices);
    plan.offer(); // an illegal plan throws its violation, which reaches the user
    if (plan.explainWanted()) {
      plan.explain(new Uint32Array(starts), "starts a branch");
      plan.explain(new Uint32Array(followers), "runs where an input is");
      plan.explain(new Uint32Array(grouped), "its colocation group is there");
    }
  },
});
