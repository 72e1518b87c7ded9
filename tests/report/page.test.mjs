// The page of `placewright report` in headless Chromium; README.md tells how to run it.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { chromium } from "playwright-core";
import { smallDocument, writePages } from "./documents.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const root = join(here, "../..");
const out = process.env.OUT ?? join(root, "target/report");
const pages = join(out, "pages"), shots = join(out, "pictures");
// Below 30 frames a second, panning feels like a slide show. By default they are only printed:
// browsers draw without a GPU here, on cores that may do something else.
const LEAST_FRAMES = Number(process.env.LEAST_FRAMES ?? 0);

let browser;

before(async () => {
  writePages(pages);
  mkdirSync(shots, { recursive: true });
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
      "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
});

after(() => browser?.close());

/** Opens a page, runs `use` and checks that nothing was logged as an error or fetched. */
async function withPage(name, options, use) {
  const context = await browser.newContext({
    viewport: { width: 1400, height: 900 }, colorScheme: "light", ...options,
  });
  const page = await context.newPage();
  const faults = [], requests = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) faults.push(message.text());
  });
  page.on("pageerror", (error) => faults.push(String(error)));
  page.on("request", (request) => requests.push(request.url()));
  const url = pathToFileURL(join(pages, `${name}.html`)).href;
  try {
    await page.goto(url);
    await use(page);
    assert.deepEqual(faults, []);
    assert.deepEqual(requests.filter((r) => r !== url && !r.startsWith("data:")), []);
  } finally {
    await context.close();
  }
}

const hook = (page, name, ...values) =>
  page.evaluate(([n, v]) => window.placewrightReport[n](...v), [name, values]);
const frame = (page) => page.evaluate(() =>
  new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done()))));
const shot = async (page, name) => {
  await frame(page);
  await page.screenshot({ path: join(shots, `${name}.png`) });
};

async function openTab(page, name) {
  await page.click(`#tab-${name}`);
  await frame(page);
}

async function clickNode(page, view, node) {
  const at = await hook(page, "positionOf", view, node);
  assert.ok(at, `node ${node} has a place in ${view}`);
  assert.equal(await hook(page, "nodeAt", view, at.x, at.y), node);
  await page.locator(`#${view}`).click({ position: at });
  assert.equal(await hook(page, "selected"), node);
}

const doc = smallDocument();
const timed = (plan) => plan.start_ns.findIndex((s, i) => plan.end_ns[i] > s);

test("header and comparison of plans", () => withPage("small", {}, async (page) => {
  assert.equal(await page.textContent("#graph-name"), "wide_branch");
  assert.match(await page.textContent("#facts"), /12 \/ 15.*1 CPU, 2 GPU.*Expected time/s);
  assert.equal(await page.locator("#plans tr[data-plan]").count(), 3);
  assert.equal(await hook(page, "plan"), 0);
  await page.click("#plans tr[data-plan='2'] td:nth-child(3)");
  assert.equal(await hook(page, "plan"), 2);
  assert.equal(await page.inputValue("#plan-select"), "2");
  await page.selectOption("#plan-select", "1");
  assert.equal(await hook(page, "plan"), 1);
  assert.match(await page.getAttribute("#plans tr[data-plan='1']", "class"), /chosen/);
  assert.equal(await page.locator("#plans tr:has-text('best')").count() >= 1, true);
}));

test("select in the timeline", () => withPage("small", {}, async (page) => {
  const node = timed(doc.plans[0]);
  await clickNode(page, "timeline", node);
  const details = page.locator("#details");
  assert.equal(await details.locator("h2").textContent(), doc.graph.nodes.name[node]);
  assert.match(await details.textContent(), /op.*device.*start.*duration.*slack/s);
  const box = await hook(page, "positionOf", "timeline", node);
  await page.locator("#timeline").hover({ position: box });
  assert.match(await page.textContent("#tip"), new RegExp(doc.graph.nodes.name[node]));
  await shot(page, "small-timeline");
  await page.locator("#timeline").press("Escape");
  assert.equal(await hook(page, "selected"), -1);
}));

test("select in the graph and follow links", () => withPage("small", {}, async (page) => {
  await openTab(page, "graph");
  const node = doc.graph.edges.to[0], source = doc.graph.edges.from[0];
  await clickNode(page, "graph", node);
  await shot(page, "small-graph");
  await page.locator(`#details button[data-node='${source}']`).first().click();
  assert.equal(await hook(page, "selected"), source);
  assert.match(await page.textContent("#details"), /Successors/);
  await page.locator("#details button", { hasText: "Show in timeline" }).click();
  assert.equal(await page.isVisible("#timeline"), true);
}));

test("all nodes can be picked in both views", () => withPage("small", {}, async (page) => {
  for (const view of ["timeline", "graph"]) {
    await openTab(page, view);
    const bad = await page.evaluate(([name, n]) => {
      const { positionOf, nodeAt } = window.placewrightReport;
      const list = [];
      for (let i = 0; i < n; i++) {
        const at = positionOf(name, i);
        const got = at && nodeAt(name, at.x, at.y);
        // Nodes that take no time may share a place.
        const same = at && got >= 0 && Math.abs(positionOf(name, got).x - at.x) < 1;
        if (got !== i && !same) list.push(i);
      }
      return list;
    }, [view, 12]);
    assert.deepEqual(bad, []);
  }
}));

test("search", () => withPage("large", {}, async (page) => {
  await page.keyboard.press("/");
  await page.keyboard.type("TOWER_3/layer_1");
  assert.equal(await page.locator("#found [role=option]").count(), 50);
  assert.match(await page.textContent("#found .note"), /First 50 of/);
  const wanted = await page.locator("#found [role=option]").nth(1).getAttribute("data-node");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  assert.equal(await hook(page, "selected"), Number(wanted));
  assert.match(await page.textContent("#details h2"), /tower_3\/layer_1/);
  await page.fill("#search", "no such node");
  assert.match(await page.textContent("#found"), /No node has this name/);
}));

test("critical path", () => withPage("small", {}, async (page) => {
  await openTab(page, "critical");
  const plan = doc.plans[0];
  assert.equal(await page.locator("#critical tbody tr").count(), plan.critical_path.length);
  assert.match(await page.textContent("#totals"), /compute .*transfer .*waiting /);
  await page.locator("#critical tbody button").last().click();
  assert.equal(await hook(page, "selected"), plan.critical_path.at(-1));
  await shot(page, "small-critical");
}));

/** The slack of each node of a plan on one device, by relaxing all bounds until none changes. */
function slackByRelaxing(plan) {
  const { from, to } = doc.graph.edges;
  const length = plan.end_ns.map((end, i) => end - plan.start_ns[i]);
  const row = plan.start_ns.map((_, i) => i).filter((i) => length[i] > 0)
    .sort((a, b) => plan.start_ns[a] - plan.start_ns[b]);
  const bounds = from.map((a, e) => [a, to[e]]);
  for (let k = 1; k < row.length; k++) bounds.push([row[k - 1], row[k]]);
  const late = length.map((n) => plan.makespan_ns - n);
  for (let changed = true; changed;) {
    changed = false;
    for (const [a, b] of bounds) {
      if (late[a] <= late[b] - length[a]) continue;
      late[a] = late[b] - length[a];
      changed = true;
    }
  }
  return late.map((t, i) => (plan.critical_path.includes(i) ? 0 : t - plan.start_ns[i]));
}

test("slack agrees with a direct computation", () => withPage("small", {}, async (page) => {
  const single = doc.plans.findIndex((plan) => plan.transfers.node.length === 0);
  await page.selectOption("#plan-select", String(single));
  await openTab(page, "graph");
  const wanted = slackByRelaxing(doc.plans[single]);
  assert.ok(wanted.some((slack) => slack > 0));
  for (let node = 0; node < 12; node++) {
    await clickNode(page, "graph", node);
    const text = await page.evaluate(() => [...document.querySelectorAll("#details dt")]
      .find((dt) => dt.textContent === "slack").nextSibling.textContent);
    const [number, unit] = text.split(" ");
    const slack = Number(number) * { ns: 1, us: 1e3, ms: 1e6 }[unit];
    assert.ok(Math.abs(slack - wanted[node]) <= wanted[node] * 0.005,
      `node ${node}: ${text}, wanted ${wanted[node]} ns`);
  }
}));

test("keyboard alone", () => withPage("small", {}, async (page) => {
  await page.focus("#tab-timeline");
  await page.keyboard.press("ArrowRight");
  assert.equal(await page.isVisible("#graph"), true);
  await page.keyboard.press("ArrowLeft");
  await page.focus("#timeline");
  const place = () => hook(page, "positionOf", "timeline", timed(doc.plans[0]));
  const old = await place();
  for (const key of ["+", "+", "ArrowRight"]) await page.keyboard.press(key);
  assert.notDeepEqual(await place(), old);
  await page.keyboard.press("0");
  assert.deepEqual(await place(), old);
  await page.keyboard.press(".");
  assert.notEqual(await hook(page, "selected"), -1);
  const reached = new Set();
  for (let i = 0; i < 40; i++) {
    await page.keyboard.press("Tab");
    reached.add(await page.evaluate(() => document.activeElement.id
      || document.activeElement.getAttribute("data-zoom") || document.activeElement.className));
  }
  for (const id of ["plan-select", "search", "tab-timeline", "timeline", "memory", "split",
    "details", "colour-by", "timeline:fit", "plain policy"]) {
    assert.ok(reached.has(id), `${id} is reached with Tab`);
  }
}));

test("a failed plan shows its error", () => withPage("failed", {}, async (page) => {
  assert.match(await page.textContent("#plans tr[data-plan='1']"), /bin_pack.*needs 5368709120/);
  await page.click("#plans tr[data-plan='1']");
  assert.equal(await hook(page, "plan"), 1);
  assert.match(await page.textContent("#notice"), /bin_pack failed/);
  await shot(page, "failed");
  await openTab(page, "graph");
  assert.equal(await page.isVisible("#notice"), false);
  await clickNode(page, "graph", 5);
  await page.selectOption("#plan-select", "2");
  await openTab(page, "timeline");
  assert.equal(await page.isVisible("#notice"), false);
}));

test("hostile names stay text", () => withPage("hostile", {}, async (page) => {
  assert.match(await page.textContent("#graph-name"), /<\/script><img/);
  await openTab(page, "graph");
  for (let node = 0; node < 12; node++) {
    const at = await hook(page, "positionOf", "graph", node);
    await page.locator("#graph").click({ position: at });
    await page.locator("#graph").hover({ position: at });
  }
  await page.fill("#search", "e");
  await shot(page, "hostile");
  for (const view of ["critical", "timeline"]) await openTab(page, view);
  await page.click("#plans tr[data-plan='3']");
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.equal(await page.locator("img").count(), 0);
}));

test("a report without plans or nodes", async () => {
  await withPage("noplan", {}, async (page) => {
    assert.match(await page.textContent("#notice"), /no plan/);
    await openTab(page, "graph");
    await clickNode(page, "graph", 3);
    assert.match(await page.textContent("#details"), /Const|op/);
  });
  await withPage("nothing", {}, async (page) => {
    for (const view of ["graph", "critical", "timeline"]) {
      await openTab(page, view);
      for (const key of ["+", "-", "0", ".", "ArrowLeft", "ArrowUp", "Enter"]) {
        await page.evaluate(([name, pressed]) => document.getElementById(name)
          .dispatchEvent(new KeyboardEvent("keydown", { key: pressed, bubbles: true })),
        [view, key]);
      }
    }
    assert.equal(await page.isVisible("#fatal"), false);
  });
});

test("show a node of a large graph", () => withPage("large", {}, async (page) => {
  await page.selectOption("#plan-select", "1");
  for (const name of ["layer_80/", "layer_1/", "layer_150/"]) {
    await page.fill("#search", name);
    await page.keyboard.press("Enter");
    const node = await hook(page, "selected");
    for (const view of ["timeline", "graph"]) {
      await page.locator("#details button", { hasText: `Show in ${view}` }).click();
      const at = await hook(page, "positionOf", view, node);
      const got = await hook(page, "nodeAt", view, at.x, at.y);
      const there = await hook(page, "positionOf", view, got);
      // Nodes that take no time may share their place in the timeline.
      assert.ok(got === node || (view === "timeline" && Math.abs(there.x - at.x) < 1));
      const box = await page.locator(`#${view}`).boundingBox();
      assert.ok(at.x > 0 && at.x < box.width && at.y > 0 && at.y < box.height);
    }
  }
}));

test("memory charts", () => withPage("large", {}, async (page) => {
  await page.locator("#memory").hover({ position: { x: 500, y: 60 } });
  assert.match(await page.textContent("#tip"), /GPU:0.*time.*in use.*peak memory.*capacity/);
  const height = () => page.evaluate(() => document.getElementById("memory").clientHeight);
  const old = await height();
  await page.focus("#split");
  await page.keyboard.press("ArrowUp");
  assert.ok(await height() > old);
}));

for (const [name, message] of [["empty", /holds no data/], ["broken", /not readable/],
  ["future", /version 1.*version 99/], ["partial", /not complete/]]) {
  test(`message for ${name} data`, () => withPage(name, {}, async (page) => {
    assert.match(await page.textContent("#fatal"), message);
    assert.equal(await page.isVisible("main"), false);
  }));
}

test("resize and pixel ratio", () => withPage("small", { deviceScaleFactor: 2 }, async (page) => {
  await page.setViewportSize({ width: 1000, height: 700 });
  await frame(page);
  const sizes = await page.evaluate(() => {
    const canvas = document.getElementById("timeline");
    return [canvas.width, canvas.clientWidth, canvas.height, canvas.clientHeight];
  });
  assert.ok(Math.abs(sizes[0] - 2 * sizes[1]) < 2 && Math.abs(sizes[2] - 2 * sizes[3]) < 2);
  await clickNode(page, "timeline", timed(doc.plans[0]));
  await page.setViewportSize({ width: 700, height: 800 });
  await frame(page);
  await clickNode(page, "timeline", timed(doc.plans[0]));
  await page.screenshot({ path: join(shots, "narrow.png"), fullPage: true });
}));

/** Zooms and drags for `frames` frames, one event per frame, and reports how many were drawn. */
function measure(page, view, kind, frames) {
  return page.evaluate(async ([name, what, count]) => {
    const canvas = document.getElementById(name), box = canvas.getBoundingClientRect();
    const next = () => new Promise((done) => requestAnimationFrame(done));
    const point = (x, y) => ({
      bubbles: true, cancelable: true, button: 0, pointerId: 1,
      clientX: box.left + x, clientY: box.top + y,
    });
    canvas.setPointerCapture = () => {};
    await next();
    const from = window.placewrightReport.framesDrawn(), begun = performance.now();
    let last = begun, slowest = 0;
    if (what === "pan") canvas.dispatchEvent(new PointerEvent("pointerdown", point(500, 150)));
    for (let i = 0; i < count; i++) {
      const swing = Math.sin(i / 12);
      if (what === "pan") {
        canvas.dispatchEvent(new PointerEvent("pointermove",
          point(500 + 260 * swing, 150 + 60 * swing)));
      } else {
        canvas.dispatchEvent(new WheelEvent("wheel",
          { ...point(600, 160), deltaY: i % 60 < 30 ? -100 : 100 }));
      }
      await next();
      const now = performance.now();
      slowest = Math.max(slowest, now - last);
      last = now;
    }
    if (what === "pan") canvas.dispatchEvent(new PointerEvent("pointercancel", point(0, 0)));
    const drawn = window.placewrightReport.framesDrawn() - from;
    return { rate: drawn / (performance.now() - begun) * 1000, slowest };
  }, [view, kind, frames]);
}

// What the program writes, not the documents of this folder.
test("a page of the program", { skip: !process.env.PLACEWRIGHT && "PLACEWRIGHT is not set" }, () => {
  const cluster = join(pages, "cluster.toml");
  writeFileSync(cluster, `[[host]]
device = [{ profile = "epyc-9654" }, { profile = "h100-sxm", count = 2 }]
`);
  const html = join(pages, "program.html");
  const graph = join(root, "tests/models/bert_tiny.skel.pb");
  execFileSync(process.env.PLACEWRIGHT, ["report", graph, "--cluster", cluster, "--html", html]);
  const text = readFileSync(html, "utf8");
  const data = JSON.parse(text.split('id="data">')[1].split("</script>")[0]);
  return withPage("program", {}, async (page) => {
    assert.equal(await page.textContent("#graph-name"), data.graph.name);
    assert.equal(await page.locator("#plans tr[data-plan]").count(), data.plans.length);
    const plan = data.plans[await hook(page, "plan")];
    const node = plan.critical_path.at(-1);
    await clickNode(page, "timeline", node);
    const details = page.locator("#details");
    assert.equal(await details.locator("h2").textContent(), data.graph.nodes.name[node]);
    await shot(page, "program-timeline");
    for (const view of ["graph", "critical"]) {
      await openTab(page, view);
      await shot(page, `program-${view}`);
    }
  });
});

test("10,000 nodes stay fluid", () => withPage("large", {}, async (page) => {
  const load = await page.evaluate(() => {
    const [entry] = performance.getEntriesByType("navigation");
    return entry.domContentLoadedEventEnd - entry.responseEnd;
  });
  console.log(`large page: ready ${load.toFixed(0)} ms after its text`);
  await page.fill("#search", "tower_2/layer_80/");
  await page.keyboard.press("Enter");
  const rates = {};
  for (const view of ["timeline", "graph"]) {
    await openTab(page, view);
    await shot(page, `large-${view}`);
    for (const [label, zooms] of [["whole", 0], ["near", 6]]) {
      await page.focus(`#${view}`);
      await page.keyboard.press("0");
      for (let i = 0; i < zooms; i++) await page.keyboard.press("+");
      await frame(page);
      await shot(page, `large-${view}-${label}`);
      for (const kind of ["pan", "zoom"]) {
        const { rate, slowest } = await measure(page, view, kind, 90);
        rates[`${view} ${label} ${kind}`] = rate;
        console.log(`${view}, ${label}, ${kind}: ${rate.toFixed(1)} frames per second, slowest ${
          slowest.toFixed(0)} ms`);
      }
    }
  }
  for (const [name, rate] of Object.entries(rates)) {
    assert.ok(rate >= LEAST_FRAMES, `${name}: ${rate.toFixed(1)} frames per second`);
  }
}));

test("pictures in the dark", () => withPage("large", { colorScheme: "dark" }, async (page) => {
  await page.fill("#search", "tower_2/layer_80/");
  await page.keyboard.press("Enter");
  await page.locator("#details button", { hasText: "Show in timeline" }).click();
  await shot(page, "dark-timeline");
  await page.selectOption("#colour-by", "critical");
  await page.focus("#timeline");
  await page.keyboard.press("Escape");
  for (let i = 0; i < 4; i++) await page.keyboard.press("-");
  await shot(page, "dark-timeline-critical");
  await openTab(page, "graph");
  await shot(page, "dark-graph");
  await page.fill("#search", "tower_2/layer_81/");
  await page.keyboard.press("Enter");
  await page.locator("#details button", { hasText: "Show in graph" }).click();
  await page.waitForTimeout(250);
  await shot(page, "dark-graph-near");
  await openTab(page, "critical");
  await shot(page, "dark-critical");
}));
