// Figures, legend and table below the chart.

const IDLE = "idle so far";

function showFigures(states) {
  const most = (name) => Math.max(...states.map((state) => state[name].length));
  const sent = messages.filter((message) => message.start <= now).length;
  const facts = [[IDLE, percent(bubbleShare(now)), "of the stages' time"]];
  if (stages.some((stage) => stage.weights.length)) {
    const applied = Math.min(...states.map((state) => (state.current ? numberOf(state.current.label) : 0)));
    facts.push([
      "updates on every stage",
      applied,
      `of ${numberOf(stages[0].weights[stages[0].weights.length - 1].label)}`,
    ]);
    facts.push(["weight versions held", most("weights"), "by the stage with most"]);
    facts.push(["activations held", most("activations"), "by the stage with most"]);
  }
  if (messages.length) facts.push(["messages sent", sent, `of ${messages.length}`]);
  const text = JSON.stringify(facts);
  if (element("figures").dataset.key === text) return;
  element("figures").dataset.key = text;
  element("figures").replaceChildren(
    ...facts.map(([name, value, note]) => {
      const root = make("div"),
        amount = make("dd", "", `${value} `);
      amount.append(make("small", "", note));
      root.append(make("dt", "", name), amount);
      return root;
    }),
  );
}

function showLegend() {
  const used = new Set(rows.flatMap((row) => row.boxes.map((box) => box.kind)));
  const entries = kinds
    .filter((kind) => used.has(kind))
    .map((kind) => [`background:${fillOf(kind)}`, `${kind.name} (${kind.letter})`, ""]);
  entries.push(["", IDLE, "gap"]);
  if (data.versions) {
    const bands = VERSIONS.map(([fill], index) => `${fill} ${16.7 * index}% ${16.7 * (index + 1)}%`);
    entries.push([`background:linear-gradient(90deg,${bands});width:30px`, `${data.versions}; ringed: current`, ""]);
  }
  element("legend").replaceChildren(
    ...entries.map(([style, text, className]) => {
      const root = make("span"),
        swatch = make("i", className);
      swatch.style.cssText = style;
      root.append(swatch, text);
      return root;
    }),
    make("span", "", data.numbering),
  );
}

/** The table of all computations, made when it is opened. */
function fillTable() {
  const table = make("table"),
    head = table.createTHead().insertRow();
  for (const title of ["stage", "start", "end", "computation", data.unitName, "weights"])
    head.append(Object.assign(make("th", "", title), { scope: "col" }));
  const body = table.createTBody();
  const all = rows.flatMap((row) => row.boxes.map((box) => ({ row, ...box }))).sort((a, b) => a.start - b.start);
  for (const { row, start, end, kind, label, version } of all) {
    const line = body.insertRow();
    for (const text of [row.label, shown(start), shown(end), kind.name, label, version])
      line.append(make("td", "", text));
  }
  element("table").querySelector("div").replaceChildren(table);
}
