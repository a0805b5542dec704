"use strict";
// Assembles the page: the selected view, redrawing on resize, the theme, and downloads of all data.

const MEASURED = rowsOf("measurements"), BOUNDS = rowsOf("bounds"), DIRECTIONS = rowsOf("directions");
const LAWS = new Map(rowsOf("laws").map((law) => [JSON.stringify(CURVE.map((name) => law[name] ?? null)), law]));
// Charts in the format of chart.py, for each view and for each map with bounds.
const VIEWS = new Map(DATA.charts.views.map((view) => [JSON.stringify(view.view), view]));
const BOUND_CHARTS = new Map(DATA.charts.bounds.map(({ map, charts }) => [JSON.stringify(map), charts]));
const FIELD_TEXTS = { all: "all tokens move", "no-first": "without the first token", "no-special": "without special tokens",
  lipschitz: "as described", released: "as released" };
const byId = (name) => document.getElementById(name);
let selectedView = VIEWS.keys().next().value;

function viewTitle(view) {
  const parts = JSON.parse(view), others = [...VIEWS.values()].map((other) => other.view);
  const varies = (i) => distinct(others.map((other) => other[i])).length > 1;
  const texts = parts.map((part, i) => (i && !varies(i) ? "" : i ? FIELD_TEXTS[part] ?? part ?? "" : modelName(String(part))));
  return texts.filter(Boolean).join(", ");
}

function drawView() {
  if (!VIEWS.size) return;
  growthSection(byId("growth"), selectedView);
  heatSection(byId("heat"), selectedView);
  directionSection(byId("direction"), selectedView);
}

function drawAll() { drawView(); boundsSection(byId("bounds")); }

byId("view").append(choice("shown", [...VIEWS.keys()].map((view) => [view, viewTitle(view)]), selectedView, (view) => {
  selectedView = view;
  drawView();
}));
attacksSection(byId("attacks"));
drawAll();

const downloads = { measurements: "all measurements", laws: "all laws", bounds: "all bounds" };
for (const [name, label] of Object.entries(downloads)) {
  if (!DATA.tables[name]) continue;
  byId("downloads").append(csvButton(`all-${name}`, () => [rowsOf(name), columnsOf(name)], label));
}

byId("theme").addEventListener("click", () => {
  const root = document.documentElement, dark = getComputedStyle(root).colorScheme.includes("dark");
  root.dataset.theme = dark ? "light" : "dark";
  byId("announcement").textContent = dark ? "light theme" : "dark theme";
});

// Expand all <details> when printing.
addEventListener("beforeprint", () => document.querySelectorAll("details:not([open])").forEach((details) => {
  details.open = true;
  details.dataset.folded = "";
}));
addEventListener("afterprint", () => document.querySelectorAll("details[data-folded]").forEach((details) => {
  details.open = false;
  delete details.dataset.folded;
}));

let width = document.body.clientWidth, resizeTimer;
addEventListener("resize", () => {
  clearTimeout(resizeTimer);
  resizeTimer = setTimeout(() => {
    if (document.body.clientWidth === width) return;
    width = document.body.clientWidth;
    drawAll();
  }, 150);
});
