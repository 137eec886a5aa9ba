// The page that compares two mechanisms: who they are is part of the address, so that a link shows the same.
"use strict";

const comparing = document.getElementById("compare");
if (comparing) {
  const { mechanisms, curves } = JSON.parse(document.getElementById("compare-data").textContent);
  const choices = [...comparing.querySelectorAll("select")];
  const names = Object.keys(mechanisms);
  const first = names.includes("softmax") ? "softmax" : names[0];
  const usual = [names.find((name) => name !== first && mechanisms[name].scores.length) ?? names[1] ?? first, first];
  const shown = document.getElementById("compared");

  const element = (tag, attributes, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  const heading = (name, root = "") => {
    const link = element("a", { href: root + mechanisms[name].page }, mechanisms[name].title);
    return element("span", { class: "who", style: `--own: ${hue(mechanisms[name].colour)}` }, link);
  };

  const facts = (pair) => {
    const keys = [...new Set(pair.flatMap((name) => Object.keys(mechanisms[name].facts)))];
    const rows = keys.map((key) => {
      const texts = pair.map((name) => mechanisms[name].facts[key] ?? "–");
      const row = element("tr", texts[0] === texts[1] ? { class: "alike" } : {}, element("th", { scope: "row", class: "text" }, key));
      row.append(...texts.map((text) => element("td", { class: "text wrap" }, text)));
      return row;
    });
    return table("What they are", pair, rows);
  };

  const table = (title, pair, rows, more = []) => {
    const head = element("tr", {}, element("th", { scope: "col", class: "text" }, ""));
    head.append(...pair.map((name) => element("th", { scope: "col", class: "text" }, heading(name))), ...more);
    head.firstChild.append(element("span", { class: "sr" }, "Of what"));
    const made = element("table", {}, element("caption", { class: "sr" }, title), element("thead", {}, head), element("tbody", {}, ...rows));
    return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, made);
  };

  const maps = (pair) => {
    const patterns = [...new Set(pair.flatMap((name) => Object.keys(mechanisms[name].maps)))];
    const drawn = (name) => Object.keys(mechanisms[name].maps).length > 0; // a mechanism from elsewhere has no picture
    const legend = element("p", { class: "legend" }, ...pair.map((name) => heading(name)));
    const pictures = patterns.map((pattern) => {
      const words = pattern.replaceAll("_", " ");
      const sides = pair.map((name) => {
        const map = mechanisms[name].maps[pattern];
        const label = `${mechanisms[name].title}, ${words}: what attends to what`;
        return map
          ? element("span", { class: "map", role: "img", "aria-label": label, style: `--map: url(${map}); --own: ${hue(mechanisms[name].colour)}` })
          : element("span", { class: "map none" }, drawn(name) ? "no such pattern" : "no picture");
      });
      return element("figure", {}, element("figcaption", {}, words), element("div", { class: "two" }, ...sides));
    });
    const how = "Queries down, keys across: how far each block of outputs moves when a block of inputs is nudged.";
    return element("div", {}, legend, element("div", { class: "pairs" }, ...pictures), element("p", { class: "quiet" }, how));
  };

  const scores = (pair) => {
    const [own, other] = pair.map((name) => mechanisms[name].scores);
    const rows = own.flatMap((one) => {
      const match = other.find((score) => score.task === one.task && score.rules === one.rules && score.data === one.data);
      if (!match) return [];
      const better = one.value === match.value ? -1 : (one.value > match.value) === one.higher ? 0 : 1;
      const cells = [one, match].map((score, side) => element("td", { class: better === side ? "num better" : "num" }, score.text,
        element("span", { class: "sr" }, better === side ? ", better" : "")));
      return [element("tr", {}, element("th", { scope: "row", class: "text" }, `${one.title} `, element("small", {}, `${one.metric}, ${one.rules}`)), ...cells)];
    });
    return rows.length ? table("Scores", pair, rows) : element("p", { class: "quiet" }, "No task has runs of both under the same rules.");
  };

  const costs = (pair) => {
    const wanted = [...new Set(pair)];
    const both = curves.filter((one) => wanted.every((name) => one.lines[name]));
    const chosen = both.filter((one, index) => both.findIndex((other) => other.label === one.label) === index);
    const several = new Set(chosen.map((one) => one.where)).size > 1;
    const views = chosen.map((one) => {
      const marks = wanted.map((name) => ({
        kind: "line", ...one.lines[name], colour: mechanisms[name].colour, symbol: "circle", width: 2.4, name: mechanisms[name].title, group: name,
        hover: one.lines[name].y.map((value, index) => `${one.lines[name].x[index].toLocaleString("en")} tokens: ${value.toLocaleString("en", { maximumSignificantDigits: 4 })}`),
      }));
      const label = several ? `${one.label}, ${one.where}` : one.label;
      return { label, x: { label: "tokens", log: true, ticks: one.xticks }, y: { label: one.y, log: true, ticks: one.yticks }, marks, compare: true };
    });
    if (!views.length) return element("p", { class: "quiet" }, "They were not measured on the same bench.");
    const script = element("script", { type: "application/json" });
    script.textContent = JSON.stringify({ title: "", views });
    return element("div", { class: "plot", role: "group", "aria-label": "Costs over the length", "data-key": "cost" }, script);
  };

  const draw = () => {
    const pair = choices.map((choice) => choice.value);
    shown.replaceChildren();
    for (const [title, part] of [["What attends to what", maps], ["Scores", scores], ["Costs over the length", costs], ["What they are", facts]]) {
      shown.append(element("section", { class: "panel" }, element("header", { class: "panel-head" }, element("h2", {}, title)), part(pair)));
    }
    for (const plot of shown.querySelectorAll(".plot")) new Plot(plot, 1);
    document.title = `${pair.map((name) => mechanisms[name].title).join(" and ")} · Longspan`;
  };

  choices.forEach((choice, side) => {
    for (const name of names) choice.add(new Option(mechanisms[name].title, name));
    const kept = address.get("ab"[side]);
    choice.value = names.includes(kept) ? kept : usual[side];
    choice.addEventListener("change", () => { address.set("ab"[side], choice.value); draw(); });
  });
  document.getElementById("swap").addEventListener("click", () => {
    [choices[0].value, choices[1].value] = [choices[1].value, choices[0].value];
    choices.forEach((choice, side) => address.set("ab"[side], choice.value));
    draw();
  });
  if (names.length) draw();
}
