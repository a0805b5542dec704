"use strict";
// Bounds compared with the measured constant, and their tightness.

function boundsSection(section, chosen) {
  section.hidden = !BOUNDS.length;
  if (!BOUNDS.length) return;
  const maps = [...groupBy(BOUNDS, (row) => JSON.stringify([row.model, row.text, row.map, row.layer, row.head]))];
  const { map = maps[0][0] } = chosen || {};
  const several = distinct(BOUNDS.map((row) => row.model + row.text)).length > 1;
  const name = (row) => (several ? `${modelName(row.model)}, ${row.text}: ` : "") + mapName(row);
  const rows = worstSamples(maps.find(([key]) => key === map)[1]);
  const kept = rows.filter((row) => row.refused === null && row.measured > 0);
  section.replaceChildren(
    make("h2", {}, "Bounds and how tight they are"),
    make("p", {}, "A bound at this text is about the constant that was measured. A bound on the worst case in the ball is " +
      "about the largest constant over all inputs with tokens of norm R at most, which may be far above the measured one."),
    tightness(),
    make("div", { class: "controls buttons" },
      csvButton("bounds", () => [BOUNDS, columnsOf("bounds")], "CSV of all bounds")),
    make("div", { class: "controls" }, choice("map", maps.map(([key, [row]]) => [key, name(row)]), map,
      (value) => boundsSection(section, { map: value }))));
  for (const [i, chart] of (BOUND_CHARTS.get(map) || []).entries()) {
    section.append(make("h3", {}, chart.title),
      chartFigure(section, ["bounds-of-map", "worst-case-of-map"][i], chart, () => [rows, columnsOf("bounds")]));
  }
  if (kept.length) section.append(boundTable(kept, name(rows[0])));
}

// Keeps the sample with the largest measured constant for each bound and length.
function worstSamples(rows) {
  const worst = new Map();
  for (const row of rows) {
    const key = `${row.bound}|${row.n}`;
    if (!worst.has(key) || row.measured > worst.get(key).measured) worst.set(key, row);
  }
  return [...worst.values()];
}

const sign = (row) => (row.side === "lower" ? "≥" : "≤");
const isWorstCase = (row) => row.holds !== "at X"; // not about the measured constant
const ratioText = (log) => `×${magnitude(log, log > Math.log(99.5) ? 3 : 2)}`;

function tightness() {
  const groups = [...groupBy(BOUNDS, (row) => row.bound).values()].map((rows) => {
    const kept = rows.filter((row) => row.log_ratio !== null), logs = kept.map((row) => row.log_ratio);
    return { title: rows[0].title, kept: kept.length, refused: rows.length - kept.length, side: kept[0]?.side,
      holds: kept[0]?.holds, scope: kept[0]?.scope,
      middle: logs.length ? median(logs) : null, least: logs.reduce((a, b) => Math.min(a, b), Infinity),
      most: logs.reduce((a, b) => Math.max(a, b), -Infinity) };
  });
  groups.sort((a, b) => (a.middle === null) - (b.middle === null) || isWorstCase(a) - isWorstCase(b)
    || (a.side === "upper") - (b.side === "upper") || Math.abs(a.middle) - Math.abs(b.middle));
  return htmlTable(groups, [["bound", (group) => (group.side ? `${sign(group)} ` : "") + group.title, ""],
    ["holds", (group) => group.scope ?? "", ""],
    ["over measured, median", (group) => (group.middle === null ? "" : ratioText(group.middle)), "number"],
    ["from … to", (group) => (group.middle === null ? "" : `${ratioText(group.least)} … ${ratioText(group.most)}`), "number"],
    ["cases", (group) => group.kept || "", "number"],
    ["outside its conditions", (group) => group.refused || "", "number"]],
  "Tightness: each bound over the measured constant, in all maps, lengths and samples; at this text, ×1 is as tight as can be");
}

function boundTable(kept, name) {
  const lengths = ascending(kept.map((row) => row.n)), at = (rows, n) => rows.find((row) => row.n === n);
  const groups = [...groupBy(kept, (row) => row.bound).values()].sort((a, b) => isWorstCase(a[0]) - isWorstCase(b[0]) ||
    (a[0].side === "upper") - (b[0].side === "upper") || a[0].log_value - b[0].log_value);
  const below = groups.filter(([row]) => !isWorstCase(row) && row.side === "lower"), measuredRow = null;
  const value = (rows, n) => (at(rows, n) ? magnitude(at(rows, n).log_value) : "");
  const over = (rows, n) => (at(rows, n) ? ratioText(at(rows, n).log_ratio) : "");
  return htmlTable([...below, measuredRow, ...groups.slice(below.length)], [
    ["bound", (rows) => (rows ? `${sign(rows[0])} ${rows[0].title}` : "measured"), ""],
    ["holds", (rows) => (rows ? rows[0].scope : "at this text"), ""],
    ...lengths.flatMap((n) => [
      [`n = ${n}`, (rows) => (rows ? value(rows, n) : number(at(kept, n).measured)), "number"],
      ["over measured", (rows) => (rows ? over(rows, n) : ""), "number"]])],
  `${name}: the measured constant and its bounds, then bounds on the worst case`);
}
