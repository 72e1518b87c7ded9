// What every Placewright policy in JavaScript needs. Copy it beside your policy.
//
// A policy is an object that is passed to `exportPolicy`, whose result has the two exports. Then
//
// - an exception in any function reaches the user as its message and stack, instead of as the trap
//   `unreachable`;
// - `console.log()` and its like write to the policy's log: the sandbox has no standard output.

import { emit } from "placewright:policy/log@0.1.0";

/** The entry for "absent" in columns of indices. */
export const NONE = 0xffffffff;

const STACK_CALLS_MAX = 20; // the host keeps 4,096 bytes of a string

/** Throw it in `place` if another policy should place this graph. */
export class Declined extends Error {}

/** Throw it in `place` if there is no (better) plan. It is shown without its stack. */
export class Failed extends Error {}

/** Throw it in `configure`: the key, its value, and what was expected. */
export class BadValue extends Error {
  constructor(key, value, expected) {
    super(`${value} (expected ${expected})`);
    this.key = key;
  }
}

/** One device per node. The first member decided, or a pinned one, decides for its group. */
export class Assignment {
  #group;
  #ofGroup;

  constructor(graph) {
    const { groups, nodes } = graph.counts();
    this.#group = graph.group();
    this.#ofGroup = new Uint32Array(groups).fill(NONE);
    graph.pinned().forEach((pin, node) => {
      if (pin !== NONE) this.#ofGroup[this.#group[node]] = pin;
    });
    this.devices = new Uint32Array(nodes).fill(NONE);
  }

  /** Places a node on `device`, unless its group is decided. Returns its device. */
  decide(node, device) {
    const group = this.#group[node];
    if (this.#ofGroup[group] === NONE) this.#ofGroup[group] = device;
    return (this.devices[node] = this.#ofGroup[group]);
  }
}

/** Returns the rows of a `csr` column, such as `graph.candidates()` or `graph.predecessors()`. */
export function rows({ offsets, items }) {
  const row = (_, index) => items.subarray(offsets[index], offsets[index + 1]);
  return Array.from({ length: offsets.length - 1 }, row);
}

/** Returns the exports `lifecycle` and `wholeGraph` of a policy. */
export function exportPolicy(policy) {
  const settings = policy.settings ?? [];
  return {
    lifecycle: {
      describe: () => logged(() => policy.describe()),
      settings: () => settings,
      configure(entries) {
        const config = Object.fromEntries(settings.map(({ key, default: value }) => [key, value]));
        returned(configError, () => {
          for (const { key, value } of entries) {
            if (!(key in config)) throw { payload: { tag: "unknown-key", val: key } };
            config[key] = value;
          }
          policy.configure?.(config);
        });
      },
    },
    wholeGraph: {
      place(graph, devices, plan, seed) {
        const errorOf = (error) => placeError(error, plan);
        returned(errorOf, () => policy.place(graph, devices, plan, seed));
      },
    },
  };
}

/** Calls an export without an error. The host shows the last error of the log before a trap. */
function logged(call) {
  try {
    return call();
  } catch (error) {
    emit("error", stackOf(error));
    throw error;
  }
}

/** Calls an export that has an error. What is thrown here is a value of that error's type. */
function returned(errorOf, call) {
  try {
    call();
  } catch (error) {
    throw errorOf(error);
  }
}

function configError(error) {
  if (error instanceof BadValue) {
    return { tag: "bad-value", val: { key: error.key, value: error.message } };
  }
  return error?.payload ?? { tag: "other", val: stackOf(error) };
}

function placeError(error) {
  if (error instanceof Declined) return { tag: "declined", val: error.message };
  if (error instanceof Failed) return { tag: "failed", val: error.message };
  if (error?.payload?.rule) return { tag: "failed", val: error.payload.explanation }; // of offer()
  return { tag: "failed", val: stackOf(error) };
}

/** Returns message and stack: the innermost calls, without those of this module and the engine. */
function stackOf(error) {
  if (typeof error?.message !== "string") return `thrown: ${show(error)}`;
  const calls = String(error.stack ?? "").split("\n");
  const foreign = /^$|@(placewright-policy\.js|.*initializer\.js):/;
  const own = calls.filter((call) => !foreign.test(call));
  const stack = own.slice(0, STACK_CALLS_MAX).map((call) => `\n  at ${call}`).join("");
  const cause = error.cause === undefined ? "" : `\ncaused by ${stackOf(error.cause)}`;
  return `${error.name}: ${error.message}${stack}${cause}`;
}

function show(value) {
  if (typeof value !== "object") return String(value);
  const plain = (_, item) => (typeof item === "bigint" ? `${item}n` : item);
  return JSON.stringify(value, plain) ?? String(value);
}

for (const [name, level] of Object.entries({
  debug: "debug", log: "info", info: "info", warn: "warn", error: "error",
})) {
  console[name] = (...values) => emit(level, values.map(show).join(" "));
}
