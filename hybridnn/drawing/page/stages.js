// The stages, what they hold, and the messages between them.

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
  if (last > 1 && messages.some((message) => Math.abs(message.sender - message.receiver) > 1))
    pipeline.append(wire("around", last, 0));
}

/** Two lanes between stages: activations from `before` to `after`, gradients back. */
function wire(className, before, after) {
  const root = make("div", className);
  for (const [name, from, to, gradients] of [
    ["activations", before, after, 0],
    ["gradients", after, before, 1],
  ]) {
    const lane = make("div", `lane ${name}`);
    lanes.set(`${from} ${to} ${gradients}`, lane);
    root.append(lane);
  }
  root.setAttribute("aria-hidden", "true");
  return root;
}

/** Most items that a list holds at a time. */
function peak(items) {
  const changes = items
    .flatMap((item) => [
      [item.start, 1],
      [item.end, -1],
    ])
    .sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let held = 0,
    most = 0;
  for (const [, change] of changes) most = Math.max(most, (held += change));
  return most;
}

function buildCard(stage, number) {
  const root = make("article", "stage"),
    tile = make("div", "tile"),
    done = make("span", "done");
  const parts = { what: make("span", "what"), number: make("span", "number"), reads: make("span", "reads") };
  tile.append(...Object.values(parts), done);
  const title = make("h2", "", number);
  title.prepend(make("span", "", "stage "));
  root.append(title, tile);
  root.dataset.stage = number;
  const card = { root, tile, done, ...parts, key: "" };
  for (const name of STORES) {
    if (!stage[name].length) continue;
    const store = make("div", "store"),
      chips = make("div", "chips");
    chips.dataset.peak = peak(stage[name]);
    store.append(make("b", "", name), chips);
    root.append(store);
    card[name] = chips;
  }
  return card;
}

/** Reserve the lines that the chips of any time need, so that nothing jumps. */
function reserveLines() {
  const isCompact = pipeline.classList.toggle("compact", cards[0].root.offsetWidth < COMPACT);
  for (const name of STORES) {
    const lists = cards.map((card) => card[name]).filter(Boolean);
    if (!lists.length) continue;
    const longest = stages.flatMap((stage) => stage[name]).reduce((most, item) => Math.max(most, item.label.length), 0);
    const columns = Math.max(
      1,
      Math.floor(
        (lists[0].clientWidth + 4) / (isCompact ? Math.max(25, 12 + 6 * longest) : Math.max(28, 18 + 7 * longest)),
      ),
    );
    const lines = Math.min(MOST_LINES, Math.ceil(Math.max(...lists.map((list) => list.dataset.peak)) / columns));
    for (const list of lists) {
      list.style.setProperty("--lines", lines);
      list.dataset.most = lines * columns;
    }
  }
}

function showStage(card, state) {
  const { box, current } = state,
    lists = STORES.filter((name) => card[name]);
  if (box) card.done.style.transform = `scaleX(${(now - box.start) / (box.end - box.start)})`;
  const key = JSON.stringify([state, followed, dark.matches, lists.map((name) => card[name].dataset.most)]);
  if (key === card.key) return;
  card.key = key;
  Object.assign(card.root.dataset, {
    kind: box ? box.kind.name : "",
    label: box ? box.label : "",
    version: box ? box.version : "",
    current: current ? current.label : "",
  });
  showTile(card, state);
  for (const name of lists) {
    card.root.dataset[name] = state[name].join(" ");
    showChips(card[name], state[name], (label) =>
      name === "weights" ? weightChip(label, current) : make("span", `chip kept${isDim(label) ? " dim" : ""}`, label),
    );
  }
}

function showTile({ tile, what, number, reads, done }, { box, next, barrier }) {
  tile.className = box ? "tile" : "tile idle";
  tile.classList.toggle("dim", box !== null && isDim(box.label));
  const isBack = box && (box.kind.name === "backward" || box.kind.name === "input gradient");
  tile.dataset.shape =
    box && (box.kind.name === "forward" || box.kind.name === "recompute") ? "right" : isBack ? "left" : "";
  tile.style.cssText = box ? `--fill:${fillOf(box.kind)};--on-fill:${box.kind.ink}` : "";
  done.hidden = !box;
  what.textContent = box ? box.kind.name : barrier ? "waits at" : next ? "waits for" : "has finished";
  const missing = barrier ? "a barrier" : next ? `${next.kind.letter}${next.label}` : "";
  number.textContent = box ? box.label || (box.kind.computes ? "all" : "") : missing;
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
    chip.setAttribute("aria-current", "true");
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
  const waiting = new Map(),
    seen = new Set();
  for (const message of messages) {
    // One that takes no time, or is used at once, is seen around the time at which it is sent.
    const early = Math.max(0, FLIGHT - (message.use - message.start)) / 2;
    const leave = message.start - early,
      arrive = Math.min(Math.max(message.arrival, leave + FLIGHT), message.use + early);
    if (leave > now) {
      if (message.start > now + FLIGHT) break;
      continue;
    }
    if (now >= Math.max(message.use, arrive)) continue;
    const lane = lanes.get(`${message.sender} ${message.receiver} ${message.gradients}`);
    if (!lane) continue;
    seen.add(message);
    const share = arrive > leave ? Math.min(1, (now - leave) / (arrive - leave)) : 1;
    const place = share < 1 ? 0 : waiting.get(lane) || 0;
    if (share >= 1) waiting.set(lane, place + 1);
    placeToken(tokenOf(message, lane), message, share, place);
  }
  for (const [message, token] of tokens)
    if (!seen.has(message)) {
      token.remove();
      tokens.delete(message);
    }
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
  const kind = message.gradients ? BACKWARD : FORWARD,
    smooth = share * share * (3 - 2 * share);
  const way = 100 * (message.gradients ? 1 - smooth : smooth),
    back = (message.gradients ? 8 : -8) * place;
  token.style.cssText = `left:calc(${way}% + ${back}px);--fill:${fillOf(kind)};--on-fill:${kind.ink}`;
  token.classList.toggle("dim", isDim(message.label));
}
