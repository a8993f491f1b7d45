// Colours of weight versions and of kinds of computations.

// Neighbouring versions differ in lightness too, and none has the blue and green of the passes.
const VERSIONS = [
  ["#f2c53d", "#2a2000"],
  ["#7b4fb3", "#ffffff"],
  ["#f59a4c", "#2b1400"],
  ["#a82c63", "#ffffff"],
  ["#f5b3cf", "#3a0a1f"],
  ["#86502a", "#ffffff"],
];
const versionColours = (version) => VERSIONS[numberOf(version) % VERSIONS.length];

/** The colours of a version; stripes where it is a prediction. */
function versionStyle(version) {
  const [base, ahead] = version.split("+"),
    [fill, ink] = versionColours(base);
  if (!ahead) return `background:${fill};color:${ink}`;
  const [goal] = versionColours(`v${numberOf(base) + +ahead}`);
  const stripes = `repeating-linear-gradient(135deg,${goal} 0 4px,${fill} 4px 7px)`;
  return `background:linear-gradient(${fill},${fill}) content-box,${stripes};padding:3px 8px;color:${ink}`;
}

/** The fill of a kind; dark ones are lighter on a dark page. */
function fillOf(kind) {
  const channels = [1, 3, 5].map((at) => parseInt(kind.fill.slice(at, at + 2), 16));
  if (!dark.matches || channels.reduce((sum, value) => sum + value) > 260) return kind.fill;
  return `rgb(${channels.map((value) => Math.round(value + 0.16 * (255 - value))).join(" ")})`;
}

const kindNamed = (name) => kinds.find((kind) => kind.name === name);
const FORWARD = kindNamed("forward");
const BACKWARD = kindNamed("backward");
