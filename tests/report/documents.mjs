// Makes documents for the page of `placewright report` from a seed, with a simple list scheduler:
// times, transfers, memory and critical path agree with each other.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
export const LARGE_LIMIT = 5_000_000;

/** A small seeded generator: the same seed makes the same document on every machine. */
function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

const OPS = [
  "Const", "MatMul", "Conv2D", "BiasAdd", "Relu", "Add", "Mul", "Softmax", "Concat", "Reshape",
  "Transpose", "LayerNorm", "Gather", "Sum", "Split", "Cast",
];
const COST_US = [0, 60, 90, 8, 6, 7, 7, 20, 12, 0, 15, 18, 25, 10, 9, 5];

/** A layered graph: nodes take inputs from recent layers of their branch, some from others. */
export function makeGraph({ name, nodes, edges, branches, width, seed }) {
  const next = random(seed);
  const pick = (n) => Math.floor(next() * n);
  const names = [], op = [], cost = [], size = [], branchOf = [];
  const from = [], to = [], bytes = [];
  const recent = Array.from({ length: branches }, () => []);
  for (let i = 0; i < nodes; i++) {
    const branch = i % branches;
    const layer = Math.floor(i / (branches * width));
    const constant = i < branches || next() < 0.18;
    const kind = constant ? 0 : 1 + pick(OPS.length - 1);
    names.push(`tower_${branch}/layer_${layer}/${OPS[kind].toLowerCase()}_${i}`);
    op.push(kind);
    cost.push(COST_US[kind] * 1000 * (0.3 + 2 * next() * next()));
    size.push(Math.round((constant ? 16384 : 4096) * 2 ** (5 * next())));
    branchOf.push(branch);
    if (!constant) {
      const want = Math.min(1 + pick(3), recent[branch].length);
      const seen = new Set();
      for (let k = 0; k < want; k++) {
        const home = next() < 0.06 ? recent[pick(branches)] : recent[branch];
        if (home.length) seen.add(home[home.length - 1 - pick(Math.min(home.length, 3 * width))]);
      }
      for (const a of seen) addEdge(a, i, next() < 0.03 ? 0 : size[a]);
    }
    recent[branch].push(i);
  }
  // Fills up to the wanted number of edges with control edges and reuse of older outputs.
  while (from.length < edges) {
    const b = branches + pick(nodes - branches);
    if (op[b] === 0) continue;
    const a = Math.max(0, b - 1 - pick(6 * width * branches));
    addEdge(a, b, next() < 0.1 ? 0 : size[a]);
  }
  function addEdge(a, b, n) {
    from.push(a);
    to.push(b);
    bytes.push(n);
  }
  const graph = { name, ops: OPS, nodes: { name: names, op }, edges: { from, to, bytes } };
  return { graph, cost, size, branchOf };
}

export function makeDevices(gpus) {
  const prefix = "/job:localhost/replica:0/task:0/device:";
  const devices = [{ name: `${prefix}CPU:0`, type: "CPU", memory_bytes: 64 * 2 ** 30 }];
  for (let i = 0; i < gpus; i++) {
    devices.push({ name: `${prefix}GPU:${i}`, type: "GPU", memory_bytes: 512 * 2 ** 20 });
  }
  const links = [];
  for (let i = 0; i < gpus; i++) links.push(`GPU:${i} to host`, `host to GPU:${i}`);
  return { devices, links };
}

function policies(made, devices, seed) {
  const next = random(seed + 99);
  const gpus = devices.length - 1;
  return {
    branch: made.branchOf.map((b, i) => (made.cost[i] > 0 && next() < 0.05 ? 0 : 1 + (b % gpus))),
    round_robin: made.cost.map((c, i) => (c < 3000 && next() < 0.5 ? 0 : 1 + (i % gpus))),
    single_gpu: made.cost.map(() => 1),
  };
}

/** Runs the nodes in index order (which is topological) on the given devices. */
function schedule(made, devices, links, device, policy) {
  const { graph, cost, size } = made;
  const n = cost.length;
  const incoming = Array.from({ length: n }, () => []);
  graph.edges.to.forEach((b, e) => incoming[b].push(e));
  const start = new Array(n), end = new Array(n), cause = new Array(n).fill(-1);
  // The CPU runs two nodes at once, so that its lane needs two rows.
  const slots = devices.map((d) => Array.from({ length: d.type === "CPU" ? 2 : 1 }, () => slot()));
  const linkFree = links.map(() => 0), linkBusy = links.map(() => 0), linkLast = [];
  const busy = devices.map(() => 0);
  const sent = new Map(), heldBy = new Map();
  const transfers = {
    node: [], source: [], destination: [], bytes: [], start_ns: [], end_ns: [], link: [],
  };
  function slot() {
    return { free: 0, last: -1 };
  }
  function path(a, b) {
    const used = [];
    if (a > 0) used.push(2 * (a - 1));
    if (b > 0) used.push(2 * (b - 1) + 1);
    return used;
  }
  function arrival(a, b) {
    const key = a * devices.length + b;
    if (sent.has(key)) return sent.get(key);
    const used = path(device[a], b);
    const time = Math.round(2000 + size[a] / 40);
    const at = Math.max(end[a], ...used.map((l) => linkFree[l]));
    // What held the transfer up: its producer, or the one whose transfer came before.
    const queue = used.find((l) => linkFree[l] === at && at > end[a]);
    if (queue !== undefined) heldBy.set(key, linkLast[queue]);
    for (const l of used) {
      linkFree[l] = at + time;
      linkLast[l] = key;
      linkBusy[l] += time;
    }
    const row = [a, device[a], b, size[a], at, at + time, used[0] ?? -1];
    Object.keys(transfers).forEach((column, k) => transfers[column].push(row[k]));
    sent.set(key, at + time);
    return at + time;
  }
  for (let i = 0; i < n; i++) {
    const d = device[i];
    let ready = 0, why = -1;
    for (const e of incoming[i]) {
      const a = graph.edges.from[e];
      const far = device[a] !== d && graph.edges.bytes[e] > 0;
      const at = far ? arrival(a, d) : end[a];
      if (at > ready) [ready, why] = [at, a];
    }
    const time = Math.round(cost[i] * (devices[d].type === "CPU" ? 3 : 1));
    if (time === 0) {
      start[i] = end[i] = ready;
      cause[i] = why;
      continue;
    }
    const lane = slots[d].reduce((x, y) => (y.free < x.free ? y : x));
    start[i] = Math.max(ready, lane.free);
    end[i] = start[i] + time;
    cause[i] = lane.free >= ready ? lane.last : why;
    lane.free = end[i];
    lane.last = i;
    busy[d] += time;
  }
  const makespan = Math.max(...end);
  const critical = [];
  for (let i = end.indexOf(makespan); i >= 0;) {
    critical.push(i);
    const by = cause[i];
    let key = by < 0 || device[by] === device[i] ? undefined : by * devices.length + device[i];
    // Back along the queue of the link, to the transfer that only waited for its producer.
    while (key !== undefined && heldBy.has(key)) key = heldBy.get(key);
    i = key === undefined ? by : Math.floor(key / devices.length);
  }
  critical.sort((a, b) => start[a] - start[b] || end[a] - end[b]);
  const { memory, peak } = memoryCurves(made, devices, device, start, end, transfers);
  const moved = transfers.bytes.reduce((a, b) => a + b, 0);
  return {
    policy, makespan_ns: makespan, measured_ns: Math.round(makespan * 1.06), placed_in_ns: 71234567,
    device, start_ns: start, end_ns: end, transfers, critical_path: critical, memory,
    peak_bytes: peak, busy_ns: busy.map((b, d) => Math.round(b / slots[d].length)),
    link_busy_ns: linkBusy, transfer_bytes: moved,
    why: Object.fromEntries(critical.slice(0, 200).map((i) => [
      i, `${policy}: earliest finish on device ${device[i]} is ${end[i]} ns`,
    ])),
  };
}

/** An output lives from the start of its node to the end of its last consumer on that device. */
function memoryCurves(made, devices, device, start, end, transfers) {
  const { graph, size } = made;
  const last = end.slice();
  graph.edges.from.forEach((a, e) => {
    if (graph.edges.bytes[e] > 0) last[a] = Math.max(last[a], end[graph.edges.to[e]]);
  });
  const events = devices.map(() => []);
  size.forEach((bytes, i) => {
    const constant = graph.nodes.op[i] === 0;
    events[device[i]].push([constant ? 0 : start[i], bytes]);
    if (!constant) events[device[i]].push([last[i], -bytes]);
  });
  transfers.node.forEach((a, t) => {
    events[transfers.destination[t]].push([transfers.start_ns[t], transfers.bytes[t]]);
    events[transfers.destination[t]].push([Math.max(last[a], transfers.end_ns[t]),
      -transfers.bytes[t]]);
  });
  const peak = [];
  const memory = events.map((list) => {
    list.sort((a, b) => a[0] - b[0] || b[1] - a[1]);
    const at = [], bytes = [];
    let level = 0, top = 0;
    for (const [time, change] of list) {
      level += change;
      top = Math.max(top, level);
      if (at[at.length - 1] === time) bytes[bytes.length - 1] = level;
      else {
        at.push(time);
        bytes.push(level);
      }
    }
    peak.push(top);
    return { at_ns: at, bytes };
  });
  return { memory, peak };
}

function makeDocument(options) {
  const made = makeGraph(options);
  const { devices, links } = makeDevices(options.gpus);
  const plans = Object.entries(policies(made, devices, options.seed)).map(([policy, device]) =>
    schedule(made, devices, links, device, policy));
  return { version: 1, program: "placewright 0.1.0", graph: made.graph, devices, links, plans };
}

export function smallDocument() {
  return makeDocument({
    name: "wide_branch", nodes: 12, edges: 15, branches: 2, width: 1, gpus: 2, seed: 7,
  });
}

export function largeDocument() {
  return makeDocument({
    name: "eight_towers", nodes: 10000, edges: 25000, branches: 16, width: 4, gpus: 8, seed: 42,
  });
}

export function failedDocument() {
  const doc = makeDocument({
    name: "with_failure", nodes: 300, edges: 600, branches: 4, width: 2, gpus: 2, seed: 3,
  });
  doc.plans.splice(1, 0, {
    policy: "bin_pack",
    error: "device GPU:1 needs 5368709120 bytes for node tower_1/layer_3/matmul_9, has 536870912",
  });
  return doc;
}

/** Every text of the document tries to break out of its place. */
export function hostileDocument() {
  const doc = smallDocument();
  const attack = "</script><img src=x onerror=\"window.hacked=1\"><b>&amp;";
  doc.graph.name = attack;
  doc.graph.ops = doc.graph.ops.map((op) => attack + op);
  doc.graph.nodes.name[0] = attack;
  doc.graph.nodes.name[1] = "\u202egnp.exe\u0000\u0007 $& $' <!--<script>";
  doc.graph.nodes.name[2] = "__proto__";
  doc.graph.nodes.name[3] = "long/".repeat(400);
  doc.graph.nodes.name[4] = "";
  doc.graph.nodes.name[5] = "节点/行列の積/узел/😀";
  doc.devices.forEach((device) => (device.name += attack));
  doc.links = doc.links.map((link) => link + attack);
  for (const plan of doc.plans) {
    plan.policy = attack + plan.policy;
    plan.why = Object.fromEntries(doc.graph.nodes.name.map((_, i) => [i, attack]));
  }
  doc.plans.push({ policy: attack, error: attack });
  return doc;
}

/** What the host does: insert the document, with `<` escaped so that it cannot end the script. */
export function renderPage(template, doc) {
  const json = (typeof doc === "string" ? doc : JSON.stringify(doc)).replaceAll("<", "\\u003c");
  const parts = template.split("@DATA@");
  if (parts.length !== 2) throw new Error("the page must hold the placeholder once");
  return parts[0] + json + parts[1];
}

export const DOCUMENTS = {
  small: smallDocument, failed: failedDocument, hostile: hostileDocument, large: largeDocument,
};

export function writePages(folder) {
  mkdirSync(folder, { recursive: true });
  const template = readFileSync(join(here, "../../host/src/comparison/page.html"), "utf8");
  for (const [name, make] of Object.entries(DOCUMENTS)) {
    const page = renderPage(template, make());
    const bytes = Buffer.byteLength(page);
    writeFileSync(join(folder, `${name}.html`), page);
    console.log(`${name}.html: ${bytes} bytes`);
    if (bytes >= LARGE_LIMIT) throw new Error(`${name}.html is larger than ${LARGE_LIMIT} bytes`);
  }
  const special = {
    noplan: JSON.stringify({ ...smallDocument(), plans: [] }),
    nothing: JSON.stringify({
      version: 1, program: "p", devices: [], links: [], plans: [],
      graph: { name: "", ops: [], nodes: { name: [], op: [] }, edges: { from: [], to: [],
        bytes: [] } },
    }),
    broken: "{\"version\": 1, \"graph\": ",
    future: JSON.stringify({ version: 99 }),
    partial: JSON.stringify({ version: 1, graph: { nodes: { name: ["a"] } } }),
  };
  for (const [name, text] of Object.entries(special)) {
    writeFileSync(join(folder, `${name}.html`), renderPage(template, text));
  }
  writeFileSync(join(folder, "empty.html"), template);
}
