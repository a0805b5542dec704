"use strict";
// Layer × head at one length, and layer × length.

const METRICS = { median: ["median over samples", median], largest: ["largest sample", (values) => Math.max(...values)] };

function heatSection(section, view, chosen) {
  const rows = MEASURED.filter((row) => viewOf(row) === view && drawable(row) && row.layer !== null);
  const layers = ascending(rows.map((row) => row.layer)), heads = ascending(rows.map((row) => row.head)).filter((head) => head !== null);
  const lengths = ascending(rows.map((row) => row.n));
  section.hidden = !rows.length || (heads.length < 2 && layers.length * lengths.length < 2);
  if (section.hidden) return;
  const again = (change) => heatSection(section, view, { ...chosen, ...change });
  const { n = lengths.at(-1), metric = "median" } = chosen || {};
  const [words, of] = METRICS[metric];
  section.replaceChildren(make("h2", {}, "Layer by layer"));
  const metrics = choice("value", Object.entries(METRICS).map(([name, [said]]) => [name, said]), metric, (value) => again({ metric: value }));
  if (heads.length > 1) {
    const cells = cellsOf(rows.filter((row) => row.n === n), "head", of);
    section.append(make("div", { class: "controls" }, metrics, choice("length", lengths.map((value) => [value, `n = ${value}`]), n, (value) => again({ n: value }))),
      heatFigure(section, "heads", `Lip of each head at n = ${n}, ${words}`, cells, layers, heads, "head"));
  } else section.append(make("div", { class: "controls" }, metrics));
  if (lengths.length > 1) {
    const perHead = cellsOf(rows, "n", of, "head");
    section.append(heatFigure(section, "lengths", `Lip at each length, ${words}${heads.length > 1 ? ", of the largest head" : ""}`, perHead, layers, lengths, "n"));
  }
}

// One cell per layer and column; where `within` splits a cell, the largest part counts.
function cellsOf(rows, column, of, within) {
  return [...groupBy(rows, (row) => `${row.layer}|${row[column]}`).values()].map((group) => ({ layer: group[0].layer, [column]: group[0][column],
    value: Math.max(...[...groupBy(group, (row) => (within ? row[within] : 0)).values()].map((part) => of(part.map((row) => row.value)))) }));
}

function heatFigure(section, name, title, cells, layers, columns, column) {
  const width = roomFor(section), left = 40, top = 46, side = Math.min(64, (width - left - 4) / columns.length);
  const rowHeight = Math.max(15, Math.min(26, side)), height = top + layers.length * rowHeight + 34, wide = left + columns.length * side + 4;
  const values = cells.map((cell) => cell.value), low = Math.min(...values), high = Math.max(...values);
  const shade = (value) => between(CIVIDIS, high > low ? Math.log(value / low) / Math.log(high / low) : 0.5);
  const label = `${title}: ${layers.length} layers by ${columns.length} ${column === "n" ? "lengths" : "heads"}, from ${number(low, 3)} to ${number(high, 3)}`;
  const svg = draw("svg", { viewBox: `0 0 ${Math.max(wide, 300)} ${height}`, role: "img", "aria-label": label, style: `max-width:${Math.max(wide, 300)}px` }, draw("title", {}, label));
  svg.append(draw("text", { x: 0, y: 13, style: "font-weight:600" }, title));
  for (let i = 0; i < 60; i++) svg.append(draw("rect", { x: left + 2 * i, y: 22, width: 2.2, height: 9, fill: colour(between(CIVIDIS, i / 59)) }));
  svg.append(draw("text", { x: left - 6, y: 31, "text-anchor": "end" }, number(low, 3)), draw("text", { x: left + 126, y: 31 }, `${number(high, 3)}  (log scale)`));
  const every = Math.ceil(26 / side), down = Math.ceil(13 / rowHeight);
  columns.forEach((value, j) => { if (j % every === 0) svg.append(draw("text", { x: left + (j + 0.5) * side, y: top + layers.length * rowHeight + 15, "text-anchor": "middle" }, value.toLocaleString("en"))); });
  svg.append(draw("text", { x: left + columns.length * side / 2, y: height - 3, "text-anchor": "middle", class: "faint" }, column === "n" ? "length n (tokens)" : "head"),
    draw("text", { x: 10, y: top + layers.length * rowHeight / 2, "text-anchor": "middle", class: "faint", transform: `rotate(-90 10 ${top + layers.length * rowHeight / 2})` }, "layer"));
  layers.forEach((value, i) => { if (i % down === 0) svg.append(draw("text", { x: left - 6, y: top + (i + 0.5) * rowHeight + 4, "text-anchor": "end" }, value)); });
  for (const cell of cells) {
    const x = left + columns.indexOf(cell[column]) * side, y = top + layers.indexOf(cell.layer) * rowHeight, rgb = shade(cell.value);
    svg.append(draw("rect", { x, y, width: side - 1, height: rowHeight - 1, fill: colour(rgb) },
      draw("title", {}, `layer ${cell.layer}, ${column === "n" ? "n =" : "head"} ${cell[column]}: ${number(cell.value)}`)));
    if (side >= 36) svg.append(draw("text", { x: x + side / 2 - 0.5, y: y + rowHeight / 2 + 3.5, "text-anchor": "middle", style: `fill:${inkOn(rgb)};font-size:11px` }, number(cell.value, 3)));
  }
  const at = new Map(cells.map((cell) => [`${cell.layer}|${cell[column]}`, cell.value]));
  const table = make("details", {}, make("summary", {}, "The numbers as a table"), htmlTable(layers, [["layer", (layer) => layer, "number"],
    ...columns.map((value) => [column === "n" ? `n = ${value}` : `head ${value}`, (layer) => number(at.get(`${layer}|${value}`), 3), "number"])], title));
  return figure(name, svg, "Dark is small, bright is large.", () => [cells, ["layer", column, "value"]], table);
}
