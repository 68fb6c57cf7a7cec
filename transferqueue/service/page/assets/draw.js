// The picture of a partition: bytes from the server onto a canvas. Knows nothing of the page.

export const ROW = 20; // pixels of a field's strip, its gap included
const GAP = 3;
const BREAK = 10; // between fields and tasks
const STATES = ["acked", "claimed", "dead_letter"];

// What `frames.packed` has made: a head, and rows of levels 0 to 255.
export function unpack(buffer) {
  const size = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  const row = (at) => new Uint8Array(buffer, 4 + size + at * head.columns, head.columns);
  head.levels = head.fields.map((_, at) => row(at));
  head.states = head.all_tasks.map(() => ({}));
  head.tasks.forEach(([task, state], at) => {
    head.states[head.all_tasks.indexOf(task)][state] = row(head.fields.length + at);
  });
  return head;
}

export function heightOf(picture) {
  const tasks = picture.all_tasks.length;
  return (picture.fields.length + tasks) * ROW + (tasks ? BREAK : 0);
}

// Where a strip begins; fields first, then tasks.
function topOf(picture, strip) {
  return strip * ROW + (strip >= picture.fields.length ? BREAK : 0);
}

export function stripAt(picture, y) {
  const fields = picture.fields.length;
  const strip = y < fields * ROW ? Math.floor(y / ROW) : Math.floor((y - BREAK) / ROW);
  return Math.max(0, Math.min(fields + picture.all_tasks.length - 1, strip));
}

function rgb(color) {
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  probe.fillStyle = color;
  probe.fillRect(0, 0, 1, 1);
  return probe.getImageData(0, 0, 1, 1).data;
}

let known = "";
let colors = {};
// The colours of the style sheet, which change with the scheme of the system.
function palette(element) {
  const style = getComputedStyle(element);
  const names = ["ready", "inset", "acked", "claimed", "dead", "ink"];
  const values = names.map((name) => style.getPropertyValue(`--${name}`).trim());
  if (values.join() !== known) {
    known = values.join();
    colors = Object.fromEntries(names.map((name, at) => [name, rgb(values[at])]));
    colors.dead_letter = colors.dead;
    colors.ramp = ramp(colors.inset, colors.ready);
  }
  return colors;
}

// Level to colour. Nothing and all stand apart from what is between, however close: one cell among
// thousands shows, and so does one hole.
function ramp(none, all) {
  const table = new Uint32Array(256);
  for (let level = 0; level < 256; level++) {
    const share = level === 0 ? 0 : level === 255 ? 1 : 0.22 + 0.5 * (level / 255);
    const [r, g, b] = [0, 1, 2].map((at) => Math.round(none[at] + (all[at] - none[at]) * share));
    table[level] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  return table;
}

const word = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;

// One pixel a column and strip, then stretched: the cost does not depend on the samples.
export function draw(canvas, picture, cursor) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(1, Math.round(canvas.clientWidth * ratio));
  const height = Math.max(1, Math.round(heightOf(picture) * ratio));
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
    canvas.style.height = `${heightOf(picture)}px`;
  }
  const on = canvas.getContext("2d");
  const paint = palette(canvas);
  on.clearRect(0, 0, width, height);
  on.imageSmoothingEnabled = false;
  if (!picture.columns) return;
  const strip = document.createElement("canvas");
  strip.width = picture.columns;
  const place = (at, rows) => {
    const tall = Math.round((ROW - GAP) * ratio);
    on.drawImage(strip, 0, 0, picture.columns, rows, 0, Math.round(topOf(picture, at) * ratio), width, tall);
  };
  picture.levels.forEach((levels, at) => {
    strip.height = 1;
    put(strip, 1, (pixels) => levels.forEach((level, x) => (pixels[x] = paint.ramp[level])));
    place(at, 1);
  });
  const fine = ROW - GAP;
  picture.states.forEach((states, at) => {
    strip.height = fine;
    put(strip, fine, (pixels) => stack(pixels, picture.columns, fine, states, paint));
    place(picture.fields.length + at, fine);
  });
  if (cursor) outline(on, picture, cursor, width, ratio, paint);
}

function put(strip, rows, fill) {
  const on = strip.getContext("2d");
  const image = on.createImageData(strip.width, rows);
  fill(new Uint32Array(image.data.buffer));
  on.putImageData(image, 0, 0);
}

// What a task has done with each stretch, from the bottom up; what is there shows at least a pixel.
function stack(pixels, columns, rows, states, paint) {
  pixels.fill(word(paint.inset));
  const there = STATES.filter((state) => states[state]);
  for (let x = 0; x < columns; x++) {
    let y = rows;
    for (const state of there) {
      const level = states[state][x];
      const tall = level === 0 ? 0 : Math.max(1, Math.round((level / 255) * rows));
      const color = word(paint[state]);
      for (let end = Math.max(0, y - tall); y > end; ) pixels[--y * columns + x] = color;
    }
  }
}

function outline(on, picture, cursor, width, ratio, paint) {
  const cell = width / picture.columns;
  const left = Math.floor(cursor.column * cell);
  const top = Math.round(topOf(picture, cursor.strip) * ratio);
  const [r, g, b] = paint.ink;
  on.strokeStyle = `rgb(${r} ${g} ${b})`;
  on.lineWidth = 1.5 * ratio;
  const wide = Math.max(4 * ratio, cell);
  const x = Math.min(width - wide - ratio, Math.max(ratio, left - (wide - cell) / 2));
  on.strokeRect(x, top + 0.75 * ratio, wide, (ROW - GAP) * ratio - 1.5 * ratio);
}

// What a cell says, in words.
export function words(picture, cursor) {
  const { column, strip } = cursor;
  const first = column ? picture.ends[column - 1] : 0;
  const last = picture.ends[column];
  const samples = last - first === 1
    ? `sample ${last.toLocaleString("en")}`
    : `samples ${(first + 1).toLocaleString("en")} to ${last.toLocaleString("en")}`;
  const share = (level) => (level === 0 ? "none" : level === 255 ? "all" : `about ${Math.round((level / 255) * 100)} %`);
  if (strip < picture.fields.length) {
    return `${samples}: ${share(picture.levels[strip][column])} have ${picture.fields[strip]}`;
  }
  const at = strip - picture.fields.length;
  const states = picture.states[at];
  const said = STATES.filter((state) => states[state] && states[state][column])
    .map((state) => `${share(states[state][column])} ${state.replace("_", " ")}`);
  return `${samples}, ${picture.all_tasks[at]}: ${said.join(", ") || "none taken"}`;
}
