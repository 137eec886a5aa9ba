// Filters of a list: a search box and choices, kept in the address. An item is hidden unless it has all that is asked.
"use strict";

const folded = (text) => text.toLowerCase().normalize("NFKD").replace(/[^\p{L}\p{N}]+/gu, "");

for (const form of document.querySelectorAll("form.filters")) {
  const items = [...document.querySelectorAll(form.dataset.of)];
  const sections = [...document.querySelectorAll(form.dataset.sections || "no-such-element")];
  const count = form.querySelector("output");
  const fields = [...form.elements].filter((field) => field.name);
  for (const field of fields) {
    const kept = address.get(field.name);
    if (kept) field.value = kept;
  }
  const apply = () => {
    for (const field of fields) address.set(field.name, field.value.trim());
    let left = 0;
    for (const item of items) {
      const fits = fields.every((field) => {
        const wanted = field.value.trim();
        if (!wanted) return true;
        if (field.type === "search") return folded(item.dataset.words ?? item.textContent).includes(folded(wanted));
        return (item.dataset[field.name] ?? "").split("|").includes(wanted);
      });
      item.hidden = !fits;
      left += fits;
    }
    for (const section of sections) {
      section.hidden = ![...section.querySelectorAll(form.dataset.of)].some((item) => !item.hidden);
    }
    if (count) count.textContent = left === items.length ? `${left} in all` : `${left} of ${items.length}`;
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(apply));
  apply();
}
