"use strict";
// Growth with length: points, medians, fitted laws, and the table of laws with their verdicts.

const FEW = 6; // curves that get colours, samples and intervals of their own

function growthSection(section, view, chosen) {
  const rows = MEASURED.filter((row) => viewOf(row) === view);
  section.hidden = !rows.length;
  if (!rows.length) return;
  const again = (change) => growthSection(section, view, { ...chosen, ...change });
  const layers = ascending(rows.map((row) => row.layer)), heads = ascending(rows.map((row) => row.head));
  const { layer = null, head = null } = chosen || {};
  const shown = rows.filter((row) => (layer === null || row.layer === layer) && (head === null || row.head === head));
  const every = (name, values) => [[null, `all ${values.length}`], ...values.map((value) => [value, `${name} ${value}`])];
  section.replaceChildren(make("h2", {}, "Growth with length"),
    make("p", {}, "Both scales are logarithmic, so a power law is a straight line. Dashed grey: the slopes of √n, the most there can be, and of n to the power ¼."),
    make("div", { class: "controls" },
      choice("layers", layers.length > 1 ? every("layer", layers) : [[null, ""]], layer, (value) => again({ layer: value })),
      choice("heads", heads.length > 1 ? every("head", heads) : [[null, ""]], head, (value) => again({ head: value }))));
  const curves = [...groupBy(shown, (row) => `${row.layer}|${row.head}`).values()]
    .map((points) => ({ points, layer: points[0].layer, head: points[0].head, byLength: groupBy(points, (row) => row.n), law: lawOf(points[0]) }))
    .sort((a, b) => a.layer - b.layer || a.head - b.head);
  const inside = shown.filter(drawable);
  if (inside.length) section.append(growthFigure(section, curves, inside, shown, layers));
  section.append(lawTable(curves, ascending(shown.map((row) => row.n))),
    make("div", { class: "controls buttons" }, DATA.tables.laws ? csvButton("laws", () => [curves.map((curve) => curve.law).filter(Boolean), columnsOf("laws")], "CSV of the laws") : null));
}

const lawOf = (row) => LAWS.get(JSON.stringify(CURVE.map((name) => row[name] ?? null)));

function growthFigure(section, curves, inside, shown, layers) {
  const width = roomFor(section), height = Math.round(Math.max(300, Math.min(460, 0.55 * width)));
  const lengths = ascending(inside.map((row) => row.n)), least = inside.reduce((a, row) => Math.min(a, row.value), Infinity);
  const most = inside.reduce((a, row) => Math.max(a, row.value), 0), base = 0.72 * least;
  const plot = logPlot({ width, height, lengths, values: [lengths.length > 1 ? base : least, most],
    label: `Local Lipschitz constant against length, ${curves.length} curves, from ${number(least, 3)} to ${number(most, 3)}` });
  if (lengths.length > 1) guides(plot, lengths, base, most);
  const few = curves.length <= FEW, entries = [];
  curves.forEach((curve, i) => {
    const share = layers.length > 1 ? layers.indexOf(curve.layer) / (layers.length - 1) : 0.5;
    const stroke = few ? COLOURS[i] : colour(between(BLUE_TO_ORANGE, share));
    const lines = [...curve.byLength].map(([n, rows]) => [n, rows.filter(drawable).map((row) => row.value)]).filter(([, values]) => values.length).sort((a, b) => a[0] - b[0]);
    if (!lines.length) return;
    const group = draw("g", {}, draw("title", {}, `${mapName(curve)}: median ${lines.map(([n, values]) => `${number(median(values), 3)} at ${n}`).join(", ")}`));
    if (few) for (const row of curve.points.filter(drawable)) group.append(...sampleMark(plot, row, stroke, MARKERS[i]));
    group.append(path(lines.map(([n, values]) => [plot.x(n), plot.y(median(values))]), { stroke, "stroke-width": few ? 2 : 1.2, "stroke-opacity": few ? 1 : 0.75 }));
    if (few && curve.law) {
      const ends = [lines[0][0], lines.at(-1)[0]];
      group.append(path(ends.map((n) => [plot.x(n), plot.y(curve.law.constant * n ** curve.law.exponent)]), { stroke, "stroke-width": 1.3, "stroke-dasharray": "3 3" }));
    }
    plot.svg.append(group);
    if (few) entries.push({ words: mapName(curve) + (curve.law ? `: ${number(curve.law.constant, 3)} n^${power(curve.law.exponent)}` : ""), stroke, shape: MARKERS[i] });
  });
  if (!few && layers.length > 1) [layers[0], layers.at(-1)].forEach((layer, i) => entries.push({ words: `layer ${layer}`, stroke: colour(BLUE_TO_ORANGE.at(-i)) }));
  const zeros = shown.length - inside.length;
  const caption = (few ? "Marks are samples with their intervals, lines their medians, dotted lines the fitted laws." : "Lines are medians over samples, from blue (first layer) to orange (last); choose a layer or head to see samples, intervals and laws.")
    + (zeros ? ` ${zeros} values are zero or missing and have no place on this scale.` : "");
  return figure("growth", plot.svg, caption, () => [shown, columnsOf("measurements")], legend(entries));
}

function sampleMark(plot, row, stroke, shape) {
  const x = plot.x(row.n), marks = [marker(shape, x, plot.y(row.value), 3, stroke, 0.6)];
  if (row.lower > 0 && row.upper !== null) marks.push(draw("line", { x1: x, x2: x, y1: plot.y(row.lower), y2: plot.y(row.upper), stroke }));
  marks[0].append(draw("title", {}, `${mapName(row)}, n = ${row.n}, sample ${row.sample}: ${number(row.value)} (${number(row.lower)} to ${row.upper === null ? "∞" : number(row.upper)}), ${row.status}`));
  return marks;
}

function guides(plot, lengths, base, most) {
  const [first, last] = [lengths[0], lengths.at(-1)];
  for (const [slope, words] of [[0.5, "√n"], [0.25, "n^¼"]]) {
    const reach = Math.min(last, first * (1.1 * most / base) ** (1 / slope)), end = base * (reach / first) ** slope;
    plot.svg.append(path([[plot.x(first), plot.y(base)], [plot.x(reach), plot.y(end)]], { class: "guide", "stroke-dasharray": "6 4" }),
      draw("text", { class: "faint", x: plot.x(reach) + 6, y: plot.y(end) + 4 }, words));
  }
}

const power = (value) => (Math.round(value * 100) / 100 + 0).toFixed(2);

function lawTable(curves, lengths) {
  const some = lengths.length <= 7 ? lengths : lengths.filter((_, i) => i % Math.ceil(lengths.length / 6) === 0 || i === lengths.length - 1);
  const heads = curves.some((curve) => curve.head !== null);
  const at = (curve, n) => { const rows = (curve.byLength.get(n) || []).filter((row) => row.value !== null); return rows.length ? number(median(rows.map((row) => row.value)), 3) : ""; };
  const doubtful = (curve) => curve.points.filter((row) => !["converged", "residual", "as released"].includes(row.status)).length;
  return htmlTable(curves, [["layer", (c) => c.layer ?? "all", "number"], ...(heads ? [["head", (c) => c.head, "number"]] : []),
    ...some.map((n) => [`n = ${n.toLocaleString("en")}`, (c) => at(c, n), "number"]),
    ["α", (c) => (c.law ? power(c.law.exponent) : ""), "number"],
    ["95 % interval of α", (c) => (c.law && c.law.exponent_low !== null ? `${power(c.law.exponent_low)} … ${power(c.law.exponent_high)}` : ""), "number"],
    ["is it Lip ≈ C nᵅ?", (c) => (c.law ? c.law.verdict : ""), "wide"],
    ...(curves.some(doubtful) ? [["not converged", (c) => doubtful(c) || "", "number"]] : [])],
  "Median Lip over samples at each length, and the power law fitted to all samples");
}
