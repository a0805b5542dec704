"use strict";
// Layer × head at one length, and layer × length.

const METRICS = {
  median: ["median over samples", median],
  largest: ["largest sample", (values) => Math.max(...values)],
};

function heatSection(section, view, chosen) {
  const rows = MEASURED.filter((row) => viewOf(row) === view && drawable(row) && row.layer !== null);
  const layers = ascending(rows.map((row) => row.layer)), lengths = ascending(rows.map((row) => row.n));
  const heads = ascending(rows.map((row) => row.head)).filter((head) => head !== null);
  section.hidden = !rows.length || (heads.length < 2 && lengths.length < 2);
  if (section.hidden) return;
  const { n = lengths.at(-1), metric = "median" } = chosen || {}, [words, of] = METRICS[metric];
  const again = (change) => heatSection(section, view, { n, metric, ...change });
  section.replaceChildren(make("h2", {}, "Layer by layer"), make("div", { class: "controls" },
    choice("value", Object.entries(METRICS).map(([name, [said]]) => [name, said]), metric,
      (value) => again({ metric: value })),
    heads.length > 1 ? choice("length", lengths.map((value) => [value, `n = ${value}`]), n,
      (value) => again({ n: value })) : null));
  if (heads.length > 1) {
    const cells = cellsOf(rows.filter((row) => row.n === n), "head", of);
    section.append(heatFigure(section, "heads", `Lip of each head at n = ${n}, ${words}`, cells, layers, heads, "head"));
  }
  if (lengths.length > 1) {
    const title = `Lip at each length, ${words}${heads.length > 1 ? ", of the largest head" : ""}`;
    section.append(heatFigure(section, "lengths", title, cellsOf(rows, "n", of), layers, lengths, "n"));
  }
}

// One cell per layer and column; where several heads share a cell, the largest counts.
function cellsOf(rows, column, of) {
  return [...groupBy(rows, (row) => `${row.layer}|${row[column]}`).values()].map((group) => {
    const heads = [...groupBy(group, (row) => row.head).values()];
    return { layer: group[0].layer, [column]: group[0][column],
      value: Math.max(...heads.map((part) => of(part.map((row) => row.value)))) };
  });
}

function heatFigure(section, name, title, cells, layers, columns, column) {
  const what = (value) => (column === "n" ? `n = ${value}` : `head ${value}`);
  const at = new Map(cells.map((cell) => [`${cell.layer}|${cell[column]}`, cell.value]));
  const table = htmlTable(layers, [["layer", (layer) => layer, "number"],
    ...columns.map((value) => [what(value), (layer) => number(at.get(`${layer}|${value}`), 3), "number"])], title);
  return figure(name, heatMap(section, title, cells, layers, columns, column, what), "Dark is small, bright is large.",
    () => [cells, ["layer", column, "value"]],
    make("details", {}, make("summary", {}, "The numbers as a table"), table));
}

function heatMap(section, title, cells, layers, columns, column, what) {
  const width = roomFor(section), left = 44, top = 46, side = Math.min(64, (width - left - 4) / columns.length);
  const tall = Math.max(15, Math.min(26, side)), bottom = top + layers.length * tall, height = bottom + 34;
  const wide = Math.max(300, left + columns.length * side + 4);
  const values = cells.map((cell) => cell.value), low = Math.min(...values), high = Math.max(...values);
  const shade = (value) => between(CIVIDIS, high > low ? Math.log(value / low) / Math.log(high / low) : 0.5);
  const label = `${title}: ${layers.length} layers by ${columns.length} ${column === "n" ? "lengths" : "heads"}, ` +
    `from ${number(low, 3)} to ${number(high, 3)}`;
  const svg = draw("svg", { viewBox: `0 0 ${wide} ${height}`, role: "img", "aria-label": label }, draw("title", {}, label));
  svg.style.maxWidth = `${wide}px`;
  const text = (words, x, y, anchor, more) => svg.append(draw("text", { x, y, "text-anchor": anchor, ...more }, words));
  text(title, 0, 13, "start", { class: "strong" });
  for (let i = 0; i < 60; i++) {
    svg.append(draw("rect", { x: left + 2 * i, y: 22, width: 2.2, height: 9, fill: colour(between(CIVIDIS, i / 59)) }));
  }
  text(number(low, 3), left - 6, 31, "end");
  text(`${number(high, 3)} (log scale)`, left + 126, 31, "start");
  const every = Math.ceil(26 / side), down = Math.ceil(13 / tall), middle = (top + bottom) / 2;
  columns.forEach((value, j) => {
    if (j % every === 0) text(value.toLocaleString("en"), left + (j + 0.5) * side, bottom + 15, "middle");
  });
  layers.forEach((value, i) => { if (i % down === 0) text(value, left - 6, top + (i + 0.5) * tall + 4, "end"); });
  text(column === "n" ? "length n (tokens)" : "head", left + columns.length * side / 2, height - 3, "middle",
    { class: "faint" });
  text("layer", 10, middle, "middle", { class: "faint", transform: `rotate(-90 10 ${middle})` });
  for (const cell of cells) {
    const x = left + columns.indexOf(cell[column]) * side, y = top + layers.indexOf(cell.layer) * tall;
    const rgb = shade(cell.value);
    svg.append(draw("rect", { x, y, width: side - 1, height: tall - 1, fill: colour(rgb) },
      draw("title", {}, `layer ${cell.layer}, ${what(cell[column])}: ${number(cell.value)}`)));
    if (side >= 36) {
      text(number(cell.value, 3), x + side / 2 - 0.5, y + tall / 2 + 3.5, "middle",
        { style: `fill:${inkOn(rgb)};font-size:11px` });
    }
  }
  return svg;
}
