// The time: playing, steps and controls.

function show() {
  const states = stages.map((stage) => stageAt(stage, now));
  cards.forEach((card, number) => showStage(card, states[number]));
  showMessages();
  const text = sentence(states, now);
  if (element("caption").textContent !== text) element("caption").textContent = text;
  showChart();
  showFigures(states);
  const slider = element("time");
  slider.value = now;
  slider.setAttribute("aria-valuetext", `time ${shown(now)} of ${shown(makespan)}`);
  element("clock").textContent = `${shown(now)} of ${shown(makespan)}`;
  chart.setAttribute(
    "aria-label",
    `Gantt chart of ${rows.length} rows, filled in up to time ${shown(now)} of ${shown(makespan)}`,
  );
}

function setTime(time) {
  now = reached = Math.max(0, Math.min(makespan, time));
  show();
}

let nextFrame = 0; // its request, while it plays
let before = null; // time of the last frame, ms

function play(on) {
  if (on && now >= makespan) setTime(0);
  playing = on;
  document.body.classList.toggle("playing", on);
  element("play").setAttribute("aria-label", on ? "Pause" : "Play");
  // A screen reader speaks the sentence of a step, not those that change while it plays.
  element("caption").setAttribute("aria-live", on ? "off" : "polite");
  cancelAnimationFrame(nextFrame);
  before = null;
  if (on) nextFrame = requestAnimationFrame(tick);
}

function tick(clock) {
  const passed = before === null ? 0 : Math.min(clock - before, 200) / 1000;
  before = clock;
  reached = Math.min(makespan, reached + (passed * element("speed").value * pace) / PACE_SECONDS);
  // Without motion, the picture goes from step to step.
  now = still.matches ? moments[lastMoment(reached)] : reached;
  show();
  if (now < makespan) nextFrame = requestAnimationFrame(tick);
  else play(false);
}

/** Index of the last moment that is not after a time. */
function lastMoment(time) {
  let low = 0,
    high = moments.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (moments[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function step(direction) {
  play(false);
  const last = lastMoment(now);
  const target = direction > 0 ? last + 1 : moments[last] === now ? last - 1 : last;
  setTime(moments[Math.max(0, Math.min(moments.length - 1, target))]);
}

/** Reserve the height of the longest of some sentences, so that nothing below jumps. */
function reserveCaption() {
  const caption = element("caption"),
    every = Math.ceil(moments.length / 300);
  const times = moments.filter((_, index) => index % every === 0);
  const sentences = times.map((time) =>
    sentence(
      stages.map((stage) => stageAt(stage, time)),
      time,
    ),
  );
  caption.style.minHeight = "";
  caption.textContent = sentences.reduce((longest, text) => (text.length > longest.length ? text : longest), "");
  caption.style.minHeight = `${caption.offsetHeight}px`;
}

function layOut() {
  reserveLines();
  reserveCaption();
  show();
}

const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16, 32, 64];

function changeSpeed(direction) {
  const choice = element("speed");
  choice.selectedIndex = Math.max(0, Math.min(SPEEDS.length - 1, choice.selectedIndex + direction));
}

const KEYS = {
  ArrowLeft: () => step(-1),
  ArrowRight: () => step(1),
  Home: () => {
    play(false);
    setTime(0);
  },
  End: () => {
    play(false);
    setTime(makespan);
  },
  "+": () => changeSpeed(1),
  "-": () => changeSpeed(-1),
  " ": () => play(!playing),
};

function onKey(event) {
  const target = event.target,
    action = KEYS[event.key];
  if (!action || event.ctrlKey || event.altKey || event.metaKey) return;
  // Choices use these keys themselves, and so do stages that are scrolled, and buttons with the space bar.
  if (target.matches("select") || (target === pipeline && pipeline.scrollWidth > pipeline.clientWidth)) return;
  if (event.key === " " && target.matches("button, input[type=checkbox], summary")) return;
  event.preventDefault();
  action();
}

function buildControls() {
  element("time").max = makespan;
  element("zoom").checked = ((chart.clientWidth - 70) / makespan) * pace < LEAST_PIXELS;
  element("speed").append(...SPEEDS.map((speed) => new Option(`${speed} ×`, speed, speed === 1, speed === 1)));
  const labels = new Set(
    rows.flatMap((row) => row.boxes.filter((box) => box.kind.computes).map((box) => box.label.replace(/[a-z]+$/, ""))),
  );
  labels.delete("");
  element("follow").append(
    ...[...labels].slice(0, 1000).map((label) => new Option(`${data.unitName} ${label}`, label)),
  );
  for (const [id, action] of [
    ["start", KEYS.Home],
    ["end", KEYS.End],
    ["back", KEYS.ArrowLeft],
    ["step", KEYS.ArrowRight],
    ["play", KEYS[" "]],
  ])
    element(id).addEventListener("click", action);
  element("time").addEventListener("input", (event) => setTime(+event.target.value));
  element("follow").addEventListener("change", (event) => {
    followed = event.target.value;
    show();
  });
  for (const id of ["future", "zoom"]) element(id).addEventListener("change", show);
  element("table").addEventListener("toggle", fillTable, { once: true });
  document.addEventListener("keydown", onKey);
  chart.addEventListener("pointerdown", (event) => {
    chart.setPointerCapture(event.pointerId);
    dragging = true;
    setTime(under(event).time);
  });
  for (const end of ["pointerup", "pointercancel"])
    chart.addEventListener(end, () => {
      dragging = false;
      show();
    });
  chart.addEventListener("pointermove", (event) => {
    const { time, row } = under(event),
      box = row && row.boxes[firstAfter(row.boxes, time)];
    if (dragging) setTime(time);
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
