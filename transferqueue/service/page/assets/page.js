// The page. All text goes in as text, never as markup: names are other people's.
import { draw, heightOf, stripAt, unpack, words } from "/draw.js";

const $ = (id) => document.getElementById(id);
const MAX_HISTORY = 90;
let paused = false;
let chosen = null; // partition
let picture = null;
let cursor = null;
let fetching = false;
let last = null; // frame
let heardAt = 0;
const history = {};

// ---- numbers in words, as the command line has them

const count = (n) => Number(n).toLocaleString("en");
function size(n) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024) return `${unit === "B" ? Math.round(n) : n.toFixed(1)} ${unit}`;
    n /= 1024;
  }
  return `${n.toFixed(1)} TiB`;
}
function span(s) {
  if (s < 60) return `${s.toFixed(1)} s`;
  const minutes = Math.round(s / 60);
  if (minutes < 60) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}
const rate = (n) => (n >= 100 ? count(Math.round(n)) : n ? n.toFixed(1) : "0");
const percent = (share) => (share > 0 && share < 0.01 ? "< 1 %" : `${Math.round(share * 100)} %`);
const who = (name) => (name.split("/")[0].includes(":") ? name.split("/")[0] : name);

// ---- elements

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name === "raw") element.dataset.raw = value;
    else if (name === "path") element.dataset.path = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

// A number that is on the page as the status has it: `path` says where it stands there.
function number(path, value, text = count(value), tag = "span") {
  return make(tag, { path, raw: String(value) }, text);
}

function meter(parts) {
  const bar = make("div", { class: "meter", "aria-hidden": "true" });
  for (const [share, kind] of parts) {
    const part = make("i", { class: kind });
    part.style.width = `${Math.min(1, Math.max(0, share)) * 100}%`;
    bar.append(part);
  }
  return bar;
}

// Replaces what is shown only when it differs, so that a selection of text and the focus stay.
function show(element, children) {
  const next = make("div", {}, ...children);
  if (element.childElementCount === next.childElementCount && element.innerHTML === next.innerHTML) return;
  element.replaceChildren(...next.childNodes);
}

function table(id, heads, rows) {
  $(`no-${id}`).hidden = rows.length > 0;
  if (!rows.length) return $(id).replaceChildren();
  const head = make("tr", {}, ...heads.map(([text, kind]) => make("th", { scope: "col", class: kind || "" }, text)));
  const body = rows.map((cells) => make("tr", {}, ...cells.map((cell, at) => {
    const td = make("td", { class: heads[at][1] || "" });
    td.append(...(Array.isArray(cell) ? cell : [cell]));
    return td;
  })));
  show($(id), [make("thead", {}, head), make("tbody", {}, ...body)]);
}

// ---- parts of the page

function remember(name, value) {
  const values = (history[name] ||= []);
  values.push(value);
  if (values.length > MAX_HISTORY) values.shift();
  return values;
}

const SVG = "http://www.w3.org/2000/svg";
function sparkline(values) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${MAX_HISTORY} 22`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const top = Math.max(...values, 1e-9);
  const line = document.createElementNS(SVG, "polyline");
  const first = MAX_HISTORY - values.length;
  line.setAttribute("points", values.map((v, at) => `${first + at},${(20 - (v / top) * 18).toFixed(1)}`).join(" "));
  svg.append(line);
  return svg;
}

function tile(name, value, note, kind = "", line = null) {
  return make("div", { class: `tile ${kind}` }, make("dt", {}, name),
    make("dd", { class: "value" }, ...[value].flat()), make("dd", { class: "note" }, ...[note].flat()),
    line ? sparkline(line) : null);
}

const total = (items, key) => items.reduce((sum, item) => sum + item[key], 0);

function showTiles({ status, rates, waits }) {
  const partitions = Object.values(status.partitions);
  const shards = Object.values(status.shards);
  const used = total(shards, "used_bytes");
  const budget = total(shards, "budget_bytes");
  const rows = total(partitions, "rows");
  const put = total(Object.values(rates.partitions), "put_per_s");
  const out = total(Object.values(rates.partitions), "handed_out_per_s");
  const longest = waits.waits.length ? waits.waits[0].since_s : 0;
  const waiting = waits.waits.length + waits.left_out;
  const share = budget ? used / budget : 0;
  show($("tiles"), [
    tile("Samples", count(rows), `${partitions.length} partition${partitions.length === 1 ? "" : "s"}`, "", remember("rows", rows)),
    tile("Memory in use", size(used), `${percent(share)} of ${size(budget)}`, share > 0.95 ? "bad" : share > 0.85 ? "warn" : "", remember("used", used)),
    tile("Samples put", `${rate(put)} /s`, "", "", remember("put", put)),
    tile("Handed out", `${rate(out)} /s`, "", "", remember("out", out)),
    tile("Who waits", count(waiting), waiting ? `longest ${span(longest)}` : "nobody", longest > 30 ? "warn" : "", remember("waiting", waiting)),
    tile("Claims out", number("claims_out", status.claims_out), [number("claims_expired", status.claims_expired), " expired"], status.claims_expired ? "warn" : "", remember("claims", status.claims_out)),
  ]);
}

function showShards({ status, rates }) {
  const hosts = new Map();
  status.shards.forEach((shard, at) => {
    const list = hosts.get(shard.host) || [];
    list.push([shard, at]);
    hosts.set(shard.host, list);
  });
  const speeds = Object.fromEntries(rates.shards.map((shard) => [shard.slot, shard]));
  show($("shards"), [...hosts].map(([host, list]) => make("div", { class: "host" },
    make("p", {}, host, make("span", {}, `${list.length} shard${list.length === 1 ? "" : "s"}, ${size(total(list.map(([shard]) => shard), "used_bytes"))}`)),
    ...list.map(([shard, at]) => {
      const path = `shards.${at}`;
      const share = shard.budget_bytes ? shard.used_bytes / shard.budget_bytes : 0;
      const speed = speeds[shard.slot];
      const waiting = shard.puts_waiting + shard.puts_over_quota;
      return make("div", { class: "shard" },
        make("div", { class: "top" }, make("span", {}, `shard ${shard.slot}${shard.draining ? ", draining" : ""}`),
          make("span", { class: "mono" }, number(`${path}.used_bytes`, shard.used_bytes, size(shard.used_bytes)), " of ", number(`${path}.budget_bytes`, shard.budget_bytes, size(shard.budget_bytes)))),
        meter([[share, share > 0.95 ? "bad" : share > 0.85 ? "warn" : ""]]),
        make("div", { class: "fine" },
          make("span", {}, number(`${path}.rows`, shard.rows), " samples"),
          make("span", {}, number(`${path}.leases`, shard.leases), " leases"),
          make("span", {}, `${rate(speed.puts_per_s)} puts/s`), make("span", {}, `${rate(speed.gets_per_s)} gets/s`),
          waiting ? make("span", { class: "warn" }, `${waiting} puts wait`) : null,
          shard.spill ? make("span", {}, `on disk ${size(shard.spill.used_bytes)}`) : null));
    }))));
}

function showPartitions({ status }) {
  const names = Object.keys(status.partitions);
  if (!names.includes(chosen)) {
    chosen = names.slice().sort((a, b) => status.partitions[b].rows - status.partitions[a].rows)[0] ?? null;
    picture = null;
    cursor = null;
  }
  const box = $("partitions");
  const shown = [...box.querySelectorAll("input")].map((input) => input.value);
  if (shown.join("\n") !== names.join("\n")) {
    const had = box.contains(document.activeElement);
    box.replaceChildren(box.firstElementChild, ...names.map((name) => {
      const input = make("input", { type: "radio", name: "partition", value: name });
      input.addEventListener("change", () => choose(name));
      return make("label", {}, input, make("span", {}, name), make("small", {}));
    }));
    if (had) box.querySelector("input")?.focus();
  }
  names.forEach((name, at) => {
    const label = box.querySelectorAll("label")[at];
    label.querySelector("input").checked = name === chosen;
    const small = label.querySelector("small");
    small.textContent = count(status.partitions[name].rows);
    small.dataset.path = `partitions.${name}.rows`;
    small.dataset.raw = status.partitions[name].rows;
  });
  $("no-partition").hidden = names.length > 0;
  $("partition").hidden = chosen === null;
  if (chosen !== null) showFacts(status.partitions[chosen], `partitions.${chosen}`);
}

function showFacts(partition, path) {
  const policy = partition.policy;
  show($("facts"), [
    number(`${path}.rows`, partition.rows), " samples, ", number(`${path}.bytes`, partition.bytes, size(partition.bytes)),
    `, kept ${policy.retention === "consumed" ? "until every task has acked" : policy.retention === "ttl" ? "for a time" : "until cleared"}`,
    policy.max_staleness === null ? "" : `, at most ${policy.max_staleness} versions stale`,
    "; put ", number(`${path}.rows_put`, partition.rows_put), ", handed out ", number(`${path}.rows_handed_out`, partition.rows_handed_out),
  ].map((part) => (typeof part === "string" ? make("span", {}, part) : part)));
}

function choose(name) {
  chosen = name;
  picture = null;
  cursor = null;
  if (last) render(last);
}

async function refreshPicture() {
  if (chosen === null || fetching) return;
  fetching = true;
  const name = chosen;
  try {
    const columns = Math.max(16, Math.min(2048, Math.round($("matrix").clientWidth || 512)));
    performance.mark("asked");
    const answer = await fetch(`/api/picture?partition=${encodeURIComponent(name)}&columns=${columns}`);
    if (!answer.ok) return;
    const made = unpack(await answer.arrayBuffer());
    if (name !== chosen) return;
    picture = made;
    showPicture();
    performance.measure("picture", "asked");
  } catch {
    // the next event asks again
  } finally {
    fetching = false;
    if (name !== chosen) refreshPicture();
  }
}

function showPicture() {
  if (!picture) return;
  const rows = picture.num_rows;
  const fields = picture.fields.map((field, at) => {
    const ready = picture.num_ready[field];
    const text = ready === rows ? "all" : ready === 0 ? "none" : percent(ready / rows);
    return make("div", { class: cursor?.strip === at ? "on" : "", title: `${field}: ${count(ready)} of ${count(rows)}` },
      make("span", {}, field), number(`partitions.${picture.partition}.fields.${field}`, ready, text));
  });
  const tasks = picture.all_tasks.map((task, at) => make("div",
    { class: `task ${at ? "" : "first"} ${cursor?.strip === picture.fields.length + at ? "on" : ""}`, title: `task ${task}` },
    make("span", {}, task), make("span", {}, "task")));
  show($("labels"), [...fields, ...tasks]);
  draw($("matrix"), picture, document.activeElement === $("matrix") || hovering ? cursor : null);
  $("matrix").setAttribute("aria-label", `${picture.partition}: ${count(rows)} samples, oldest on the left, by ${picture.fields.length} fields and ${picture.all_tasks.length} tasks`);
  if (cursor) {
    cursor.column = Math.min(cursor.column, picture.columns - 1);
    if (picture.columns) $("readout").textContent = words(picture, cursor);
  }
  showStaleness();
}

function showStaleness() {
  const counts = picture.staleness;
  const end = counts.findLastIndex((n) => n > 0);
  $("no-versions").hidden = end >= 0;
  const shown = end < 0 ? [] : counts.slice(0, Math.max(end + 1, 6));
  const top = Math.max(...shown, 1);
  const most = last?.status.partitions[picture.partition]?.policy.max_staleness ?? null;
  show($("staleness"), shown.map((n, at) => {
    const bar = make("i");
    bar.style.height = n ? `${Math.max(2, (n / top) * 78)}px` : "0";
    return make("div", { class: most !== null && at > most ? "over" : "" }, make("b", {}, n ? count(n) : ""), bar,
      at === counts.length - 1 ? `${at}+` : String(at));
  }));
  $("staleness").setAttribute("aria-label", shown.map((n, at) => `${at} behind: ${n}`).join(", "));
}

function showTasks({ status, rates }) {
  const rows = [];
  for (const [name, partition] of Object.entries(status.partitions)) {
    let first = true; // these rates are the partition's
    for (const [task, states] of Object.entries(partition.tasks)) {
      const path = `partitions.${name}.tasks.${task}`;
      const all = Object.values(states).reduce((sum, n) => sum + n, 0) || 1;
      const cell = (state) => number(`${path}.${state}`, states[state]);
      rows.push([first ? name : "", task,
        meter([[states.acked / all, "acked"], [states.claimed / all, "claimed"], [states.dead_letter / all, "dead_letter"]]),
        cell("free"), cell("claimed"), cell("acked"), cell("dead_letter"),
        first ? `${rate(rates.partitions[name].put_per_s)} /s` : "", first ? `${rate(rates.partitions[name].handed_out_per_s)} /s` : ""]);
      first = false;
    }
  }
  table("tasks", [["partition"], ["task"], ["", "wide"], ["free", "n"], ["claimed", "n"], ["acked", "n"], ["dead letters", "n"],
    ["put", "n"], ["handed out", "n"]], rows);
}

function showWaits({ waits }) {
  table("waits", [["since"], ["what"], ["partition"], ["who"], ["ready", "n"], ["why"]], waits.waits.map((wait) => [
    span(wait.since_s), `${wait.kind} ${wait.task}`.trim(), wait.partition, make("span", { class: "mono" }, who(wait.who)),
    wait.kind === "put" ? `${count(wait.wanted)} rows` : `${count(wait.ready)} of ${count(wait.wanted)}`,
    make("span", { class: "why" }, wait.why)]));
  $("waits-note").textContent = waits.left_out ? `and ${count(waits.left_out)} more` : "";
}

function showStages({ rates }) {
  const top = Math.max(...rates.stages.map((stage) => stage.read_bytes), 1);
  table("stages", [["stage"], ["calls", "n"], ["read", "n"], ["", "wide"], ["now", "n"], ["written", "n"], ["never looked at", "n"], ["undeclared", "n"]],
    rates.stages.map((stage) => [stage.stage, count(stage.calls), make("span", { "data-stage": `${stage.stage}.read`, raw: String(stage.read_bytes) }, size(stage.read_bytes)),
      meter([[(stage.read_bytes - stage.untouched_bytes) / top, ""], [stage.untouched_bytes / top, "claimed"]]),
      `${size(stage.read_bytes_per_s)}/s`, make("span", { "data-stage": `${stage.stage}.written`, raw: String(stage.written_bytes) }, size(stage.written_bytes)),
      stage.untouched_bytes ? `${size(stage.untouched_bytes)}, ${percent(stage.untouched_share)}` : "–",
      stage.undeclared_bytes ? size(stage.undeclared_bytes) : "–"]));
}

function showErrors({ status }) {
  const rows = [];
  const processes = [["coordinator", status, "refusals"], ...status.shards.map((shard, at) => [`shard ${shard.slot}`, shard, `shards.${at}.refusals`])];
  for (const [process, of, path] of processes) {
    for (const [error, times] of Object.entries(of.refusals)) {
      rows.push([error, process, number(`${path}.${error}`, times), make("code", {}, `transferqueue explain ${error}`)]);
    }
  }
  table("errors", [["error"], ["answered by"], ["times", "n"], ["what it means"]], rows);
}

// ---- what comes

function render(frame) {
  $("content").hidden = false;
  $("service").textContent = `${frame.status.service_id}, up ${span(frame.status.uptime_s)}`;
  document.title = `TransferQueue ${frame.status.service_id.slice(0, 8)}`;
  for (const part of [showTiles, showPartitions, showShards, showTasks, showWaits, showStages, showErrors]) part(frame);
  refreshPicture();
}

function setState(text, kind) {
  if ($("state").textContent !== text) $("state").textContent = text;
  $("state").className = `pill ${kind}`;
}

function hear(message) {
  heardAt = performance.now();
  const frame = JSON.parse(message.data);
  const failed = frame.error !== undefined;
  $("alarm").hidden = !failed;
  if (failed) {
    $("alarm").textContent = `The service does not answer (${frame.error}). What is shown is old.`;
    setState("no answer", "bad");
    return;
  }
  last = frame;
  if (paused) return;
  setState("live", "good");
  render(frame);
}

function listen() {
  const events = new EventSource("/api/events");
  events.onmessage = hear;
  events.onerror = () => setState("page server is gone, trying again", "bad");
}

async function start() {
  const answer = await fetch("/api/status").catch(() => null);
  if (answer === null) {
    setState("page server is gone, trying again", "bad");
    setTimeout(start, 2000);
    return;
  }
  $("login").hidden = answer.status !== 401;
  if (answer.status === 401) {
    setState("locked", "warn");
    $("token").focus();
    return;
  }
  listen();
}

async function login(event) {
  event.preventDefault();
  const answer = await fetch("/session", { method: "POST", body: $("token").value.trim() });
  $("token").value = "";
  $("refused").textContent = answer.ok ? "" : "That is not the token.";
  if (answer.ok) start();
}

// ---- hands

let hovering = false;
function move(column, strip) {
  if (!picture || !picture.columns) return;
  const strips = picture.fields.length + picture.all_tasks.length;
  cursor = { column: Math.max(0, Math.min(picture.columns - 1, column)), strip: Math.max(0, Math.min(strips - 1, strip)) };
  showPicture();
}

function point(event) {
  if (!picture) return;
  hovering = true;
  const canvas = $("matrix");
  move(Math.floor((event.offsetX / canvas.clientWidth) * picture.columns), stripAt(picture, event.offsetY));
}

const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], PageUp: [-20, 0], PageDown: [20, 0] };
function key(event) {
  if (!picture) return;
  const at = cursor ?? { column: 0, strip: 0 };
  const end = { Home: 0, End: picture.columns - 1 }[event.key];
  const by = KEYS[event.key];
  if (end === undefined && !by) return;
  event.preventDefault();
  if (end !== undefined) move(end, at.strip);
  else move(at.column + (cursor ? by[0] : 0), at.strip + (cursor ? by[1] : 0));
}

function pause() {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  $("pause").textContent = paused ? "Go on" : "Pause";
  if (paused) setState("paused", "warn");
  else if (last) {
    setState("live", "good");
    render(last);
  }
}

$("matrix").addEventListener("pointermove", point);
$("matrix").addEventListener("pointerleave", () => { hovering = false; showPicture(); });
$("matrix").addEventListener("keydown", key);
$("matrix").addEventListener("blur", showPicture);
$("matrix").addEventListener("focus", () => move(cursor?.column ?? 0, cursor?.strip ?? 0));
$("pause").addEventListener("click", pause);
$("login").addEventListener("submit", login);
document.addEventListener("keydown", (event) => {
  if (event.key.toLowerCase() === "p" && !event.ctrlKey && !event.metaKey && !event.altKey && event.target.tagName !== "INPUT") pause();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showPicture);
new ResizeObserver(() => { if (picture) { showPicture(); refreshPicture(); } }).observe($("matrix"));
setInterval(() => { if (heardAt && performance.now() - heardAt > 15000 && !paused) setState("nothing heard for a while", "warn"); }, 1000);
start();
