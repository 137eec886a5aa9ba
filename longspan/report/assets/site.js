// The behaviour of the report: the theme, sortable tables, figures. Plotly is needed only for the last.
"use strict";

// Theme: the system's preference until the reader chooses; figures are redrawn in the new colours.
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const theme = () => document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");

document.querySelector(".theme").addEventListener("click", () => {
  const chosen = theme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = chosen;
  try { localStorage.setItem("theme", chosen); } catch (error) { console.info("The theme is not remembered here."); }
  drawAll();
});
dark.addEventListener("change", drawAll);

// Tables: a heading sorts its column, each body by itself; empty cells stay last whichever way.
const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

function valueOf(row, column, kind) {
  const cell = row.cells[column];
  const text = cell.dataset.value ?? cell.textContent.trim();
  if (kind === "text") return text || null;
  const number = Number.parseFloat(text);
  return Number.isNaN(number) ? null : number;
}

function sortBy(button) {
  const heading = button.closest("th");
  const table = heading.closest("table");
  const kind = button.dataset.kind;
  const first = kind === "text" || heading.classList.contains("rank") ? "ascending" : "descending";
  const other = first === "ascending" ? "descending" : "ascending";
  const direction = heading.getAttribute("aria-sort") === first ? other : first;
  for (const th of heading.parentElement.cells) th.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", direction);
  const sign = direction === "ascending" ? 1 : -1;
  for (const body of table.tBodies) {
    const bundles = [];  // a row and those below it that are about it
    for (const row of body.rows) {
      if (row.classList.contains("follows")) bundles.at(-1)?.push(row);
      else if (!row.classList.contains("heading")) bundles.push([row]);
    }
    const keyed = bundles.map((rows) => [valueOf(rows[0], heading.cellIndex, kind), rows]);
    keyed.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * (kind === "text" ? collator.compare(a, b) : a - b);
    });
    body.append(...keyed.flatMap(([, rows]) => rows));
  }
}

for (const button of document.querySelectorAll("table.sortable .sort")) {
  button.addEventListener("click", () => sortBy(button));
}

// Figures: views to switch between, colours by the name of a style-sheet variable.
function colour(name) {
  const soft = name.endsWith("-soft");
  const probe = document.createElement("i");
  probe.style.color = `var(${soft ? name.slice(0, -5) : name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return soft ? found.replace(/^rgb\((.*)\)$/, "rgba($1, 0.13)") : found;
}

function resolved(value) {
  if (typeof value === "string") return value.startsWith("--") ? colour(value) : value;
  if (Array.isArray(value)) return value.every((item) => item?.constructor === Object) ? value.map(resolved) : value;
  if (!value || typeof value !== "object") return value;
  const untouched = new Set(["name", "meta", "text"]);  // may come from a card: never the name of a colour
  const entries = Object.entries(value).map(([key, item]) => [key, untouched.has(key) ? item : resolved(item)]);
  return Object.fromEntries(entries);
}

function layoutOf(view, narrow) {
  const [ink, quiet, line] = ["--ink", "--quiet", "--line"].map(colour);
  const family = getComputedStyle(document.body).fontFamily;
  const label = narrow ? view.x.replace(/(.{22,}?) /g, "$1<br>") : view.x;
  const axis = { gridcolor: line, zeroline: false, linecolor: line, tickcolor: line, fixedrange: narrow };
  const layout = {
    font: { family, size: 12.5, color: quiet },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 44, r: narrow ? 14 : 28, t: 34, b: 46 },
    xaxis: { ...axis, automargin: true, title: { text: label, standoff: 10, font: { size: 12.5 } } },
    yaxis: { ...axis },
    hoverlabel: { bgcolor: colour("--surface"), bordercolor: line, font: { family, color: ink, size: 12 } },
    showlegend: false,
    annotations: [{
      xref: "paper", yref: "paper", x: 0, y: 1, xanchor: "left", yanchor: "bottom", xshift: -34, yshift: 10,
      showarrow: false, text: view.y, font: { size: 12.5, color: quiet },
    }],
  };
  if (view.height) layout.height = view.height;
  return merged(layout, resolved(view.layout));
}

// A view's own layout overrides the common one; lists are concatenated.
function merged(common, own) {
  if (Array.isArray(common) && Array.isArray(own)) return [...common, ...own];
  if (!common || !own || typeof common !== "object" || typeof own !== "object") return own;
  const entries = Object.entries(own).map(([key, item]) => [key, key in common ? merged(common[key], item) : item]);
  return { ...common, ...Object.fromEntries(entries) };
}

// The legend is plain HTML: it wraps on a phone, works from the keyboard, and shows one mechanism among many.
const DASHES = { dash: "5 3", dot: "1.5 2.5", dashdot: "5 2 1.5 2" };

const MARKS = {
  circle: "M7 1a4 4 0 1 0 .01 0z", diamond: "M7 0l5 5-5 5-5-5z", square: "M3 1h8v8H3z", "triangle-up": "M7 0l5 9H2z",
  "line-ns-open": "M6 0h2v10H6z", "triangle-left": "M11 0v10L2 5z", "triangle-right": "M3 0v10l9-5z",
};

function keyOf(trace) {
  const button = document.createElement("button");
  const text = document.createElement("span");
  const point = trace.mode.startsWith("markers");
  const mark = MARKS[trace.marker.symbol] ?? "M5 0h4v3h3v4H9v3H5V7H2V3h3z";
  button.type = "button";
  const path = point ? `d="${mark}" fill="currentColor"` : 'd="M1 5h20" stroke-width="2.5" stroke="currentColor"';
  button.innerHTML = `<svg width="${point ? 14 : 22}" height="10" aria-hidden="true"><path ${path}/></svg>`;
  button.querySelector("svg").style.color = `var(${trace.marker.color})`;
  if (!point) button.querySelector("path").style.strokeDasharray = DASHES[trace.line.dash] ?? "none";
  text.textContent = trace.meta.title;
  button.append(text);
  return button;
}

class Figure {
  constructor(element) {
    this.element = element;
    this.content = JSON.parse(element.querySelector("script").textContent);
    this.shown = 0;
    this.hidden = new Set();
    this.bar = this.child("div", "views");
    this.canvas = this.child("div", "canvas");
    this.keys = this.child("ul", "keys");
    this.listViews();
  }

  child(tag, name) {
    const made = document.createElement(tag);
    made.className = name;
    this.element.append(made);
    return made;
  }

  listViews() {
    const views = this.content.views;
    this.bar.hidden = views.length < 2;
    this.bar.setAttribute("role", "group");
    this.bar.setAttribute("aria-label", "What the figure shows");
    views.forEach((view, index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = view.label;
      button.addEventListener("click", () => this.switchTo(index));
      this.bar.append(button);
    });
  }

  switchTo(index) {
    this.shown = index;
    Plotly.purge(this.canvas);  // the square axes of an image would keep the domain of the last view
    this.draw();
  }

  draw() {
    const view = this.content.views[this.shown];
    const narrow = this.element.clientWidth < 560;
    const labelled = view.labelled && !narrow;
    const traces = view.traces.filter((trace) => !this.hidden.has(trace.meta.group));
    const drawn = traces.map((trace) => {
      const own = resolved(trace);
      return trace.mode === "markers+text" && narrow ? { ...own, mode: "markers" } : own;
    });
    [...this.bar.children].forEach((button, index) => {
      button.setAttribute("aria-pressed", String(index === this.shown));
    });
    this.canvas.style.height = view.height ? `${view.height}px` : "";  // before Plotly measures it
    Plotly.react(this.canvas, drawn, layoutOf(view, narrow), { displayModeBar: false, responsive: true });
    this.canvas.setAttribute("aria-hidden", "true");
    this.keys.hidden = labelled;
    if (!labelled) this.listKeys(view);
  }

  listKeys(view) {
    const focused = [...this.keys.querySelectorAll("button")].indexOf(document.activeElement);
    const items = view.traces.filter((trace) => trace.meta.title !== undefined).map((trace) => {
      const group = trace.meta.group;
      const item = document.createElement("li");
      const button = keyOf(trace);
      button.setAttribute("aria-pressed", String(!this.hidden.has(group)));
      button.title = "Show or hide";
      button.addEventListener("click", () => {
        this.hidden.has(group) ? this.hidden.delete(group) : this.hidden.add(group);
        this.draw();
      });
      button.addEventListener("pointerenter", () => this.emphasise(group));
      button.addEventListener("pointerleave", () => this.emphasise(null));
      item.append(button);
      return item;
    });
    this.keys.replaceChildren(...items);
    if (focused >= 0) items[focused]?.firstChild.focus();
  }

  emphasise(group) {
    const strength = this.canvas.data.map((trace) => (group === null || trace.meta.group === group ? 1 : 0.12));
    Plotly.restyle(this.canvas, { opacity: strength });
  }
}

const figures = [...document.querySelectorAll(".plot")].map((element) => new Figure(element));

function drawAll() {
  for (const figure of figures) figure.draw();
}
drawAll();
