"use strict";
// Growth with length: points, medians, fitted laws, and the table of laws with their verdicts.

const FEW = 6; // curves that get colours, samples and intervals of their own
const DONE = ["converged", "residual", "as released"];

function growthSection(section, view, chosen) {
  const rows = MEASURED.filter((row) => viewOf(row) === view);
  section.hidden = !rows.length;
  if (!rows.length) return;
  const layers = ascending(rows.map((row) => row.layer)), heads = ascending(rows.map((row) => row.head));
  const { layer = null, head = null } = chosen || {};
  const again = (change) => growthSection(section, view, { layer, head, ...change });
  const shown = rows.filter((row) => (layer === null || row.layer === layer) && (head === null || row.head === head));
  const every = (name, values) => (values.length < 2 ? [] :
    [[null, `all ${values.length}`], ...values.map((value) => [value, `${name} ${value}`])]);
  section.replaceChildren(
    make("h2", {}, "Growth with length"),
    make("p", {}, "Both scales are logarithmic, so a power law is a straight line. Dashed grey: the slopes of √n, " +
      "the worst case at a fixed radius, and of n to the power ¼."),
    make("div", { class: "controls" },
      choice("layers", every("layer", layers), layer, (value) => again({ layer: value })),
      choice("heads", every("head", heads), head, (value) => again({ head: value }))));
  const curves = [...groupBy(shown, (row) => `${row.layer}|${row.head}`).values()]
    .map((points) => ({ points, layer: points[0].layer, head: points[0].head, law: lawOf(points[0]),
      byLength: groupBy(points.filter((row) => row.value !== null), (row) => row.n) }))
    .sort((a, b) => a.layer - b.layer || a.head - b.head);
  if (shown.some(drawable)) section.append(growthFigure(section, curves, shown, layers));
  const laws = curves.map((curve) => curve.law).filter(Boolean);
  section.append(lawTable(curves, ascending(shown.map((row) => row.n))),
    make("div", { class: "controls buttons" },
      laws.length ? csvButton("laws", () => [laws, columnsOf("laws")], "CSV of the laws") : null));
}

const lawOf = (row) => LAWS.get(JSON.stringify(CURVE.map((name) => row[name] ?? null)));
const power = (value) => (Math.round(value * 100) / 100 + 0).toFixed(2).replace("-", "−");

function growthFigure(section, curves, shown, layers) {
  const inside = shown.filter(drawable), lengths = ascending(inside.map((row) => row.n));
  const least = inside.reduce((a, row) => Math.min(a, row.value), Infinity);
  const most = inside.reduce((a, row) => Math.max(a, row.value), 0), base = 0.72 * least;
  const plot = logPlot({ ...sizeFor(section), lengths, values: [lengths.length > 1 ? base : least, most],
    label: `Local Lipschitz constant against length, ${curves.length} curves, from ${number(least, 3)} ` +
      `to ${number(most, 3)}` });
  if (lengths.length > 1) guides(plot, lengths, base, most);
  const few = curves.length <= FEW, entries = [];
  curves.forEach((curve, i) => {
    const share = layers.length > 1 ? layers.indexOf(curve.layer) / (layers.length - 1) : 0.5;
    const stroke = few ? COLOURS[i] : colour(between(BLUE_TO_ORANGE, share));
    plot.svg.append(curveMarks(plot, curve, stroke, few ? MARKERS[i] : null));
    const law = curve.law ? [`: ${number(curve.law.constant, 3)} n`, make("sup", {}, power(curve.law.exponent))] : [];
    if (few) entries.push({ words: [mapName(curve), ...law], stroke, shape: MARKERS[i] });
  });
  if (!few && layers.length > 1) {
    entries.push({ words: `layer ${layers[0]}`, stroke: colour(BLUE_TO_ORANGE[0]) },
      { words: `layer ${layers.at(-1)}`, stroke: colour(BLUE_TO_ORANGE.at(-1)) });
  }
  const zeros = shown.length - inside.length;
  const caption = (few ? "Marks are samples with their intervals, lines their medians, dotted lines the fitted laws."
    : "Lines are medians over samples, from blue (first layer) to orange (last); choose a layer or head to see " +
      "samples, intervals and laws.") +
    (zeros ? ` ${zeros} values are zero or missing and have no place on this scale.` : "");
  return figure("growth", plot.svg, caption, () => [shown, columnsOf("measurements")], legend(entries));
}

// The median line; with a marker's shape also every sample and the law.
function curveMarks(plot, curve, stroke, shape) {
  const medians = [...curve.byLength].map(([n, rows]) => [n, median(rows.map((row) => row.value))])
    .filter(([, value]) => value > 0).sort((a, b) => a[0] - b[0]);
  const said = medians.map(([n, value]) => `${number(value, 3)} at ${n}`).join(", ");
  const group = draw("g", {}, draw("title", {}, `${mapName(curve)}: median ${said}`));
  if (!medians.length) return group;
  if (shape) for (const row of curve.points.filter(drawable)) group.append(...sampleMark(plot, row, stroke, shape));
  group.append(path(medians.map(([n, value]) => [plot.x(n), plot.y(value)]),
    { stroke, "stroke-width": shape ? 2 : 1.2, "stroke-opacity": shape ? 1 : 0.75 }));
  if (shape && curve.law) {
    const ends = [medians[0][0], medians.at(-1)[0]].map((n) => [n, curve.law.constant * n ** curve.law.exponent]);
    group.append(path(ends.map(([n, value]) => [plot.x(n), plot.y(value)]),
      { stroke, "stroke-width": 1.3, "stroke-dasharray": "3 3" }));
  }
  return group;
}

function sampleMark(plot, row, stroke, shape) {
  const x = plot.x(row.n), mark = marker(shape, x, plot.y(row.value), 3, stroke, 0.6);
  const ends = `${number(row.lower)} to ${row.upper === null ? "∞" : number(row.upper)}`;
  mark.append(draw("title", {}, `${mapName(row)}, n = ${row.n}, sample ${row.sample}: ${number(row.value)} (${ends}), ` +
    row.status));
  if (!(row.lower > 0) || row.upper === null) return [mark];
  return [mark, draw("line", { x1: x, x2: x, y1: plot.y(row.lower), y2: plot.y(row.upper), stroke })];
}

function guides(plot, lengths, base, most) {
  const [first, last] = [lengths[0], lengths.at(-1)];
  for (const [slope, words] of [[0.5, ["√n"]], [0.25, ["n", draw("tspan", { dy: -4, "font-size": "9px" }, "1/4")]]]) {
    const reach = Math.min(last, first * (1.1 * most / base) ** (1 / slope)), end = base * (reach / first) ** slope;
    plot.svg.append(path([[plot.x(first), plot.y(base)], [plot.x(reach), plot.y(end)]],
      { class: "guide", "stroke-dasharray": "6 4" }),
    draw("text", { class: "faint", x: plot.x(reach) + 6, y: plot.y(end) + 4 }, ...words));
  }
}

function lawTable(curves, lengths) {
  const step = Math.ceil(lengths.length / 6);
  const some = lengths.length <= 7 ? lengths : lengths.filter((_, i) => i % step === 0 || i === lengths.length - 1);
  const heads = curves.some((curve) => curve.head !== null);
  const at = (curve, n) => {
    const rows = curve.byLength.get(n);
    return rows ? number(median(rows.map((row) => row.value)), 3) : "";
  };
  const ends = (law) => (law && law.exponent_low !== null ? `${power(law.exponent_low)} … ${power(law.exponent_high)}` : "");
  const unfinished = (curve) => curve.points.filter((row) => !DONE.includes(row.status)).length;
  return htmlTable(curves, [["layer", (curve) => curve.layer ?? "all", "number"],
    ...(heads ? [["head", (curve) => curve.head, "number"]] : []),
    ...some.map((n) => [`n = ${n.toLocaleString("en")}`, (curve) => at(curve, n), "number"]),
    ["α", (curve) => (curve.law ? power(curve.law.exponent) : ""), "number"],
    ["95 % interval of α", (curve) => ends(curve.law), "number"],
    ["is it Lip ≈ C nᵅ?", (curve) => (curve.law ? curve.law.verdict : ""), "wide"],
    ...(curves.some(unfinished) ? [["not converged", (curve) => unfinished(curve) || "", "number"]] : [])],
  "Median Lip over samples at each length, and the power law fitted to all samples");
}
