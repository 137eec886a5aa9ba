// A figure: views to switch between, a legend that marks, a search, small plots by family. Choices live in the address.
"use strict";

const MANY = 8;  // lines from which on a reader needs a search and small plots
const TABS = 4;  // views that fit side by side

class Plot {
  constructor(element, place) {
    this.element = element;
    this.key = element.dataset.key ?? String(place);
    this.content = JSON.parse(element.querySelector("script").textContent);
    this.marked = new Set(this.kept("mark").split("~").filter(Boolean));
    this.find = this.kept("find");
    this.apart = this.kept("by") === "family";
    this.shown = Math.max(0, this.content.views.findIndex((view) => view.label === this.kept("view")));
    this.tools = this.child("div", "tools");
    this.stage = this.child("div", "stage");
    this.keys = this.child("ul", "keys");
    this.tip = this.child("div", "tip", this.stage);
    this.tip.hidden = true;
    this.stage.addEventListener("pointermove", (event) => this.hover(event));
    this.stage.addEventListener("pointerleave", () => this.leave());
    this.listViews();
    this.listTools();
    this.draw();
    new ResizeObserver(() => { if (this.element.clientWidth !== this.width) this.draw(); }).observe(this.element);
  }

  kept(name) { return address.get(`${this.key}.${name}`); }
  keep(name, value) { address.set(`${this.key}.${name}`, value); }
  get view() { return this.content.views[this.shown]; }

  child(tag, name, parent = this.element) {
    const made = document.createElement(tag);
    if (name) made.className = name;
    parent.append(made);
    return made;
  }

  listViews() {
    const views = this.content.views;
    if (views.length === 1 && views[0].label) this.child("span", "quiet", this.tools).textContent = views[0].label;
    if (views.length < 2) return;
    if (views.length > TABS) {
      const label = this.child("label", "choose", this.tools);
      label.append("Show ");
      const select = this.child("select", "", label);
      views.forEach((view, index) => select.add(new Option(view.label, String(index), false, index === this.shown)));
      select.addEventListener("change", () => this.switchTo(Number(select.value)));
      return;
    }
    const bar = this.child("div", "views", this.tools);
    bar.setAttribute("role", "group");
    bar.setAttribute("aria-label", "What the figure shows");
    this.buttons = views.map((view, index) => {
      const button = this.child("button", "", bar);
      button.type = "button";
      button.textContent = view.label;
      button.addEventListener("click", () => this.switchTo(index));
      return button;
    });
  }

  listTools() {
    const groups = Math.max(...this.content.views.map((view) => this.named(view).length));
    if (groups < MANY || !this.content.views.some((view) => view.families)) return;
    const search = this.child("input", "find", this.tools);
    Object.assign(search, { type: "search", placeholder: "Find a mechanism", value: this.find });
    search.setAttribute("aria-label", "Find a mechanism in this figure");
    search.addEventListener("input", () => {
      this.find = search.value.trim();
      this.keep("find", this.find);
      this.listKeys();
      this.emphasise();
    });
    if (!this.content.views.some((view) => view.families && !view.y.rows && view.marks.some((mark) => mark.kind === "line" && mark.name))) return;
    const apart = this.child("button", "apart-toggle", this.tools);
    apart.type = "button";
    apart.textContent = "By family";
    apart.setAttribute("aria-pressed", String(this.apart));
    apart.addEventListener("click", () => {
      this.apart = !this.apart;
      apart.setAttribute("aria-pressed", String(this.apart));
      this.keep("by", this.apart ? "family" : "");
      this.draw();
    });
  }

  switchTo(index) {
    this.shown = index;
    this.keep("view", index ? this.view.label : "");
    this.draw();
  }

  // Marks that have a place in the legend, one for each name.
  named(view = this.view) {
    const found = new Map();
    for (const mark of view.marks) {
      if (mark.name && ["line", "points"].includes(mark.kind) && !found.has(`${groupOf(mark)} ${mark.name}`)) found.set(`${groupOf(mark)} ${mark.name}`, mark);
    }
    return [...found.values()];
  }

  draw() {
    const view = this.view;
    this.width = this.element.clientWidth;
    const style = getComputedStyle(this.element);
    const width = Math.max(240, this.width - Number.parseFloat(style.paddingLeft) - Number.parseFloat(style.paddingRight));
    this.buttons?.forEach((button, index) => button.setAttribute("aria-pressed", String(index === this.shown)));
    this.stage.replaceChildren();
    this.panels = this.apart && view.families && !view.y.rows ? this.drawFamilies(view, width) : [this.drawOne(view, width)];
    this.stage.append(this.tip);
    this.tip.hidden = true;
    this.listKeys();
    this.emphasise();
  }

  drawOne(view, width) {
    const images = view.marks.filter((mark) => mark.kind === "image");
    const height = view.height ?? (width < NARROW ? 320 : 380);
    const panel = images.length ? imagesOf(view, images, width, height) : panelOf(view, view.marks, width, height);
    this.stage.append(panel.svg);
    return panel;
  }

  drawFamilies(view, width) {
    const grid = this.child("div", "multiples", this.stage);
    const columns = Math.max(1, Math.floor(width / 270));
    const wide = Math.floor((width - 14 * (columns - 1)) / columns);
    const families = [...new Set(Object.values(view.families))].sort(collator.compare);
    const common = view.marks.filter((mark) => mark.kind === "reference" || !view.families[groupOf(mark)] || groupOf(mark) === "softmax");
    return families.map((family) => {
      const figure = this.child("figure", "", grid);
      this.child("figcaption", "", figure).textContent = family;
      const own = view.marks.filter((mark) => view.families[groupOf(mark)] === family);
      const others = view.marks.filter((mark) => !own.includes(mark) && !common.includes(mark) && mark.kind === "line");
      const panel = panelOf(view, [...common.filter((mark) => !own.includes(mark)), ...own], wide, 190, { context: others, quietAxes: true });
      figure.append(panel.svg);
      return panel;
    });
  }

  listKeys() {
    const view = this.view;
    const rows = new Set(view.y.rows ?? []);
    const labelled = (view.labelled && this.width >= NARROW) || (rows.size > 0 && this.named().every((mark) => rows.has(mark.name)));
    this.keys.hidden = labelled;
    const focused = [...this.keys.querySelectorAll("button")].indexOf(document.activeElement);
    const marks = this.named().filter((mark) => !this.find || folded(`${mark.name} ${view.families?.[groupOf(mark)] ?? ""}`).includes(folded(this.find)));
    const items = (labelled ? [] : marks).map((mark) => {
      const item = document.createElement("li");
      const button = this.child("button", "", item);
      const group = groupOf(mark);
      button.type = "button";
      button.append(keyOf(mark));
      this.child("span", "", button).textContent = mark.name;
      button.setAttribute("aria-pressed", String(this.marked.has(group)));
      button.title = "Mark in the figure";
      button.addEventListener("click", () => {
        this.marked.has(group) ? this.marked.delete(group) : this.marked.add(group);
        this.keep("mark", [...this.marked].join("~"));
        this.listKeys();
        this.emphasise();
      });
      for (const [over, out] of [["pointerenter", "pointerleave"], ["focus", "blur"]]) {
        button.addEventListener(over, () => this.emphasise(group));
        button.addEventListener(out, () => this.emphasise());
      }
      return item;
    });
    if (!labelled && !items.length && this.find) {
      const none = document.createElement("li");
      none.className = "quiet";
      none.textContent = `Nothing here is called “${this.find}”.`;
      items.push(none);
    }
    this.keys.replaceChildren(...items);
    if (focused >= 0) items[focused]?.firstChild?.focus?.();
  }

  // Shows a group strongly and the others faintly; without one, what is marked or found, else all alike.
  emphasise(group = null) {
    const named = this.named();
    const sought = this.find ? named.filter((mark) => folded(`${mark.name} ${this.view.families?.[groupOf(mark)] ?? ""}`).includes(folded(this.find))).map(groupOf) : [];
    const strong = new Set(group ? [group] : [...this.marked].filter((one) => named.some((mark) => groupOf(mark) === one)));
    if (!group) sought.forEach((one) => strong.add(one));
    this.element.classList.toggle("dimmed", strong.size > 0);
    for (const layer of this.stage.querySelectorAll("g[data-group]")) layer.classList.toggle("strong", strong.has(layer.dataset.group));
  }

  hover(event) {
    const panel = this.panels.find(({ svg }) => svg.contains(event.target)) ?? this.panels[0];
    const frame = panel.svg.getBoundingClientRect();
    const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
    const near = panel.spots.reduce((best, spot) => {
      const away = Math.hypot(spot.x - x, spot.y - y);
      return away < (best?.away ?? 36) ? { spot, away } : best;
    }, null)?.spot;
    if (!near) { this.leave(); return; }
    const lines = this.view.compare ? panel.spots.filter((spot) => Math.abs(spot.x - near.x) < 0.5).sort((a, b) => a.y - b.y).slice(0, 14) : [near];
    this.tip.replaceChildren(...lines.map((spot) => {
      const line = document.createElement("p");
      if (spot.mark.name) {
        line.append(keyOf(spot.mark));
        this.child("b", "", line).textContent = spot.mark.name;
      }
      if (spot === near && lines.length > 1) line.className = "near";
      this.child("span", "", line).textContent = spot.text;
      return line;
    }));
    this.tip.hidden = false;
    const stage = this.stage.getBoundingClientRect();
    const [left, top] = [frame.left - stage.left + near.x, frame.top - stage.top + near.y];
    const room = stage.width - this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(left + 14 > room ? left - this.tip.offsetWidth - 14 : left + 14, room))}px`;
    this.tip.style.top = `${Math.max(0, top - this.tip.offsetHeight - 8)}px`;
    this.emphasise(groupOf(near.mark) || null);
  }

  leave() {
    if (this.tip.hidden) return;
    this.tip.hidden = true;
    this.emphasise();
  }
}

// The line or the symbol of a mark, for the legend.
function keyOf(mark) {
  const line = mark.kind === "line";
  const svg = make("svg", { width: line ? 24 : 14, height: 12, viewBox: line ? "0 0 24 12" : "0 0 14 12", "aria-hidden": "true" });
  if (line) make("path", { d: "M1 6h22", stroke: hue(mark.colour), "stroke-width": Math.min(mark.width ?? 2, 3), "stroke-dasharray": DASHES[mark.dash] }, svg);
  if (!line || mark.symbol) symbolAt(svg, { ...mark, size: line ? 7 : 10 }, line ? 12 : 7, 6);
  svg.style.color = hue(mark.colour);
  return svg;
}

// What is in sight is drawn at once, the rest piece by piece, so that a long page opens as fast as a short one.
const near = (element) => element.getBoundingClientRect().top < 1.5 * window.innerHeight;
const figures = [...document.querySelectorAll(".plot")].map((element, index) => [element, index + 1, near(element)]);
const later = figures.filter(([, , first]) => !first);
const drawLater = () => {
  if (later.length) new Plot(...later.shift());
  if (later.length) setTimeout(drawLater);
};
for (const [element, place, first] of figures) if (first) new Plot(element, place);
addEventListener("beforeprint", () => { while (later.length) new Plot(...later.shift()); });
setTimeout(drawLater);
