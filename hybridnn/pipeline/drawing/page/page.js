"use strict";
// Shows a schedule at a time `now`: all views are drawn from the data and `now` alone, so that it can go either way.

const data = JSON.parse(document.getElementById("schedule").textContent);
const kinds = data.kinds;
const rows = data.rows.map(({ label, boxes }) => ({
  label,
  boxes: boxes.map(([start, end, kind, label, version]) => ({ start, end, kind: kinds[kind], label, version })),
}));
const stored = ([label, start, end]) => ({ label, start, end: end ?? Infinity }); // JSON has no infinity
const STORES = ["weights", "inputs", "activations"]; // what stages hold
const stages = data.stages.map(({ row, barriers, ...held }) => ({
  row: rows[row], barriers, ...Object.fromEntries(STORES.map((name) => [name, held[name].map(stored)])),
  forwards: new Map(rows[row].boxes.filter((box) => box.kind.name === "forward").map((box) => [box.label, box.version])),
}));
const messages = data.messages.map(([sender, receiver, gradients, label, start, arrival, use]) => (
  { sender, receiver, gradients, label, start, arrival, use }
));
const makespan = data.makespan;
const pace = data.pace; // duration of a short computation: it lasts PACE_SECONDS at speed 1
const PACE_SECONDS = 1.1;
const FLIGHT = 0.5 * pace; // time for which a message is seen to fly, where it takes less

const element = (id) => document.getElementById(id);
const make = (tag, className = "", text = "") => Object.assign(document.createElement(tag), { className, textContent: text });
const dark = matchMedia("(prefers-color-scheme: dark)");
const still = matchMedia("(prefers-reduced-motion: reduce)");

// Times at which a computation, a message or a weight version begins or ends: the steps.
const moments = [...new Set([0, makespan,
  ...rows.flatMap((row) => row.boxes.filter((box) => box.kind.computes).flatMap((box) => [box.start, box.end])),
  ...messages.flatMap((message) => [message.start, message.arrival]),
  ...stages.flatMap((stage) => stage.weights.map((item) => item.start)),
])].filter((time) => time >= 0 && time <= makespan).sort((a, b) => a - b);

let now = 0;
let reached = 0; // time that the playing has reached: `now`, unless motion is reduced
let playing = false;
let followed = ""; // label of the only minibatch that is not dimmed

// -- the state at a time ----------------------------------------------------------------------------------------------

/** Index of the first box of a row that ends after a time. */
function firstAfter(boxes, time) {
  let low = 0, high = boxes.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (boxes[middle].end <= time) low = middle + 1; else high = middle;
  }
  return low;
}

/** What a stage does, and what it holds; `next` is the computation that it waits for. */
function stageAt(stage, time) {
  const boxes = stage.row.boxes, index = firstAfter(boxes, time), box = boxes[index];
  const works = box !== undefined && box.start <= time && box.kind.name !== "wait";
  const born = stage.weights.filter((item) => item.start <= time);
  const held = STORES.map((name) => [name, stage[name].filter((item) => item.start <= time && time < item.end).map((item) => item.label)]);
  return {
    box: works ? box : null,
    next: boxes.slice(index).find((later) => later.kind.computes) || null,
    started: index > 0 || works,
    barrier: stage.barriers.some(([start, end]) => start <= time && time < end),
    current: born.length ? born[born.length - 1] : null,
    ...Object.fromEntries(held),
  };
}

/** Time in which the computations of a stage lasted until a time. */
function busyUntil(stage, time) {
  let busy = 0;
  for (const box of stage.row.boxes) {
    if (box.start >= time) break;
    if (box.kind.computes) busy += Math.min(box.end, time) - box.start;
  }
  return busy;
}

const numberOf = (version) => +version.slice(1); // v3: the weights after 3 updates

/** Whether a label belongs to the followed minibatch; a letter for the chunk may stand behind the number. */
const isDim = (label) => followed !== "" && label.replace(/[a-z]+$/, "") !== followed;

// -- words ------------------------------------------------------------------------------------------------------------

const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : noun.endsWith("s") || noun.endsWith("ch") ? "es" : "s"}`;
const shown = (time) => `${+time.toPrecision(4)}${data.unit ? ` ${data.unit}` : ""}`;
const percent = (share) => `${(100 * share).toFixed(1)} %`;

const hasVersions = stages.some((stage) => stage.weights.length > 2);

/** The weights that a computation of a stage reads, as a part of a sentence; not said where there is one version. */
function reading(box, current, stage) {
  if (!box.version || !hasVersions) return "";
  const [version, ahead] = box.version.split("+"), behind = current ? numberOf(current.label) - numberOf(version) : 0;
  if (ahead) return ` with ${version} predicted ${plural(+ahead, "update")} ahead`;
  if (behind > 0) return ` with the stored ${version}, ${plural(behind, "update")} behind`;
  const earlier = box.kind.name === "forward" ? box.version : stage.forwards.get(box.label) || box.version;
  if (earlier === box.version) return ` with ${version}`;
  const [base, more] = earlier.split("+");
  if (numberOf(base) + +(more || 0) === numberOf(version)) return ` with ${version}, which its forward pass predicted as ${earlier}`;
  return ` with ${version}, though its forward pass read ${earlier}`;
}

const DEEDS = { send: "sends", reduce: "adds up gradients", update: "updates its weights", other: "does other work" };

/** What a stage does, with the noun for the number where it is not clear from an earlier clause. */
function deed(box, current, stage, noun) {
  const what = `${noun}${box.label || "all"}`, weights = reading(box, current, stage);
  switch (box.kind.name) {
    case "forward": return `takes ${what} forward${weights}`;
    case "backward": return `takes ${what} back${weights}`;
    case "recompute": return `computes ${what} again${weights}`;
    case "input gradient": case "weight gradient": return `computes the ${box.kind.name} of ${what}${weights}`;
    default: return DEEDS[box.kind.name];
  }
}

/** One sentence about a time. */
function sentence(states) {
  const share = bubbleShare(now);
  if (now >= makespan) return `${data.unit ? "This is the end of the picture" : "All is done"} at time ${shown(makespan)}: the stages computed nothing for ${percent(share)} of it.`;
  const filling = states.some((state) => !state.started), draining = states.some((state) => !state.next);
  const phase = filling ? "The pipeline fills" : draining ? "The pipeline drains" : states.every((state) => state.box) ? "Every stage has work" : "Some stages wait";
  return `${phase}: ${states.length > 8 ? counts(states) : clauses(states)}${births(states)}.`;
}

/** Reserve the height of the longest of some sentences, so that nothing below jumps. */
function reserveCaption() {
  const caption = element("caption"), every = Math.ceil(moments.length / 300), time = now;
  const sentences = moments.filter((_, index) => index % every === 0).map((moment) => {
    now = moment;
    return sentence(stages.map((stage) => stageAt(stage, moment)));
  });
  now = time;
  caption.style.minHeight = "";
  caption.textContent = sentences.reduce((longest, text) => text.length > longest.length ? text : longest, "");
  caption.style.minHeight = `${caption.offsetHeight}px`;
}

/** What every stage does; neighbours that do nothing are named together. */
function clauses(states) {
  const parts = [];
  let noun = `${data.unitName} `;
  states.forEach(({ box, next, barrier, current }, number) => {
    const text = box ? deed(box, current, stages[number], noun) : barrier ? "waits at a barrier" : next ? "waits" : "has finished", last = parts[parts.length - 1];
    if (box && box.kind.computes) noun = "";
    if (last && last.text === text && !box) last.to = number; else parts.push({ from: number, to: number, text });
  });
  const many = { waits: "wait", "waits at a barrier": "wait at a barrier", "has finished": "have finished" };
  return parts.map(({ from, to, text }) => from === to ? `stage ${from} ${text}` : `stages ${from} ${to > from + 1 ? "to" : "and"} ${to} ${many[text]}`).join("; ");
}

/** How many stages do what. */
function counts(states) {
  const found = new Map();
  for (const { box, next } of states) {
    const name = box ? box.kind.name : next ? "waiting" : "nothing left to do";
    found.set(name, (found.get(name) || 0) + 1);
  }
  return [...found].map(([name, count], index) => `${name} on ${index ? count : plural(count, "stage")}`).join(", ");
}

/** The stages that have a new weight version at this very time. */
function births(states) {
  const parts = states.flatMap(({ current }, number) => current && now > 0 && current.start === now ? [`stage ${number} now has ${current.label}`] : []);
  if (parts.length > 8) return `; ${plural(parts.length, "stage")} have new weights`;
  return parts.length ? `; ${parts.join(", ")}` : "";
}

// -- colours ----------------------------------------------------------------------------------------------------------

// Neighbouring versions differ in lightness too, and none has the blue and green of the passes.
const VERSIONS = [["#f2c53d", "#2a2000"], ["#7b4fb3", "#ffffff"], ["#f59a4c", "#2b1400"], ["#a82c63", "#ffffff"], ["#f5b3cf", "#3a0a1f"], ["#86502a", "#ffffff"]];
const versionColours = (version) => VERSIONS[numberOf(version) % VERSIONS.length];

/** The colours of a version; stripes where it is a prediction. */
function versionStyle(version) {
  const [base, ahead] = version.split("+"), [fill, ink] = versionColours(base);
  if (!ahead) return `background:${fill};color:${ink}`;
  const [goal] = versionColours(`v${numberOf(base) + +ahead}`);
  return `background:linear-gradient(${fill},${fill}) content-box,repeating-linear-gradient(135deg,${goal} 0 4px,${fill} 4px 7px);padding:3px 8px;color:${ink}`;
}

/** The fill of a kind; dark ones are lighter on a dark page. */
function fillOf(kind) {
  const channels = [1, 3, 5].map((at) => parseInt(kind.fill.slice(at, at + 2), 16));
  if (!dark.matches || channels.reduce((sum, value) => sum + value) > 260) return kind.fill;
  return `rgb(${channels.map((value) => Math.round(value + 0.16 * (255 - value))).join(" ")})`;
}

const kindNamed = (...names) => kinds.find((kind) => names.includes(kind.name)) || kinds[0];
const FORWARD = kindNamed("forward"), BACKWARD = kindNamed("backward", "input gradient");

// -- stages and messages ----------------------------------------------------------------------------------------------

const MOST_LINES = 3; // of chips
const COMPACT = 104; // width in pixels below which the card of a stage leaves out words
const pipeline = element("pipeline");
const cards = [];
const lanes = new Map(); // from "sender receiver gradients"
const tokens = new Map(); // from message to its element

function buildPipeline() {
  pipeline.style.maxWidth = `${320 * stages.length}px`;
  pipeline.style.gridTemplateColumns = stages.map(() => "minmax(66px, 1fr)").join(" minmax(26px, 0.42fr) ");
  stages.forEach((stage, number) => {
    if (number) pipeline.append(wire("wire", number - 1, number));
    cards.push(buildCard(stage, number));
    pipeline.append(cards[number].root);
  });
  const last = stages.length - 1;
  if (last > 1 && messages.some((message) => Math.abs(message.sender - message.receiver) > 1)) pipeline.append(wire("around", last, 0));
}

/** Two lanes between stages: activations from `before` to `after`, gradients back. */
function wire(className, before, after) {
  const root = make("div", className);
  for (const [name, from, to, gradients] of [["activations", before, after, 0], ["gradients", after, before, 1]]) {
    const lane = make("div", `lane ${name}`);
    lanes.set(`${from} ${to} ${gradients}`, lane);
    root.append(lane);
  }
  root.setAttribute("aria-hidden", "true");
  return root;
}

/** Most items that a list holds at a time. */
function peak(items) {
  const changes = items.flatMap((item) => [[item.start, 1], [item.end, -1]]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let held = 0, most = 0;
  for (const [, change] of changes) most = Math.max(most, held += change);
  return most;
}

function buildCard(stage, number) {
  const root = make("article", "stage"), tile = make("div", "tile"), done = make("span", "done");
  const parts = { what: make("span", "what"), number: make("span", "number"), reads: make("span", "reads") };
  tile.append(...Object.values(parts), done);
  const title = make("h2", "", number);
  title.prepend(make("span", "", "stage "));
  root.append(title, tile);
  root.dataset.stage = number;
  const card = { root, tile, done, ...parts, key: "" };
  for (const name of STORES) {
    if (!stage[name].length) continue;
    const store = make("div", "store"), chips = make("div", "chips");
    chips.dataset.peak = peak(stage[name]);
    store.append(make("b", "", name), chips);
    root.append(store);
    card[name] = chips;
  }
  return card;
}

/** Reserve the lines that the chips of any time need, so that nothing jumps. */
function reserveLines() {
  pipeline.classList.toggle("compact", cards[0].root.offsetWidth < COMPACT);
  for (const name of STORES) {
    const lists = cards.map((card) => card[name]).filter(Boolean);
    if (!lists.length) continue;
    const longest = Math.max(...stages.flatMap((stage) => stage[name].map((item) => item.label.length)));
    const columns = Math.max(1, Math.floor((lists[0].clientWidth + 4) / Math.max(28, 18 + 7 * longest)));
    const lines = Math.min(MOST_LINES, Math.ceil(Math.max(...lists.map((list) => list.dataset.peak)) / columns));
    for (const list of lists) {
      list.style.setProperty("--lines", lines);
      list.dataset.most = lines * columns;
    }
  }
}

function showStage(card, state) {
  const { box, current } = state, lists = STORES.filter((name) => card[name]);
  if (box) card.done.style.transform = `scaleX(${(now - box.start) / (box.end - box.start)})`;
  const key = JSON.stringify([state, followed, dark.matches, lists.map((name) => card[name].dataset.most)]);
  if (key === card.key) return;
  card.key = key;
  Object.assign(card.root.dataset, { kind: box ? box.kind.name : "", label: box ? box.label : "", version: box ? box.version : "", current: current ? current.label : "" });
  showTile(card, state);
  for (const name of lists) {
    card.root.dataset[name] = state[name].join(" ");
    showChips(card[name], state[name], (label) => name === "weights" ? weightChip(label, current) : make("span", `chip kept${isDim(label) ? " dim" : ""}`, label));
  }
}

function showTile({ tile, what, number, reads, done }, { box, next, barrier }) {
  tile.className = box ? "tile" : "tile idle";
  tile.classList.toggle("dim", box !== null && isDim(box.label));
  const isBack = box && (box.kind.name === "backward" || box.kind.name === "input gradient");
  tile.dataset.shape = box && (box.kind.name === "forward" || box.kind.name === "recompute") ? "right" : isBack ? "left" : "";
  tile.style.cssText = box ? `--fill:${fillOf(box.kind)};--on-fill:${box.kind.ink}` : "";
  done.hidden = !box;
  what.textContent = box ? box.kind.name : barrier ? "waits at" : next ? "waits for" : "has finished";
  number.textContent = box ? box.label : barrier ? "a barrier" : next ? `${next.kind.letter}${next.label}` : "";
  number.classList.toggle("words", barrier);
  reads.hidden = !box || !box.version;
  if (reads.hidden) return;
  const word = make("span", "", "reads ");
  reads.replaceChildren(word, box.version);
  reads.style.cssText = versionStyle(box.version);
}

function weightChip(label, current) {
  const chip = make("span", "chip", label);
  chip.style.cssText = versionStyle(label);
  if (current.label === label) {
    chip.classList.add("current");
    chip.title = "the current version";
  }
  return chip;
}

/** As many chips as there is room for, and the number of the others. */
function showChips(list, labels, makeChip) {
  const most = labels.length > list.dataset.most ? list.dataset.most - 1 : labels.length;
  list.replaceChildren(...labels.slice(0, most).map(makeChip));
  if (labels.length > most) list.append(make("span", "chip more", `+${labels.length - most}`));
}

/** Messages fly to the end of their lane, and wait there until they are used. */
function showMessages() {
  const waiting = new Map(), seen = new Set();
  for (const message of messages) {
    // One that takes no time, or is used at once, is seen around the moment at which it changes hands.
    const early = Math.max(0, FLIGHT - (message.use - message.start)) / 2;
    const leave = message.start - early, arrive = Math.min(Math.max(message.arrival, leave + FLIGHT), message.use + early);
    if (leave > now) { if (message.start > now + FLIGHT) break; continue; }
    if (now >= Math.max(message.use, arrive)) continue;
    const lane = lanes.get(`${message.sender} ${message.receiver} ${message.gradients}`);
    if (!lane) continue;
    seen.add(message);
    const share = arrive > leave ? Math.min(1, (now - leave) / (arrive - leave)) : 1;
    const place = share < 1 ? 0 : waiting.get(lane) || 0;
    if (share >= 1) waiting.set(lane, place + 1);
    placeToken(tokenOf(message, lane), message, share, place);
  }
  for (const [message, token] of tokens) if (!seen.has(message)) { token.remove(); tokens.delete(message); }
}

function tokenOf(message, lane) {
  let token = tokens.get(message);
  if (!token) {
    token = make("span", "token", message.label);
    tokens.set(message, token);
    lane.append(token);
  }
  return token;
}

function placeToken(token, message, share, place) {
  const kind = message.gradients ? BACKWARD : FORWARD, smooth = share * share * (3 - 2 * share);
  const way = 100 * (message.gradients ? 1 - smooth : smooth), back = (message.gradients ? 8 : -8) * place;
  token.style.cssText = `left:calc(${way}% + ${back}px);--fill:${fillOf(kind)};--on-fill:${kind.ink}`;
  token.classList.toggle("dim", isDim(message.label));
}

// -- Gantt chart ------------------------------------------------------------------------------------------------------

const chart = element("chart");
const CLOSE_PIXELS = 14 + 7 * Math.max(0, ...rows.flatMap((row) => row.boxes.slice(-9).map((box) => box.label.length))); // of a short computation in a close-up
const AXIS = 24; // height of the time axis
const LEAST_PIXELS = 5; // below, the chart begins as a close-up
let frame = { left: 0, scale: 1, from: 0 }; // from time to pixels

/** The part of the time axis that is seen: all of it, or in a close-up what is around `now`. */
function chooseFrame(width, left) {
  const fit = (width - left - 2) / makespan, close = Math.max(fit, CLOSE_PIXELS / pace);
  element("close-up").hidden = close <= fit;
  const scale = element("zoom").checked ? close : fit;
  const span = (width - left - 2) / scale;
  return { left, scale, from: Math.max(0, Math.min(now - span / 2, makespan - span)) };
}

/** Colours of the page, and the pattern of the bubble; made once for light and for dark. */
function chartStyle(pen) {
  const colours = getComputedStyle(document.documentElement);
  const style = Object.fromEntries(["ink", "muted", "rule", "page", "idle", "accent"].map((name) => [name, colours.getPropertyValue(`--${name}`).trim()]));
  const tile = Object.assign(document.createElement("canvas"), { width: 8, height: 8 }), brush = tile.getContext("2d");
  brush.strokeStyle = style.idle;
  brush.globalAlpha = 0.75;
  brush.lineWidth = 1.2;
  for (const shift of [-8, 0, 8]) {
    brush.moveTo(shift, 8);
    brush.lineTo(shift + 8, 0);
  }
  brush.stroke();
  style.gap = pen.createPattern(tile, "repeat");
  style.fills = new Map(kinds.map((kind) => [kind, fillOf(kind)]));
  return style;
}

const pen = chart.getContext("2d");
let style = null; // null until the chart is drawn, and after a change between light and dark

function showChart() {
  const width = chart.clientWidth, pixels = window.devicePixelRatio || 1;
  const height = rows.length > 24 ? 14 : rows.length > 10 ? 22 : 32, pitch = height + (height > 20 ? 6 : 3);
  const bottom = rows.length * pitch, total = bottom + AXIS;
  if (chart.width !== Math.round(width * pixels) || chart.height !== Math.round(total * pixels)) {
    chart.width = Math.round(width * pixels);
    chart.height = Math.round(total * pixels);
    chart.style.height = `${total}px`;
  }
  style = style || chartStyle(pen);
  pen.setTransform(pixels, 0, 0, pixels, 0, 0);
  pen.clearRect(0, 0, width, total);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const left = 12 + Math.max(...rows.map((row) => pen.measureText(row.label).width));
  frame = chooseFrame(width, left);
  pen.fillStyle = style.ink;
  pen.textAlign = "start";
  rows.forEach((row, number) => pen.fillText(row.label, 0, number * pitch + height / 2));
  pen.save();
  pen.beginPath();
  pen.rect(left, 0, width - left, total);
  pen.clip();
  pen.textAlign = "center";
  drawAxis(width, bottom);
  rows.forEach((row, number) => drawRow(row, number * pitch, height, width));
  pen.fillStyle = style.accent;
  pen.fillRect(left + (now - frame.from) * frame.scale - 1, 0, 2, bottom + 4);
  pen.restore();
}

function drawAxis(width, bottom) {
  const span = (width - frame.left) / frame.scale, least = span / Math.max(2, (width - frame.left) / 80);
  const power = 10 ** Math.floor(Math.log10(least)), step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= least * 0.999);
  for (let tick = Math.ceil(frame.from / step) * step; tick <= Math.min(makespan, frame.from + span); tick += step) {
    const x = frame.left + (tick - frame.from) * frame.scale, text = shown(tick), half = pen.measureText(text).width / 2 + 1;
    pen.fillStyle = style.rule;
    pen.fillRect(x, 0, 1, bottom + 2);
    pen.fillStyle = style.muted;
    pen.fillText(text, Math.min(Math.max(x, frame.left + half), width - half), bottom + 13);
  }
}

function drawRow(row, y, height, width) {
  const until = frame.from + (width - frame.left) / frame.scale, x = (time) => frame.left + (time - frame.from) * frame.scale;
  const hasFuture = element("future").checked;
  pen.fillStyle = style.gap;
  pen.fillRect(frame.left, y, (Math.min(now, until) - frame.from) * frame.scale, height);
  for (let index = firstAfter(row.boxes, frame.from); index < row.boxes.length && row.boxes[index].start < until; index++) {
    const box = row.boxes[index];
    if (box.start > now && !hasFuture) break;
    drawBox(box, x(box.start), x(box.end) - x(box.start), y, height, hasFuture);
  }
}

/** A box: full up to `now`, faint beyond; below its number a strip with the colour of the version. */
function drawBox(box, x, width, y, height, hasFuture) {
  const inner = Math.max(width - (width > 4 ? 1 : 0), 0.5), past = Math.max(0, Math.min(1, (now - box.start) / (box.end - box.start))) * inner;
  const strip = box.version && height > 20 ? Math.round(height * 0.25) : 0, dim = isDim(box.label) ? 0.22 : 1;
  pen.fillStyle = style.page; // over the pattern of the bubble
  pen.fillRect(x, y, past, height);
  const fill = (colour, top, tall) => {
    pen.fillStyle = colour;
    pen.globalAlpha = 0.18 * dim;
    if (hasFuture) pen.fillRect(x + past, top, inner - past, tall);
    pen.globalAlpha = dim;
    pen.fillRect(x, top, past, tall);
  };
  fill(style.fills.get(box.kind), y, height - strip);
  if (strip) fillStrip(box.version, y + height - strip, strip, fill);
  const isPast = past >= inner / 2;
  if (box.label && height > 12 && box.kind.computes && (isPast || hasFuture) && pen.measureText(box.label).width + 2 <= inner) {
    pen.fillStyle = isPast ? box.kind.ink : style.muted;
    pen.fillText(box.label, x + inner / 2, y + (height - strip) / 2 + 0.5);
  }
  pen.globalAlpha = 1;
}

/** The strip of a version; that of a prediction has below the colour of the version that it predicts. */
function fillStrip(version, y, height, fill) {
  const [base, ahead] = version.split("+");
  fill(versionColours(base)[0], y, height);
  if (ahead) fill(versionColours(`v${numberOf(base) + +ahead}`)[0], y + height / 2, height / 2);
}

/** The time below a pointer, and the row. */
function under(event) {
  const area = chart.getBoundingClientRect();
  const time = frame.from + (event.clientX - area.left - frame.left) / frame.scale;
  const row = rows[Math.floor((event.clientY - area.top) / (chart.clientHeight - AXIS) * rows.length)];
  return { time: Math.max(0, Math.min(makespan, time)), row };
}

function describe(box) {
  return `${box.kind.name} ${box.label}, ${shown(box.start)} to ${shown(box.end)}${box.version ? `, weights ${box.version}` : ""}`;
}

// -- figures, legend and table ----------------------------------------------------------------------------------------

const IDLE = data.unit ? "not computing" : "idle so far"; // a measured stage may also send, reduce or update

/** Idle share of the stages' time until a time. */
function bubbleShare(time) {
  const busy = stages.reduce((sum, stage) => sum + busyUntil(stage, time), 0);
  return time > 0 ? 1 - busy / (stages.length * time) : 0;
}

function showFigures(states) {
  const most = (name) => Math.max(...states.map((state) => state[name].length));
  const sent = messages.filter((message) => message.start <= now).length;
  const facts = [[IDLE, percent(bubbleShare(now)), "of the stages' time"]];
  if (stages.some((stage) => stage.weights.length)) {
    const applied = Math.min(...states.map((state) => state.current ? numberOf(state.current.label) : 0));
    facts.push(["updates on every stage", applied, `of ${numberOf(stages[0].weights[stages[0].weights.length - 1].label)}`]);
    facts.push(["weight versions held", most("weights"), "by the stage with most"]);
    facts.push(["activations held", most("activations"), "by the stage with most"]);
  }
  if (messages.length) facts.push(["messages sent", sent, `of ${messages.length}`]);
  const text = JSON.stringify(facts);
  if (element("figures").dataset.key === text) return;
  element("figures").dataset.key = text;
  element("figures").replaceChildren(...facts.map(([name, value, note]) => {
    const root = make("div"), amount = make("dd", "", `${value} `);
    amount.append(make("small", "", note));
    root.append(make("dt", "", name), amount);
    return root;
  }));
}

function showLegend() {
  const entries = kinds.map((kind) => [`background:${fillOf(kind)}`, `${kind.name} (${kind.letter})`, ""]);
  entries.push(["", data.unit ? "nothing recorded" : IDLE, "gap"]);
  if (data.versions) {
    const bands = VERSIONS.map(([fill], index) => `${fill} ${16.7 * index}% ${16.7 * (index + 1)}%`);
    entries.push([`background:linear-gradient(90deg,${bands});width:30px`, `${data.versions}; ringed: current`, ""]);
  }
  element("legend").replaceChildren(...entries.map(([style, text, className]) => {
    const root = make("span"), swatch = make("i", className);
    swatch.style.cssText = style;
    root.append(swatch, text);
    return root;
  }), make("span", "", data.numbering));
}

/** The table of all computations, made when it is opened. */
function fillTable() {
  const table = make("table"), head = table.createTHead().insertRow();
  for (const title of ["stage", "start", "end", "computation", data.unitName, "weights"]) head.append(Object.assign(make("th", "", title), { scope: "col" }));
  const body = table.createTBody();
  const all = rows.flatMap((row) => row.boxes.map((box) => ({ row, ...box }))).sort((a, b) => a.start - b.start);
  for (const { row, start, end, kind, label, version } of all) {
    const line = body.insertRow();
    for (const text of [row.label, shown(start), shown(end), kind.name, label, version]) line.append(make("td", "", text));
  }
  element("table").querySelector("div").replaceChildren(table);
}

function layOut() {
  reserveLines();
  reserveCaption();
  show();
}

// -- time -------------------------------------------------------------------------------------------------------------

function show() {
  const states = stages.map((stage) => stageAt(stage, now));
  cards.forEach((card, number) => showStage(card, states[number]));
  showMessages();
  const text = sentence(states);
  if (element("caption").textContent !== text) element("caption").textContent = text;
  showChart();
  showFigures(states);
  const slider = element("time");
  slider.value = now;
  slider.setAttribute("aria-valuetext", `time ${shown(now)} of ${shown(makespan)}`);
  element("clock").textContent = `${shown(now)} of ${shown(makespan)}`;
  chart.setAttribute("aria-label", `Gantt chart of ${rows.length} rows, filled in up to time ${shown(now)} of ${shown(makespan)}`);
}

function setTime(time) {
  now = reached = Math.max(0, Math.min(makespan, time));
  show();
}

function play(on) {
  if (on && now >= makespan) setTime(0);
  playing = on;
  document.body.classList.toggle("playing", on);
  element("play").setAttribute("aria-label", on ? "Pause" : "Play");
  // A screen reader speaks the sentence of a step, not those that rush by.
  element("caption").setAttribute("aria-live", on ? "off" : "polite");
  if (on) requestAnimationFrame(tick);
}

let before = null; // time of the last frame, ms

function tick(clock) {
  if (!playing) { before = null; return; }
  const passed = before === null ? 0 : Math.min(clock - before, 200) / 1000;
  before = clock;
  reached = Math.min(makespan, reached + passed * element("speed").value * pace / PACE_SECONDS);
  // Without motion, the picture goes from step to step.
  now = still.matches ? moments[lastMoment(reached)] : reached;
  show();
  if (now >= makespan) { play(false); before = null; } else requestAnimationFrame(tick);
}

/** Index of the last moment that is not after a time. */
function lastMoment(time) {
  let low = 0, high = moments.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (moments[middle] <= time) low = middle + 1; else high = middle;
  }
  return low - 1;
}

function step(direction) {
  play(false);
  const last = lastMoment(now);
  const target = direction > 0 ? last + 1 : moments[last] === now ? last - 1 : last;
  setTime(moments[Math.max(0, Math.min(moments.length - 1, target))]);
}

// -- controls ---------------------------------------------------------------------------------------------------------

const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16, 32, 64];

function changeSpeed(direction) {
  const choice = element("speed");
  choice.selectedIndex = Math.max(0, Math.min(SPEEDS.length - 1, choice.selectedIndex + direction));
}

const KEYS = {
  ArrowLeft: () => step(-1),
  ArrowRight: () => step(1),
  Home: () => { play(false); setTime(0); },
  End: () => { play(false); setTime(makespan); },
  "+": () => changeSpeed(1),
  "-": () => changeSpeed(-1),
  " ": () => play(!playing),
};

function onKey(event) {
  const target = event.target, action = KEYS[event.key];
  if (!action || event.ctrlKey || event.altKey || event.metaKey) return;
  // Choices use these keys themselves, and so do buttons with the space bar.
  if (target.matches("select") || (event.key === " " && target.matches("button, input[type=checkbox], summary"))) return;
  event.preventDefault();
  action();
}

function buildControls() {
  element("time").max = makespan;
  element("zoom").checked = (chart.clientWidth - 70) / makespan * pace < LEAST_PIXELS;
  element("speed").append(...SPEEDS.map((speed) => new Option(`${speed} ×`, speed, speed === 1, speed === 1)));
  const labels = new Set(rows.flatMap((row) => row.boxes.filter((box) => box.kind.computes).map((box) => box.label.replace(/[a-z]+$/, ""))));
  labels.delete("");
  element("follow").append(...[...labels].slice(0, 1000).map((label) => new Option(`${data.unitName} ${label}`, label)));
  for (const [id, action] of [["start", KEYS.Home], ["end", KEYS.End], ["back", KEYS.ArrowLeft], ["step", KEYS.ArrowRight], ["play", KEYS[" "]]]) element(id).addEventListener("click", action);
  element("time").addEventListener("input", (event) => setTime(+event.target.value));
  element("follow").addEventListener("change", (event) => { followed = event.target.value; show(); });
  for (const id of ["future", "zoom"]) element(id).addEventListener("change", show);
  element("table").addEventListener("toggle", fillTable, { once: true });
  document.addEventListener("keydown", onKey);
  chart.addEventListener("pointerdown", (event) => setTime(under(event).time));
  chart.addEventListener("pointermove", (event) => {
    const { time, row } = under(event), box = row && row.boxes[firstAfter(row.boxes, time)];
    if (event.buttons) setTime(time);
    chart.title = box && box.start <= time ? describe(box) : "";
  });
}

element("player").hidden = false;
buildPipeline();
buildControls();
showLegend();
play(false);
layOut();
addEventListener("resize", layOut);
dark.addEventListener("change", () => {
  style = null;
  showLegend();
  show();
});
