// The Gantt chart, filled in up to `now`.

const chart = element("chart");
const longestLabel = Math.max(0, ...rows.flatMap((row) => row.boxes.slice(-9).map((box) => box.label.length)));
const CLOSE_PIXELS = 14 + 7 * longestLabel; // of a short computation in a close-up
const AXIS = 24; // height of the time axis
const LEAST_PIXELS = 5; // below, the chart begins as a close-up
let frame = { left: 0, scale: 1, from: 0 }; // from time to pixels
let dragging = false; // with a pointer over the chart, which then stays where it is

/** The part of the time axis that is seen: all of it, or in a close-up what is around `now`. */
function chooseFrame(width, left) {
  const fit = (width - left - 2) / makespan,
    close = Math.max(fit, CLOSE_PIXELS / pace);
  element("close-up").hidden = close <= fit;
  const scale = element("zoom").checked ? close : fit;
  const span = (width - left - 2) / scale;
  return { left, scale, from: dragging ? frame.from : Math.max(0, Math.min(now - span / 2, makespan - span)) };
}

/** Colours of the page, and the pattern of the bubble; made once for light and for dark. */
function chartStyle(pen) {
  const colours = getComputedStyle(document.documentElement);
  const style = Object.fromEntries(
    ["ink", "muted", "rule", "page", "idle", "accent"].map((name) => [
      name,
      colours.getPropertyValue(`--${name}`).trim(),
    ]),
  );
  const tile = Object.assign(document.createElement("canvas"), { width: 8, height: 8 }),
    brush = tile.getContext("2d");
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
  const width = chart.clientWidth,
    pixels = window.devicePixelRatio || 1;
  const height = rows.length > 24 ? 14 : rows.length > 10 ? 22 : 32,
    pitch = height + (height > 20 ? 6 : 3);
  const bottom = rows.length * pitch,
    total = bottom + AXIS;
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
  const span = (width - frame.left) / frame.scale,
    least = span / Math.max(2, (width - frame.left) / 80);
  const power = 10 ** Math.floor(Math.log10(least)),
    step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= least * 0.999);
  for (let tick = Math.ceil(frame.from / step) * step; tick <= Math.min(makespan, frame.from + span); tick += step) {
    const x = frame.left + (tick - frame.from) * frame.scale,
      text = shown(tick),
      half = pen.measureText(text).width / 2 + 1;
    pen.fillStyle = style.rule;
    pen.fillRect(x, 0, 1, bottom + 2);
    pen.fillStyle = style.muted;
    pen.fillText(text, Math.min(Math.max(x, frame.left + half), width - half), bottom + 13);
  }
}

function drawRow(row, y, height, width) {
  const until = frame.from + (width - frame.left) / frame.scale,
    x = (time) => frame.left + (time - frame.from) * frame.scale;
  const hasFuture = element("future").checked;
  pen.fillStyle = style.gap;
  pen.fillRect(frame.left, y, (Math.min(now, until) - frame.from) * frame.scale, height);
  for (
    let index = firstAfter(row.boxes, frame.from);
    index < row.boxes.length && row.boxes[index].start < until;
    index++
  ) {
    const box = row.boxes[index];
    if (box.start > now && !hasFuture) break;
    drawBox(box, x(box.start), x(box.end) - x(box.start), y, height, hasFuture);
  }
}

/** A box: full up to `now`, faint beyond; below its number a strip with the colour of the version. */
function drawBox(box, x, width, y, height, hasFuture) {
  const inner = Math.max(width - (width > 4 ? 1 : 0), 0.5),
    past = Math.max(0, Math.min(1, (now - box.start) / (box.end - box.start))) * inner;
  const strip = box.version && height > 20 ? Math.round(height * 0.25) : 0,
    dim = isDim(box.label) ? 0.22 : 1;
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
  if (
    box.label &&
    height > 12 &&
    box.kind.computes &&
    (isPast || hasFuture) &&
    pen.measureText(box.label).width + 2 <= inner
  ) {
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
  const row = rows[Math.floor(((event.clientY - area.top) / (chart.clientHeight - AXIS)) * rows.length)];
  return { time: Math.max(0, Math.min(makespan, time)), row };
}

function describe(box) {
  const weights = box.version ? `, weights ${box.version}` : "";
  return `${box.kind.name} ${box.label}, ${shown(box.start)} to ${shown(box.end)}${weights}`;
}
