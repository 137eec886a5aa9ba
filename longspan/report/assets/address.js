// What a reader chose lives in the address, after the place on the page: #growth?1.find=linear&1.by=family
"use strict";

const address = (() => {
  const [place, query] = location.hash.slice(1).split("?");
  const chosen = new URLSearchParams(query ?? "");
  return {
    place: decodeURIComponent(place ?? ""),
    get: (key) => chosen.get(key) ?? "",
    set(key, value) {
      value ? chosen.set(key, value) : chosen.delete(key);
      const text = chosen.toString();
      const [now] = location.hash.slice(1).split("?");
      history.replaceState(null, "", `#${now}${text ? `?${text}` : ""}`);
    },
  };
})();

// The browser finds no place whose name is followed by choices.
addEventListener("load", () => {
  const target = address.place && document.getElementById(address.place);
  if (!target) return;
  target.closest("details")?.setAttribute("open", "");
  if (location.hash.includes("?")) target.scrollIntoView();
});
