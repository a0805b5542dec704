"use strict";
// Bounds beside the measured constant, and how tight each is.

const IN_SIGHT = Math.log(1e5); // times the measured constant: what is further away is told in the table alone

function boundsSection(section, chosen) {
  section.hidden = !BOUNDS.length;
  if (!BOUNDS.length) return;
  const maps = [...groupBy(BOUNDS, (row) => JSON.stringify([row.model, row.text, row.map, row.layer, row.head])).entries()];
  const { map = maps[0][0] } = chosen || {};
  const several = distinct(BOUNDS.map((row) => row.model + row.text)).length > 1;
  const name = (row) => (several ? `${modelName(row.model)}, ${row.text}: ` : "") + mapName(row);
  // Of several samples the one with the largest constant is shown.
  const worst = new Map();
  for (const row of maps.find(([key]) => key === map)[1]) {
    const key = `${row.bound}|${row.n}`;
    if (!worst.has(key) || row.measured > worst.get(key).measured) worst.set(key, row);
  }
  const rows = [...worst.values()], kept = rows.filter((row) => row.refused === null);
  section.replaceChildren(make("h2", {}, "Bounds and how tight they are"),
    make("p", {}, "Each bound beside the constant measured on the text. A bound that holds on a ball need not be close to the constant at one text: the ball holds worse texts."),
    tightness(), make("div", { class: "controls buttons" }, csvButton("bounds", () => [BOUNDS, columnsOf("bounds")], "CSV of all bounds")),
    make("div", { class: "controls" }, choice("map", maps.map(([key, [row]]) => [key, name(row)]), map, (value) => boundsSection(section, { map: value }))));
  if (kept.some((row) => row.measured > 0)) section.append(boundsFigure(section, rows, kept.filter((row) => row.measured > 0), name(rows[0])), boundTable(kept, name(rows[0])));
}

const sign = (row) => (row.side === "lower" ? "≥" : "≤");
const times = (log) => `×${magnitude(log, log > Math.log(99.5) ? 3 : 2)}`;

function tightness() {
  const groups = [...groupBy(BOUNDS, (row) => row.bound).entries()].map(([bound, rows]) => {
    const kept = rows.filter((row) => row.log_ratio !== null), logs = kept.map((row) => row.log_ratio);
    return { bound, kept: kept.length, refused: rows.length - kept.length, side: kept[0]?.side, holds: kept[0]?.holds,
      middle: logs.length ? median(logs) : null, least: Math.min(...logs), most: logs.reduce((a, b) => Math.max(a, b), -Infinity) };
  }).sort((a, b) => (a.middle === null) - (b.middle === null) || (a.side === "upper") - (b.side === "upper") || Math.abs(a.middle) - Math.abs(b.middle));
  return htmlTable(groups, [["bound", (g) => (g.side ? `${sign(g)} ` : "") + g.bound, ""], ["holds", (g) => g.holds ?? "", ""],
    ["over measured, median", (g) => (g.middle === null ? "" : times(g.middle)), "number"],
    ["from … to", (g) => (g.middle === null ? "" : `${times(g.least)} … ${times(g.most)}`), "number"],
    ["cases", (g) => g.kept || "", "number"], ["outside its conditions", (g) => g.refused || "", "number"]],
  "Tightness: each bound over the measured constant, in all maps, lengths and samples; ×1 is as tight as can be");
}

function boundTable(kept, name) {
  const lengths = ascending(kept.map((row) => row.n)), at = (rows, n) => rows.find((row) => row.n === n);
  const groups = [...groupBy(kept, (row) => row.bound).values()].sort((a, b) => (a[0].side === "upper") - (b[0].side === "upper") || a[0].log_value - b[0].log_value);
  const measured = { measured: true };
  const lower = groups.filter((rows) => rows[0].side === "lower");
  return htmlTable([...lower, measured, ...groups.slice(lower.length)], [["bound", (rows) => (rows.measured ? "measured on the text" : `${sign(rows[0])} ${rows[0].bound}`), ""],
    ["holds", (rows) => (rows.measured ? "at X" : rows[0].holds), ""],
    ...lengths.flatMap((n) => [[`n = ${n}`, (rows) => (rows.measured ? number(at(kept, n).measured) : at(rows, n) ? magnitude(at(rows, n).log_value) : ""), "number"],
      ["over measured", (rows) => (rows.measured || !at(rows, n) ? "" : times(at(rows, n).log_ratio)), "number"]])],
  `${name}: lower bounds, the measured constant, upper bounds`);
}

function boundsFigure(section, rows, kept, name) {
  const width = roomFor(section), height = Math.round(Math.max(300, Math.min(460, 0.55 * width))), lengths = ascending(kept.map((row) => row.n));
  const groups = [...groupBy(kept, (row) => row.bound).values()];
  const inSight = groups.filter((group) => group.every((row) => row.log_ratio !== null && Math.abs(row.log_ratio) < IN_SIGHT));
  const measured = lengths.map((n) => kept.find((row) => row.n === n));
  const values = [...measured.map((row) => row.measured), ...inSight.flat().map((row) => Math.exp(row.log_value))];
  const plot = logPlot({ width, height, lengths, values, label: `${name}: ${inSight.length} bounds and the measured constant against length` });
  const entries = [{ words: "measured on the text", ink: true }];
  inSight.sort((a, b) => b.at(-1).log_value - a.at(-1).log_value).forEach((group, i) => {
    const stroke = COLOURS[i % COLOURS.length], dash = DASHES[i % DASHES.length], points = group.map((row) => [plot.x(row.n), plot.y(Math.exp(row.log_value))]).sort((a, b) => a[0] - b[0]);
    if (points.length === 1) points.push([points[0][0] + 14, points[0][1]]), points.unshift([points[0][0] - 14, points[0][1]]);
    plot.svg.append(draw("g", {}, draw("title", {}, group[0].bound), path(points, { stroke, "stroke-width": 2, "stroke-dasharray": dash || null })));
    entries.push({ words: `${sign(group[0])} ${group[0].bound}, ${group[0].holds}`, stroke, dash });
  });
  plot.svg.append(path(measured.map((row) => [plot.x(row.n), plot.y(row.measured)]), { class: "ink", "stroke-width": 2.4 }));
  for (const row of measured) plot.svg.append(draw("circle", { class: "dot", cx: plot.x(row.n), cy: plot.y(row.measured), r: 4 }, draw("title", {}, `measured ${number(row.measured)} (${number(row.measured_lower)} to ${number(row.measured_upper)}) at n = ${row.n}`)));
  const away = groups.length - inSight.length;
  return figure("bounds-of-map", plot.svg, `${name}${away ? `; ${away} bounds are off the scale and stand in the table alone` : ""}.`, () => [rows, columnsOf("bounds")], legend(entries));
}
