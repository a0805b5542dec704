"use strict";
// Tables of worst cases found by attacks and of certified balls.

const SETS = { norm: "all the normalisation can put out", ball: "the ball of radius R",
  sphere: "the sphere of radius R", near: "all tokens within ε of the text's" };

function attacksSection(section) {
  const worst = rowsOf("worst-cases"), balls = rowsOf("balls");
  section.hidden = !worst.length && !balls.length;
  if (section.hidden) return;
  section.replaceChildren(make("h2", {}, "Worst cases"));
  if (worst.length) section.append(worstTable(worst), saveAll("worst-cases", worst, "CSV of worst cases"));
  if (balls.length) section.append(ballTable(balls), saveAll("balls", balls, "CSV of balls"));
}

const saveAll = (name, rows, label) =>
  make("div", { class: "controls buttons" }, csvButton(name, () => [rows, columnsOf(name)], label));

function mapColumns(rows) {
  const models = distinct(rows.map((row) => row.model)).length > 1, heads = rows.some((row) => row.head !== null);
  return [...(models ? [["model", (row) => modelName(row.model), ""]] : []), ["layer", (row) => row.layer, "number"],
    ...(heads ? [["head", (row) => row.head ?? "", "number"]] : []), ["n", (row) => row.n, "number"]];
}

const ratio = (value) => (value === null ? "" : ratioText(Math.log(value)));

function worstTable(worst) {
  return htmlTable(worst, [...mapColumns(worst), ["searched", (row) => SETS[row.within] ?? row.within, ""],
    ["on the text", (row) => number(row.on_text), "number"], ["best start", (row) => number(row.best_start), "number"],
    ["found", (row) => number(row.value), "number"],
    ["interval", (row) => `${number(row.lower, 5)} … ${row.upper === null ? "∞" : number(row.upper, 5)}`, "number"],
    ["over the text", (row) => ratio(row.over_text), "number"],
    ["smallest upper bound", (row) => magnitude(row.log_upper_bound), "number"],
    ["tokens per point", (row) => row.masses, ""]],
  "The largest constants that ascent found: lower bounds on the worst case");
}

function ballTable(balls) {
  return htmlTable(balls, [...mapColumns(balls), ["ε", (row) => row.eps, "number"],
    ["at the text", (row) => number(row.at_text), "number"], ["≥ found", (row) => number(row.found), "number"],
    ["≤ certified", (row) => magnitude(row.log_certified, 4), "number"],
    ["ratio", (row) => ratio(row.tightness), "number"], ["by", (row) => row.method, ""],
    ["vacuous from ε =", (row) => number(row.vacuous_eps, 2), "number"]],
  "For all tokens within ε of the text's: certified from above, attacked from below");
}
