// The page: it follows /api/v1/events, and shows one feed. No library, nothing from elsewhere.
"use strict";

const SECONDS_KEPT = 300;
const SECONDS_SHOWN = 60; // at least
const EVENTS_KEPT = 100;
const PARTS_SHOWN = 8; // of the memory
const AGAIN_MS = 2000;
const SILENT_MS = 6000;

const byId = (id) => document.getElementById(id);
const history = new Map(); // by feed: what was seen since the page was opened
let feeds = [];
let chosen = decodeURIComponent(location.hash.slice(1));

// ---- Elements

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") made.textContent = value;
    else if (value !== null) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// Writes only what has changed, so that a screen reader and a selection are left alone.
function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

function setHidden(target, hidden) {
  if (target.hidden !== hidden) target.hidden = hidden;
}

// As many children as there are items, each of which `update` brings up to date.
function setChildren(parent, items, make, update) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  items.forEach((item, i) => {
    if (i >= parent.children.length) parent.append(make(item));
    update(parent.children[i], item);
  });
}

// ---- Numbers

function count(value) {
  return Number(value || 0).toLocaleString("en");
}

function rate(value) {
  if (value === undefined || value === null || Number.isNaN(value)) return "–";
  if (value >= 100) return Math.round(value).toLocaleString("en");
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let number = Number(value || 0);
  let unit = 0;
  while (number >= 1024 && unit + 1 < units.length) {
    number /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? number : number.toFixed(1)} ${units[unit]}`;
}

function duration(ms) {
  const seconds = Math.floor(ms / 1000);
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
}

const percent = (share) => `${Math.round(100 * (share || 0))}\u00a0%`;
const width = (share) => `${(100 * Math.min(1, share || 0)).toFixed(1)}%`;
const sum = (values) => values.reduce((all, one) => all + Number(one || 0), 0);

// Of a trainer; another one that takes its place is another process.
const idOf = (one) => `${one.output || ""}/${one.group}/${one.member}/${one.pid}`;

// ---- What is kept of each feed

function remember(view) {
  const name = view.feed;
  if (!history.has(name)) {
    history.set(name, { points: [], events: [], lanes: new Map(), skips: new Map(), up: null });
  }
  const kept = history.get(name);
  const now = Date.now();
  const happened = (text, bad) => {
    kept.events.unshift({ at: new Date(), text, bad });
    kept.events.length = Math.min(kept.events.length, EVENTS_KEPT);
  };
  const up = !view.error;
  if (kept.up !== null && kept.up !== up) {
    happened(up ? "the supervisor answers again" : `the supervisor does not answer: ${view.error}`, !up);
  }
  kept.up = up;
  if (!up) return;
  const { status } = view;
  const outputs = status.outputs || [];
  kept.points.push({
    at: now,
    batches: sum(outputs.map((one) => one.batches_published)),
    used: sum(outputs.map((one) => one.slots_used)) / Math.max(1, sum(outputs.map((one) => one.slots))),
    memory: Number(status.memory_bytes || 0),
    taken: new Map((status.trainers || []).map((one) => [idOf(one), one.taken])),
    waited: new Map((status.trainers || []).map((one) => [idOf(one), Number(one.waited_ns || 0)])),
  });
  while (kept.points.length > 0 && now - kept.points[0].at > 1000 * SECONDS_KEPT) kept.points.shift();
  const died = new Map(); // lanes that share a process die together
  for (const stage of status.stages || []) {
    for (const lane of stage.lanes || []) {
      const before = kept.lanes.get(lane.name);
      if (before !== undefined && lane.restarts > before) {
        died.set(lane.pid, [...(died.get(lane.pid) || []), lane.name]);
      }
      kept.lanes.set(lane.name, lane.restarts);
    }
    for (const counter of stage.counters || []) {
      if (!counter.name.startsWith("skipped_")) continue;
      const key = `${stage.name} ${counter.name}`;
      const before = kept.skips.get(key);
      if (before !== undefined && counter.value > before) {
        happened(`${stage.name} has left out ${counter.value - before} (${counter.name.slice(8).replaceAll("_", " ")})`, false);
      }
      kept.skips.set(key, counter.value);
    }
  }
  for (const [pid, lanes] of died) {
    happened(`the process of ${lanes.join(", ")} has died and has a successor, process ${pid}`, true);
  }
}

// Over the last seconds: what a number has grown by in each.
function perSecond(points, value, seconds = 10) {
  if (points.length < 2) return null;
  const last = points[points.length - 1];
  const first = points.find((one) => last.at - one.at <= 1000 * seconds) || points[0];
  if (first === last || value(first) === undefined) return null;
  return (1000 * (value(last) - value(first))) / (last.at - first.at);
}

// ---- Parts of the page

function windowOf(metrics) {
  const windows = metrics.windows || [];
  return windows.find((one) => one.seconds_wanted === 10) || windows[0];
}

// "pool" of "pool.read.0".
function consumersOf(status) {
  const found = new Map();
  const stageOf = new Map();
  for (const stage of status.stages || []) for (const lane of stage.lanes || []) stageOf.set(lane.name, stage.name);
  for (const ring of status.rings || []) {
    const from = stageOf.get(ring.from);
    const to = stageOf.get(ring.to);
    if (from === undefined || to === undefined || from === to) continue;
    if (!found.has(from)) found.set(from, new Set());
    found.get(from).add(to);
  }
  return found;
}

function makeStage() {
  return element("li", { class: "stage" },
    element("h3"), element("p", { class: "badge" }), element("p", { class: "kind" }),
    element("div", { class: "share", role: "img" },
      element("span", { class: "busy" }), element("span", { class: "starved" }), element("span", { class: "blocked" })),
    element("p", { class: "shares" }), element("p", { class: "records" }), element("p", { class: "note" }), element("div", { class: "queues" }));
}

function showStage(box, { stage, load, metric, limits, next, outputs }) {
  const part = (name) => box.querySelector(name);
  box.classList.toggle("limits", limits);
  setText(part("h3"), stage.name);
  setText(part(".badge"), limits ? "▲ limits the feed" : "");
  const lanes = (stage.lanes || []).filter((one) => one.state !== "SPARE" && one.state !== "ABSENT");
  const gone = (stage.lanes || []).filter((one) => one.state === "ABSENT").length;
  const died = Math.max(0, ...(stage.lanes || []).map((one) => one.restarts || 0));
  setText(part(".kind"), `${stage.kind} · ${lanes.length} lane${lanes.length === 1 ? "" : "s"}` +
    (gone ? ` · ${gone} not running` : "") + (died ? ` · restarted ${died} ×` : ""));
  const shares = ["busy", "starved", "blocked"].map((name) => load ? load[name] : 0);
  [...part(".share").children].forEach((one, i) => { one.style.width = width(shares[i]); });
  const text = load ? `busy ${percent(shares[0])}, no input ${percent(shares[1])}, no room ${percent(shares[2])}` : "not measured yet";
  part(".share").setAttribute("aria-label", `${stage.name}: ${text}`);
  setText(part(".shares"), text);
  const out = sum(lanes.map((one) => one.records_per_s));
  setText(part(".records"), `${rate(out)} records/s · ${count(sum(lanes.map((one) => one.records_out)))} in all`);
  setText(part(".note"), stage.progress || "");
  const queues = (metric && metric.output_queue_metrics) || [];
  setChildren(part(".queues"), queues, () => element("div", {}, element("p"), element("div", { class: "queue", role: "img" }, element("span"))), (row, queue) => {
    const latest = Number((queue.fullness && queue.fullness.latest) || 0);
    const capacity = Number(queue.capacity || 0);
    const target = outputs ? "trainers" : [...(next || [])].join(", ") || queue.name;
    const words = `${outputs ? "slots" : "queue"} to ${target}: ${count(latest)} of ${count(capacity)}`;
    setText(row.firstElementChild, `→ ${words}`);
    row.lastElementChild.setAttribute("aria-label", words);
    row.lastElementChild.firstElementChild.style.width = width(capacity ? latest / capacity : 0);
  });
}

function showPipeline(view) {
  const { status, metrics } = view;
  const now = windowOf(metrics);
  const shares = new Map();
  const measured = new Map(((now && now.metrics && now.metrics.stage_metrics) || []).map((one) => [one.name, one]));
  for (const one of measured.values()) {
    const loads = (Object.values(one).find((part) => part && Array.isArray(part.loads)) || { loads: [] }).loads;
    const lanes = Math.max(1, sum(loads.map((load) => load.lanes)));
    const mean = (name) => sum(loads.map((load) => (load[name] || 0) * (load.lanes || 0))) / lanes;
    if (loads.length) shares.set(one.name, { busy: mean("busy_share"), starved: mean("starved_share"), blocked: mean("blocked_share") });
  }
  const limits = new Set((metrics.bottlenecks || []).filter((one) => one.kind !== "TRAINERS" && one.stage).map((one) => one.stage));
  const next = consumersOf(status);
  const rows = (status.stages || []).map((stage) => ({
    stage, load: shares.get(stage.name), metric: measured.get(stage.name), limits: limits.has(stage.name),
    next: next.get(stage.name), outputs: !next.has(stage.name),
  }));
  setChildren(byId("pipeline"), rows, makeStage, showStage);
}

function showTrainers(view, kept) {
  const trainers = view.status.trainers || [];
  const lag = new Map((view.status.groups || []).map((one) => [one.name, one.lag]));
  setHidden(byId("no-trainers"), trainers.length > 0);
  setHidden(byId("trainers"), trainers.length === 0);
  const names = ["group", "member", "pid", "client"];
  setChildren(byId("trainers").tBodies[0], trainers,
    () => element("tr", {}, ...names.map(() => element("td")), ...[1, 2, 3, 4, 5].map(() => element("td", { class: "number" }))),
    (row, one) => {
      const speed = perSecond(kept.points, (point) => point.taken.get(idOf(one)));
      const waits = perSecond(kept.points, (point) => point.waited.get(idOf(one)));
      const cells = [...names.map((name) => String(one[name] ?? "")), count(one.taken), rate(speed),
        waits === null ? "–" : percent(waits / 1e9), count((one.taken || 0) - (one.done || 0)),
        count(lag.get(one.group))];
      cells.forEach((text, i) => setText(row.children[i], text));
    });
}

// What takes its time: a stage that warms up, a drain, a snapshot.
function showUnderWay(status) {
  setChildren(byId("under-way"), status.under_way || [], () => element("li", {}, element("span"), element("progress")), (item, one) => {
    const left = one.left_ms === undefined ? "" : `, about ${duration(Math.max(1000, one.left_ms))} left`;
    const text = `${one.name}: ${one.text}${left}`;
    setText(item.firstElementChild, text);
    const bar = item.lastElementChild;
    bar.setAttribute("aria-label", text);
    setHidden(bar, one.total === undefined);
    if (one.total === undefined) return;
    bar.max = one.total;
    bar.value = one.done || 0;
  });
}

// The largest parts, and the rest in one.
function showMemory(status) {
  const parts = (status.memory || []).map((one) => ({ name: one.name, bytes: Number(one.bytes || 0) }));
  const shown = parts.slice(0, PARTS_SHOWN);
  const rest = parts.slice(PARTS_SHOWN);
  if (rest.length) shown.push({ name: `${rest.length} other parts`, bytes: sum(rest.map((one) => one.bytes)) });
  const all = Math.max(1, sum(parts.map((one) => one.bytes)));
  const budget = Number(status.memory_budget_bytes || 0);
  setText(byId("memory-total"), `${bytes(status.memory_bytes)} in all` + (budget ? `, of a budget of ${bytes(budget)}` : ""));
  setChildren(byId("memory"), shown, () => element("li", {}, element("p"), element("div", { class: "queue", role: "img" }, element("span"))), (item, part) => {
    const words = `${part.name}: ${bytes(part.bytes)}`;
    setText(item.firstElementChild, words);
    item.lastElementChild.setAttribute("aria-label", words);
    item.lastElementChild.firstElementChild.style.width = width(part.bytes / all);
  });
}

function showCurves(kept) {
  const points = kept.points;
  const speeds = points.map((one, i) => {
    const before = points[Math.max(0, i - 3)];
    return i === 0 ? null : (1000 * (one.batches - before.batches)) / Math.max(1, one.at - before.at);
  });
  const waits = points.map((one, i) => {
    const before = points[Math.max(0, i - 3)];
    const ids = [...one.waited.keys()].filter((id) => before.waited.has(id));
    if (i === 0 || ids.length === 0) return null;
    const waited = sum(ids.map((id) => Math.max(0, one.waited.get(id) - before.waited.get(id)))) / 1e6;
    return Math.min(1, waited / Math.max(1, one.at - before.at) / ids.length);
  });
  const curves = [
    { title: "Batches a second", values: speeds, show: rate },
    { title: "Trainers wait", values: waits, show: percent, most: 1 },
    { title: "Slots in use", values: points.map((one) => one.used), show: percent, most: 1 },
    { title: "Memory of the segments", values: points.map((one) => one.memory), show: bytes },
  ];
  setChildren(byId("curves"), curves, () => {
    const figure = element("figure", {}, element("figcaption"));
    figure.insertAdjacentHTML("beforeend", '<svg viewBox="0 0 300 90" preserveAspectRatio="none" role="img"><line x1="0" x2="300" y1="88" y2="88"/><path d=""/></svg>');
    return figure;
  }, (figure, { title, values, show, most }) => {
    const known = values.filter((one) => one !== null);
    const top = most || Math.max(...known, 1e-9);
    const last = known.length ? known[known.length - 1] : null;
    const words = `${title}: ${last === null ? "–" : show(last)}` + (known.length ? `, most ${show(Math.max(...known))}` : "");
    setText(figure.firstElementChild, words);
    const end = points.length ? points[points.length - 1].at : 0;
    const span = Math.max(1000 * SECONDS_SHOWN, points.length ? end - points[0].at : 0);
    let path = "";
    values.forEach((value, i) => {
      if (value === null) return;
      const x = 300 - (300 * (end - points[i].at)) / span;
      path += `${path ? "L" : "M"}${x.toFixed(1)} ${(88 - (84 * value) / top).toFixed(1)}`;
    });
    const svg = figure.lastElementChild;
    svg.setAttribute("aria-label", words);
    svg.lastElementChild.setAttribute("d", path);
  });
}

function showEvents(kept) {
  setHidden(byId("no-events"), kept.events.length > 0);
  setChildren(byId("events"), kept.events, () => element("li", {}, element("time"), document.createTextNode(" "), element("span")), (row, one) => {
    setText(row.children[0], one.at.toLocaleTimeString());
    row.children[0].setAttribute("datetime", one.at.toISOString());
    setText(row.children[1], one.text);
    row.children[1].className = one.bad ? "bad" : "";
  });
}

function showCounters(view) {
  const stages = (view.status.stages || []).map((stage) => ({ name: stage.name, counters: (stage.counters || []).filter((one) => Number(one.value || 0) !== 0) }))
    .filter((stage) => stage.counters.length > 0);
  setChildren(byId("counters"), stages, () => element("details", {}, element("summary"), element("table", {}, element("tbody"))), (box, stage) => {
    setText(box.firstElementChild, stage.name);
    setChildren(box.querySelector("tbody"), stage.counters, () => element("tr", {}, element("th", { scope: "row" }), element("td", { class: "number" })), (row, counter) => {
      setText(row.children[0], counter.name.replaceAll("_", " "));
      setText(row.children[1], count(counter.value));
    });
  });
}

function showFigures(view, kept) {
  const { status, metrics } = view;
  const outputs = status.outputs || [];
  const figures = [
    ["Batches a second", rate(perSecond(kept.points, (one) => one.batches))],
    ["Batches in all", count(sum(outputs.map((one) => one.batches_published)))],
    ["Rows in all", count(sum(outputs.map((one) => one.rows_published)))],
    ["Slots in use", `${count(sum(outputs.map((one) => one.slots_used)))} of ${count(sum(outputs.map((one) => one.slots)))}`],
    ["Trainers", count((status.trainers || []).length)],
    ["Deaths", count(metrics.deaths)],
    ["Memory", bytes(status.memory_bytes)],
    ["Up", duration(status.uptime_ms || 0)],
  ];
  setChildren(byId("figures"), figures, () => element("div", {}, element("dt"), element("dd")), (pair, [name, value]) => {
    setText(pair.children[0], name);
    setText(pair.children[1], value);
  });
}

function show() {
  const names = feeds.map((one) => one.feed);
  if (!names.includes(chosen) && names.length > 0 && !history.has(chosen)) chosen = names[0];
  setChildren(byId("feeds"), names, () => element("li", {}, element("a")), (item, name) => {
    const link = item.firstElementChild;
    setText(link, name);
    link.setAttribute("href", `#${encodeURIComponent(name)}`);
    if (name === chosen) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  setHidden(byId("none"), names.length > 0);
  const view = feeds.find((one) => one.feed === chosen);
  setHidden(byId("feed"), view === undefined);
  document.title = view === undefined ? "ringfeed" : `${chosen} · ringfeed`;
  if (view === undefined) return;
  const kept = history.get(chosen);
  setText(byId("name"), chosen);
  if (view.error) {
    setText(byId("state"), "does not answer");
    byId("state").className = "bad";
    setText(byId("why"), view.error);
    showEvents(kept);
    return;
  }
  const { status, metrics } = view;
  const state = (status.state || "").toLowerCase();
  byId("state").className = state === "failed" ? "bad" : state === "running" ? "good" : "";
  setText(byId("state"), state + (status.reason ? `: ${status.reason}` : ""));
  setText(byId("why"), (metrics.bottlenecks || []).map((one) => one.sentence).filter(Boolean).join(" ") || "it is too early to say what limits the feed");
  setChildren(byId("problems"), status.problems || [], () => element("li"), (item, text) => setText(item, text));
  showUnderWay(status);
  showFigures(view, kept);
  showPipeline(view);
  showTrainers(view, kept);
  showCurves(kept);
  showEvents(kept);
  showMemory(status);
  showCounters(view);
}

// ---- The stream: by fetch, which can send a token

let heard = 0;

function says(text, bad = false) {
  setText(byId("link"), text);
  byId("link").className = bad ? "bad" : "";
}

function take(block) {
  const lines = block.split("\n");
  const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
  if (!data) return;
  feeds = JSON.parse(data);
  feeds.forEach(remember);
  heard = Date.now();
  says("live");
  show();
}

async function follow(signal) {
  const token = sessionStorage.getItem("token");
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch("/api/v1/events", { headers, signal, cache: "no-store" });
  signal.throwIfAborted();
  if (answer.status === 401) {
    sessionStorage.removeItem("token");
    setHidden(byId("gate"), false);
    says("a token is needed", true);
    return false;
  }
  if (!answer.ok) throw new Error(`the server says ${answer.status}`);
  setHidden(byId("gate"), true);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the connection has ended");
    rest += value;
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      take(rest.slice(0, end));
      rest = rest.slice(end + 2);
    }
  }
}

let stop = new AbortController();  // of the stream that is followed

async function main() {
  for (;;) {
    stop = new AbortController();
    const mine = stop;
    heard = Date.now();
    const watch = setInterval(() => { if (Date.now() - heard > SILENT_MS) mine.abort(); }, 1000);
    try {
      if (!(await follow(mine.signal))) return;
    } catch (error) {
      if (mine !== stop) return;
      says(`no connection to ringfeed-web; trying again (${error.message})`, true);
    } finally {
      clearInterval(watch);
    }
    await new Promise((then) => setTimeout(then, AGAIN_MS));
    if (mine !== stop) return;
  }
}

byId("gate").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", byId("token").value);
  byId("token").value = "";
  stop.abort();  // a question with another token may be under way: its answer must not remove this one
  main();
});
window.addEventListener("hashchange", () => {
  chosen = decodeURIComponent(location.hash.slice(1));
  show();
});
main();
