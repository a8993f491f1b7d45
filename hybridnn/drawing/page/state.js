"use strict";
// The data of the page, and the state of the stages at a time. All views are drawn from the data and from `now` alone,
// so that the time can go either way.

const data = JSON.parse(document.getElementById("schedule").textContent);
const kinds = data.kinds;
const rows = data.rows.map(({ label, boxes }) => ({
  label,
  boxes: boxes.map(([start, end, kind, label, version]) => ({ start, end, kind: kinds[kind], label, version })),
}));
const stored = ([label, start, end]) => ({ label, start, end: end ?? Infinity }); // JSON has no infinity
const STORES = ["weights", "inputs", "activations"]; // what stages hold
const stages = data.stages.map(({ barriers, ...held }, row) => ({
  row: rows[row],
  barriers,
  ...Object.fromEntries(STORES.map((name) => [name, held[name].map(stored)])),
  forwards: new Map(
    rows[row].boxes.filter((box) => box.kind.name === "forward").map((box) => [box.label, box.version]),
  ),
}));
const messages = data.messages.map(([sender, receiver, gradients, label, start, arrival, use]) => ({
  sender,
  receiver,
  gradients,
  label,
  start,
  arrival,
  use,
}));
const makespan = data.makespan || 1; // 0 where nothing takes time
const pace = data.pace; // duration of a short computation: it lasts PACE_SECONDS at speed 1
const PACE_SECONDS = 1.1;
const FLIGHT = 0.5 * pace; // time for which a message is seen to fly, where it takes less

const element = (id) => document.getElementById(id);
const make = (tag, className = "", text = "") =>
  Object.assign(document.createElement(tag), { className, textContent: text });
const dark = matchMedia("(prefers-color-scheme: dark)");
const still = matchMedia("(prefers-reduced-motion: reduce)");

// Times at which a computation, a message or a weight version begins or ends: the steps.
const moments = [
  ...new Set([
    0,
    makespan,
    ...rows.flatMap((row) => row.boxes.filter((box) => box.kind.computes).flatMap((box) => [box.start, box.end])),
    ...messages.flatMap((message) => [message.start, message.arrival]),
    ...stages.flatMap((stage) => stage.weights.map((item) => item.start)),
  ]),
]
  .filter((time) => time >= 0 && time <= makespan)
  .sort((a, b) => a - b);

let now = 0;
let reached = 0; // time that the playing has reached: `now`, unless motion is reduced
let playing = false;
let followed = ""; // label of the only minibatch that is not dimmed

/** Index of the first box of a row that ends after a time. */
function firstAfter(boxes, time) {
  let low = 0,
    high = boxes.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (boxes[middle].end <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** What a stage does, and what it holds; `next` is the computation that it waits for. */
function stageAt(stage, time) {
  const boxes = stage.row.boxes,
    index = firstAfter(boxes, time),
    box = boxes[index];
  const works = box !== undefined && box.start <= time && box.kind.name !== "wait";
  const born = stage.weights.filter((item) => item.start <= time);
  const held = STORES.map((name) => [
    name,
    stage[name].filter((item) => item.start <= time && time < item.end).map((item) => item.label),
  ]);
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

/** Idle share of the stages' time until a time. */
function bubbleShare(time) {
  const busy = stages.reduce((sum, stage) => sum + busyUntil(stage, time), 0);
  return time > 0 ? 1 - busy / (stages.length * time) : 0;
}
