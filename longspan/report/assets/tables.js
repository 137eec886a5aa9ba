// Tables: a heading sorts its column, each body by itself; empty cells stay last whichever way.
"use strict";

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
