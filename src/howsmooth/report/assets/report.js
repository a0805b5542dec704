"use strict";
// The page put together: which records are shown, redrawn when the room changes; the theme; all data to save.

const MEASURED = rowsOf("measurements"), BOUNDS = rowsOf("bounds"), DIRECTIONS = rowsOf("directions");
const LAWS = new Map(rowsOf("laws").map((law) => [JSON.stringify(CURVE.map((name) => law[name] ?? null)), law]));
// What Python made for each view and each map with bounds: charts as chart.py describes them.
const VIEWS = new Map(DATA.charts.views.map((view) => [JSON.stringify(view.view), view]));
const BOUND_CHARTS = new Map(DATA.charts.bounds.map(({ map, chart }) => [JSON.stringify(map), chart]));
const WORDS = { all: "all tokens move", "no-first": "without the first token", "no-special": "without special tokens",
  lipschitz: "as described", released: "as released" };
const place = (name) => document.getElementById(name);
let shown = VIEWS.keys().next().value;

function viewWords(view) {
  const parts = JSON.parse(view), others = [...VIEWS.values()].map((other) => other.view);
  const varies = (i) => distinct(others.map((other) => other[i])).length > 1;
  const words = parts.map((part, i) => (i && !varies(i) ? "" : i ? WORDS[part] ?? part ?? "" : modelName(String(part))));
  return words.filter(Boolean).join(", ");
}

function drawView() {
  if (!VIEWS.size) return;
  growthSection(place("growth"), shown);
  heatSection(place("heat"), shown);
  directionSection(place("direction"), shown);
}

function drawAll() { drawView(); boundsSection(place("bounds")); }

place("view").append(choice("shown", [...VIEWS.keys()].map((view) => [view, viewWords(view)]), shown, (view) => {
  shown = view;
  drawView();
}));
attacksSection(place("attacks"));
drawAll();

const saved = { measurements: "all measurements", laws: "all laws", bounds: "all bounds" };
for (const [name, words] of Object.entries(saved)) {
  if (!DATA.tables[name]) continue;
  place("downloads").append(csvButton(`all-${name}`, () => [rowsOf(name), columnsOf(name)], words));
}

place("theme").addEventListener("click", () => {
  const root = document.documentElement, dark = getComputedStyle(root).colorScheme.includes("dark");
  root.dataset.theme = dark ? "light" : "dark";
  place("said").textContent = dark ? "light theme" : "dark theme";
});

// On paper nothing is folded away.
addEventListener("beforeprint", () => document.querySelectorAll("details:not([open])").forEach((details) => {
  details.open = true;
  details.dataset.folded = "";
}));
addEventListener("afterprint", () => document.querySelectorAll("details[data-folded]").forEach((details) => {
  details.open = false;
  delete details.dataset.folded;
}));

let width = document.body.clientWidth, soon;
addEventListener("resize", () => {
  clearTimeout(soon);
  soon = setTimeout(() => {
    if (document.body.clientWidth === width) return;
    width = document.body.clientWidth;
    drawAll();
  }, 150);
});
