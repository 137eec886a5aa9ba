// Marks as SVG. Colours are variables of the style sheet, so that nothing is drawn again when the theme changes.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const DASHES = { dash: "6 4", dot: "1.5 3.5", dashdot: "7 3 1.5 3" };
const SYMBOLS = {  // around 0, within a circle of radius 1
  circle: "M-.9 0a.9 .9 0 1 0 1.8 0a.9 .9 0 1 0 -1.8 0z", diamond: "M0-1.1L1.1 0 0 1.1-1.1 0z", square: "M-.8-.8H.8V.8H-.8z",
  "triangle-up": "M0-1L1 .8H-1z", "triangle-left": "M-1 0L.8-1V1z", "triangle-right": "M1 0L-.8-1V1z",
  cross: "M-.3-1H.3V-.3H1V.3H.3V1H-.3V.3H-1V-.3H-.3z",
  star: "M0-1.15L.28-.36 1.1-.34 .45 .16 .68 .95 0 .48-.68 .95-.45 .16-1.1-.34-.28-.36z",
  "line-ns-open": "M-.12-1H.12V1H-.12z",
};
const hue = (name) => (/^--[a-z0-9-]+$/.test(name ?? "") ? `var(${name})` : "var(--line-strong)");

function make(tag, attributes = {}, parent = null, text = null) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (["fill", "stroke"].includes(name) && String(value).startsWith("var(")) made.style[name] = value;
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  if (text !== null) made.textContent = text;
  parent?.append(made);
  return made;
}

const groupOf = (mark) => mark.group ?? mark.name ?? "";

function symbolAt(parent, mark, x, y, extra = {}) {
  const size = (mark.size ?? 6) / 2;
  const path = SYMBOLS[mark.symbol] ?? SYMBOLS.circle;
  return make("path", { d: path, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)}) scale(${size})`, fill: hue(mark.colour), ...extra }, parent);
}

const DRAW = {
  line(mark, { x, y, layer, spots }) {
    let path = "", pen = false;
    mark.x.forEach((value, index) => {
      const other = mark.y[index];
      if (value === null || other === null || (x.log && value <= 0) || (y.log && other <= 0)) { pen = false; return; }
      const [px, py] = [x.at(value), y.at(other)];
      path += `${pen ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`;
      pen = true;
      if (mark.symbol) symbolAt(layer, mark, px, py);
      if (mark.hover?.[index]) spots.push({ x: px, y: py, at: value, mark, text: mark.hover[index] });
    });
    layer.prepend(make("path", {
      d: path, fill: "none", stroke: hue(mark.colour), "stroke-width": mark.width ?? 2, "stroke-linejoin": "round",
      "stroke-linecap": "round", "stroke-dasharray": DASHES[mark.dash], class: "curve",
    }));
  },
  points(mark, { x, y, layer, spots, labels }) {
    mark.x.forEach((value, index) => {
      const other = mark.y[index];
      if (value === null || other === null) return;
      const [px, py] = [x.at(value), y.at(other)];
      if (mark.interval) {
        make("path", { d: `M${px} ${y.at(mark.interval[0])}V${y.at(mark.interval[1])}`, stroke: hue(mark.colour), "stroke-width": 1.3 }, layer);
      }
      const halo = mark.symbol === "line-ns-open" || mark.outline;
      symbolAt(layer, { size: 10, ...mark }, px, py, halo ? { stroke: "var(--surface)", "stroke-width": 1.5, "vector-effect": "non-scaling-stroke", "paint-order": "stroke" } : {});
      if (mark.hover?.[index]) spots.push({ x: px, y: py, at: value, mark, text: mark.hover[index] });
      if (mark.labels?.[index]) labels.push({ x: px, y: py, radius: (mark.size ?? 10) / 2, text: mark.labels[index], layer });
    });
  },
  band(mark, { x, y, layer }) {
    const there = mark.x.map((value, index) => `${x.at(value).toFixed(1)} ${y.at(mark.high[index]).toFixed(1)}`);
    const back = mark.x.map((value, index) => `${x.at(value).toFixed(1)} ${y.at(mark.low[index]).toFixed(1)}`).reverse();
    layer.prepend(make("path", { d: `M${[...there, ...back].join("L")}z`, fill: hue(mark.colour), opacity: 0.14 }));
  },
  bar(mark, { x, y, layer, spots }) {
    const [from, to, middle] = [x.at(0), x.at(mark.x), y.at(mark.y)];
    make("rect", { x: Math.min(from, to), y: middle - 8, width: Math.abs(to - from), height: 16, rx: 2, fill: hue(mark.colour) }, layer);
    if (mark.spread) {
      const ends = [x.at(mark.x - mark.spread), x.at(mark.x + mark.spread)];
      make("path", { d: `M${ends[0]} ${middle}H${ends[1]}`, stroke: "var(--quiet)", "stroke-width": 1.4 }, layer);
    }
    if (mark.hover) spots.push({ x: to, y: middle, at: mark.y, mark, text: mark.hover });
  },
  text(mark, { x, y, layer }) {
    make("text", { x: x.at(mark.x) + 6, y: y.at(mark.y) + 4, fill: "var(--quiet)" }, layer, mark.text);
  },
  reference(mark, { x, y, layer, box }) {
    const upright = mark.axis === "x";
    const at = upright ? x.at(mark.value) : y.at(mark.value);
    const d = upright ? `M${at} ${box.top}V${box.bottom}` : `M${box.left} ${at}H${box.right}`;
    make("path", { d, stroke: "var(--quiet)", "stroke-dasharray": "2 4", fill: "none" }, layer);
    const wide = wordWidth(mark.label ?? "", 11);
    const middle = Math.min(Math.max(at, box.left + wide / 2), box.right - wide / 2);
    const place = upright ? { x: middle, y: box.top - 6, "text-anchor": "middle" } : { x: box.right, y: at - 5, "text-anchor": "end" };
    make("text", { ...place, class: "note halo" }, layer, mark.label ?? "");
  },
};

// All values that the marks have on one axis.
function valuesOn(side, marks) {
  return marks.flatMap((mark) => {
    if (mark.kind === "reference") return mark.axis === side ? [mark.value] : [];
    if (mark.kind === "band") return side === "x" ? mark.x : [...mark.low, ...mark.high];
    if (mark.kind === "bar") return side === "x" ? [0, mark.x, mark.x + (mark.spread ?? 0)] : [];
    if (side === "y" && mark.interval) return [...mark.y, ...mark.interval];
    return mark[side] ?? [];
  });
}

const STOPS = {
  cividis: [[0, 32, 76], [0, 66, 119], [60, 77, 110], [91, 96, 113], [124, 123, 120], [160, 149, 117], [196, 177, 103], [230, 206, 80], [255, 233, 69]],
  grey: [[0, 0, 0], [255, 255, 255]],
};
function shade(map, share) {
  const stops = STOPS[map] ?? STOPS.grey;
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const [low, rest] = [Math.min(Math.floor(place), stops.length - 2), place - Math.min(Math.floor(place), stops.length - 2)];
  return stops[low].map((part, index) => Math.round(part + (stops[low + 1][index] - part) * rest));
}

function pixels(image) {
  const canvas = document.createElement("canvas");
  [canvas.height, canvas.width] = [image.values.length, image.values[0].length];
  const ink = canvas.getContext("2d"), data = ink.createImageData(canvas.width, canvas.height);
  image.values.flat().forEach((value, index) => {
    if (value === null) return;
    data.data.set([...shade(image.colours, (value - image.low) / (image.high - image.low)), 255], 4 * index);
  });
  ink.putImageData(data, 0, 0);
  return canvas.toDataURL();
}
