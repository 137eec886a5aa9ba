// The theme: the system's preference until the reader chooses. Figures follow it through the style sheet.
"use strict";

const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = () => document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");

document.querySelector(".theme").addEventListener("click", () => {
  const chosen = theme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = chosen;
  try { localStorage.setItem("theme", chosen); } catch (error) { console.info("The theme is not remembered here."); }
});
