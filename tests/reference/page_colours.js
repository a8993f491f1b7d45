// Of every text that a page shows, its colour and the one behind it, with the beginning of a text.
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const paint = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue] = canvas.getImageData(0, 0, 1, 1).data;
    return "#" + ((red << 16) | (green << 8) | blue).toString(16).padStart(6, "0");
  };
  const found = {};
  for (const element of document.querySelectorAll("body *:not(svg *)")) {
    const shown = element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
    if (!shown || ![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    const styles = [];
    for (let at = element; at; at = at.parentElement) styles.unshift(getComputedStyle(at));
    paint("white");
    const behind = styles.map((style) => paint(style.backgroundColor)).at(-1);
    canvas.globalAlpha = styles.reduce((product, style) => product * style.opacity, 1);
    found[[paint(styles.at(-1).color), behind]] = element.textContent.trim().slice(0, 40);
    canvas.globalAlpha = 1;
  }
  return found;
}
