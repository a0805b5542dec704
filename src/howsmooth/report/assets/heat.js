"use strict";
// Heat maps of layer × head at one length and of layer × length, with their numbers as a table.

function heatSection(section, view, chosen) {
  const metrics = VIEWS.get(view).heat, names = Object.keys(metrics);
  const { metric = names[0] } = chosen || {}, { heads = [], lengths = [] } = metrics[metric];
  const { at = heads.length - 1 } = chosen || {};
  section.hidden = !heads.length && !lengths.length;
  if (section.hidden) return;
  const redraw = (change) => heatSection(section, view, { at, metric, ...change });
  section.replaceChildren(make("h2", {}, "Layer by layer"), make("div", { class: "controls" },
    choice("value", names.map((name) => [name, name]), metric, (value) => redraw({ metric: value })),
    heads.length > 1 ? choice("length", heads.map((map, i) => [i, `n = ${map.n}`]), at,
      (value) => redraw({ at: value })) : null));
  if (heads.length) section.append(heatFigure(section, "heads", heads[at], "head"));
  if (lengths.length) section.append(heatFigure(section, "lengths", lengths[0], "n"));
}

function heatFigure(section, name, map, column) {
  const what = (value) => (column === "n" ? `n = ${value.toLocaleString("en")}` : `head ${value}`);
  const cells = map.rows.flatMap((layer, i) => map.columns.map((at, j) => (
    { layer, [column]: at, value: map.values[i][j] }))).filter((cell) => cell.value !== null);
  const table = htmlTable(map.rows, [["layer", (layer) => layer, "number"], ...map.columns.map((at, j) => [what(at),
    (layer) => number(map.values[map.rows.indexOf(layer)][j], 3), "number"])], map.title);
  return chartFigure(section, name, map, () => [cells, ["layer", column, "value"]],
    make("details", {}, make("summary", {}, "The numbers as a table"), table));
}
