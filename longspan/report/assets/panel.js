// One set of axes with its marks, or a grid of images, as an SVG of a given width.
"use strict";

const ROW = 26, NARROW = 560;

// Returns the drawing and the spots that a pointer can find.
function panelOf(view, marks, width, height, { context = [], quietAxes = false } = {}) {
  const rows = view.y.rows;
  const narrow = width < NARROW;
  const above = rows && narrow;  // the name of a row stands above it where there is no room beside it
  const all = [...marks, ...context];
  const sizes = (rows ?? []).map((name, row) => ROW * (view.y.heights?.[row] ?? 1));
  const tops = sizes.reduce((ends, size) => [...ends, ends.at(-1) + (above ? 20 : 0) + size], [0]);
  const marked = marks.some((mark) => mark.kind === "reference" && mark.axis === "x");
  const title = quietAxes ? [] : wrapped(view.x.label ?? "", width - 40);
  const box = { left: 12, right: width - 16, top: rows ? (view.y.label || marked ? 26 : 10) : quietAxes ? 8 : 30, bottom: 0 };
  if (rows && !above) box.left = Math.ceil(Math.max(...rows.map((name) => wordWidth(name)), 20)) + 18;
  if (rows) height = box.top + tops.at(-1) + 32 + 16 * title.length;
  box.bottom = height - 26 - 16 * title.length - (title.length ? 2 : 0);
  const y = rows
    ? { at: (row) => box.top + tops[Math.round(row) + 1] - sizes[Math.round(row)] * (0.5 - (row - Math.round(row))), low: 0, high: rows.length }
    : scaleOf(view.y, valuesOn("y", all), box.bottom, box.top, 0.06);
  const yTicks = rows ? [] : ticksOf(view.y, y, box.bottom - box.top, false);
  if (!rows) box.left = Math.ceil(Math.max(...yTicks.map(([, text]) => wordWidth(text)), 12)) + 16;
  const labelled = marks.some((mark) => mark.labels) && !narrow;
  const texts = marks.filter((mark) => mark.kind === "text").map((mark) => wordWidth(mark.text));
  const x = scaleOf(view.x, valuesOn("x", all), box.left + 8, box.right - 8 - Math.max(0, ...texts), labelled ? 0.09 : 0.03);
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", class: "chart" });
  const ground = make("g", { class: "grid" }, svg);
  for (const [value, text] of ticksOf(view.x, x, box.right - box.left, true)) {
    const at = x.at(value), half = wordWidth(text) / 2;
    make("path", { d: `M${at.toFixed(1)} ${box.top}V${box.bottom}` }, ground);
    const middle = Math.min(Math.max(at, half + 2), width - half - 2);
    make("text", { x: middle, y: box.bottom + 17, "text-anchor": "middle", class: "x-tick" }, ground, text);
  }
  for (const [value, text] of yTicks) {
    const at = y.at(value);
    make("path", { d: `M${box.left} ${at.toFixed(1)}H${box.right}` }, ground);
    make("text", { x: box.left - 8, y: at + 4, "text-anchor": "end", class: "y-tick" }, ground, text);
  }
  (rows ?? []).forEach((name, row) => {
    const at = y.at(row);
    make("path", { d: `M${box.left} ${at}H${box.right}`, class: "row" }, ground);
    const place = above ? { x: 12, y: at - sizes[row] / 2 - 3 } : { x: box.left - 12, y: at + 4, "text-anchor": "end" };
    make("text", { ...place, class: "row-name" }, ground, above ? fitting(name, width - 24) : name);
  });
  if (!quietAxes) {
    title.forEach((line, index) => make("text", { x: (box.left + box.right) / 2, y: height - 4 - 16 * (title.length - 1 - index), "text-anchor": "middle", class: "title" }, svg, line));
    if (view.y.label) make("text", { x: 4, y: 15, class: "title" }, svg, view.y.label);
  }
  const spots = [], labels = [];
  for (const mark of context) DRAW[mark.kind]({ ...mark, colour: "--line", hover: null, width: 1.2, symbol: "" }, { x, y, box, spots, labels, layer: make("g", { class: "context" }, svg) });
  const order = (mark) => ({ reference: 0, band: 1, bar: 2, line: 3 })[mark.kind] ?? 4;
  for (const mark of [...marks].sort((a, b) => order(a) - order(b))) {
    const layer = make("g", {}, svg);
    if (groupOf(mark)) layer.dataset.group = groupOf(mark);
    DRAW[mark.kind](mark, { x, y, box, layer, spots, labels });
  }
  if (labelled) writeLabels(labels, [box.left, box.top - 12, width - 4, box.bottom]);
  return { svg, spots };
}

// As much of a text as there is room for.
function fitting(text, room) {
  if (wordWidth(text) <= room) return text;
  let end = text.length;
  while (end > 1 && wordWidth(`${text.slice(0, end)}…`) > room) end -= 1;
  return `${text.slice(0, end).trimEnd()}…`;
}

function writeLabels(labels, frame) {
  const places = placeLabels(labels.map((label) => ({ ...label, width: wordWidth(label.text, 12) + 2 })), frame);
  labels.forEach((label, index) => {
    const place = places[index];
    if (place.far) make("path", { d: `M${label.x} ${label.y}L${place.x} ${place.y}`, stroke: "var(--line-strong)", "stroke-width": 0.8 }, label.layer);
    make("text", { x: place.x, y: place.y + 4, "text-anchor": "middle", class: "point-name halo" }, label.layer, label.text);
  });
}

// Images: each in its own square, names of rows and columns beside a single one, and a bar of colours.
function imagesOf(view, images, width, height) {
  const columns = 1 + Math.max(...images.map((image) => image.column ?? 0));
  const rows = 1 + Math.max(...images.map((image) => image.row ?? 0));
  const single = images.length === 1;
  const [yTicks, xTicks] = [view.y, view.x].map((axis) => (single ? axis.ticks ?? [] : []));
  const left = single ? Math.min(Math.max(0, ...yTicks.map(([, text]) => wordWidth(text))) + 14, width * 0.4) : 4;
  const under = single ? Math.max(0, ...xTicks.map(([, text]) => wordWidth(text))) + 30 : 8;
  const top = images[0].bar ? 46 : 34;
  const shape = images[0].values.length / images[0].values[0].length;
  const cell = Math.min((width - left - 12) / columns, 520 / columns > 90 ? 520 / (single ? 1 : columns / 2) : 90, single ? width : 190);
  const down = cell * shape + (single ? 0 : 18);
  const svg = make("svg", { width, height: top + down * rows + under, viewBox: `0 0 ${width} ${top + down * rows + under}`, "aria-hidden": "true", class: "chart" });
  const spots = [];
  if (!single && view.y.label) make("text", { x: 4, y: 14, class: "title" }, svg, view.y.label);
  for (const image of images) {
    const [x, y] = [left + cell * (image.column ?? 0), top + down * (image.row ?? 0)];
    const layer = make("g", { class: "image" }, svg);
    const size = cell - (single ? 0 : 6);
    make("image", { x, y, width: size, height: size * shape, href: pixels(image), preserveAspectRatio: "none", style: "image-rendering: pixelated" }, layer);
    if (image.title) make("text", { x: x + size / 2, y: y - 5, "text-anchor": "middle", class: "note" }, layer, image.title);
    const [wide, high] = [size / image.values[0].length, (size * shape) / image.values.length];
    (image.cells ?? []).forEach((line, row) => line.forEach((text, column) => {
      if (!text) return;
      const value = image.values[row][column], middle = [x + wide * (column + 0.5), y + high * (row + 0.5)];
      const light = value < (image.low + image.high) / 2;
      const lines = text.split("\n"), font = Math.min(11, wide / 3.2);
      if (font >= 7) lines.forEach((word, index) => make("text", { x: middle[0], y: middle[1] + 4 + (index - (lines.length - 1) / 2) * (font + 1), "text-anchor": "middle", style: `font-size: ${font}px; fill: ${light ? "#fff" : "#111"}` }, layer, word));
      spots.push({ x: middle[0], y: middle[1], at: column, mark: image, text: text.replace("\n", " ") });
    }));
    if (single) {
      for (const [value, text] of yTicks) make("text", { x: x - 8, y: y + high * (value + 0.5) + 4, "text-anchor": "end", class: "y-tick" }, svg, text);
      for (const [value, text] of xTicks) {
        const at = [x + wide * (value + 0.5) + 4, y + size * shape + 8];
        make("text", { x: at[0], y: at[1], "text-anchor": "end", transform: `rotate(-90 ${at[0]} ${at[1]})`, class: "x-tick" }, svg, text);
      }
    }
  }
  if (images[0].bar) colourBar(svg, images[0], left);
  return { svg, spots };
}

function colourBar(svg, image, left) {
  const count = 40, wide = 160;
  for (let i = 0; i < count; i += 1) {
    make("rect", { x: left + (wide * i) / count, y: 6, width: wide / count + 0.5, height: 9, fill: `rgb(${shade(image.colours, i / (count - 1))})` }, svg);
  }
  const word = (value) => value.toLocaleString("en", { maximumSignificantDigits: 2 });
  make("text", { x: left, y: 29, class: "note" }, svg, word(image.low));
  make("text", { x: left + wide, y: 29, "text-anchor": "end", class: "note" }, svg, word(image.high));
  make("text", { x: left + wide / 2, y: 29, "text-anchor": "middle", class: "note" }, svg, image.bar);
}
