// What happens at a time, in words.

const plural = (count, noun) =>
  `${count} ${noun}${count === 1 ? "" : noun.endsWith("s") || noun.endsWith("ch") ? "es" : "s"}`;
const shown = (time) => `${+time.toPrecision(4)}`;
const percent = (share) => `${(100 * share).toFixed(1)} %`;

const hasVersions = stages.some((stage) => stage.weights.length > 2);

/** The weights that a computation of a stage reads, as a part of a sentence; not said where there is one version. */
function reading(box, current, stage) {
  if (!box.version || !hasVersions) return "";
  const [version, ahead] = box.version.split("+"),
    behind = current ? numberOf(current.label) - numberOf(version) : 0;
  if (ahead) return ` with ${version} predicted ${plural(+ahead, "update")} ahead`;
  if (behind > 0) return ` with the stored ${version}, ${plural(behind, "update")} behind`;
  const earlier = box.kind.name === "forward" ? box.version : stage.forwards.get(box.label) || box.version;
  if (earlier === box.version) return ` with ${version}`;
  const [base, more] = earlier.split("+");
  if (numberOf(base) + +(more || 0) === numberOf(version))
    return ` with ${version}, which its forward pass predicted as ${earlier}`;
  return ` with ${version}, though its forward pass read ${earlier}`;
}

const DEEDS = { send: "sends", reduce: "adds up gradients", update: "updates its weights", other: "does other work" };

/** What a computation is about; one product of weight gradients is about all microbatches of a minibatch. */
function named({ label }, noun) {
  if (!label) return "all microbatches";
  const isWhole = data.numbering.includes(".") && !label.includes(".");
  return isWhole ? `all of minibatch ${label}` : `${noun}${label}`;
}

/** What a stage does, with the noun for the number where it is not clear from an earlier clause. */
function deed(box, current, stage, noun) {
  const what = named(box, noun);
  const weights = reading(box, current, stage);
  switch (box.kind.name) {
    case "forward":
      return `takes ${what} forward${weights}`;
    case "backward":
      return `takes ${what} back${weights}`;
    case "recompute":
      return `computes ${what} again${weights}`;
    case "input gradient":
    case "weight gradient":
      return `computes the ${box.kind.name} of ${what}${weights}`;
    default:
      return DEEDS[box.kind.name];
  }
}

/** One sentence about what stages do at a time. */
function sentence(states, time) {
  if (time >= makespan) {
    return `All is done at time ${shown(time)}: the stages computed nothing for ${percent(bubbleShare(time))} of it.`;
  }
  const filling = states.some((state) => !state.started),
    draining = states.some((state) => !state.next);
  const phase = filling
    ? "The pipeline fills"
    : draining
      ? "The pipeline drains"
      : states.every((state) => state.box)
        ? "Every stage has work"
        : "Some stages wait";
  return `${phase}: ${states.length > 8 ? counts(states) : clauses(states)}${births(states, time)}.`;
}

/** What every stage does; neighbours that do nothing are named together. */
function clauses(states) {
  const parts = [];
  let noun = `${data.unitName} `;
  states.forEach(({ box, next, barrier, current }, number) => {
    const text = box
        ? deed(box, current, stages[number], noun)
        : barrier
          ? "waits at a barrier"
          : next
            ? "waits"
            : "has finished",
      last = parts[parts.length - 1];
    if (box && box.kind.computes) noun = "";
    if (last && last.text === text && !box) last.to = number;
    else parts.push({ from: number, to: number, text });
  });
  const many = { waits: "wait", "waits at a barrier": "wait at a barrier", "has finished": "have finished" };
  return parts
    .map(({ from, to, text }) =>
      from === to ? `stage ${from} ${text}` : `stages ${from} ${to > from + 1 ? "to" : "and"} ${to} ${many[text]}`,
    )
    .join("; ");
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
function births(states, time) {
  const parts = states.flatMap(({ current }, number) =>
    current && time > 0 && current.start === time ? [`stage ${number} now has ${current.label}`] : [],
  );
  if (parts.length > 8) return `; ${plural(parts.length, "stage")} have new weights`;
  return parts.length ? `; ${parts.join(", ")}` : "";
}
