"use strict";
// Growth with length: the chart of the selected curves and the table of fitted laws.

const ACCEPTED_STATUSES = ["converged", "residual", "as released"];

function growthSection(section, view, chosen) {
  const rows = MEASURED.filter((row) => viewOf(row) === view);
  section.hidden = !rows.length;
  if (!rows.length) return;
  const layers = ascending(rows.map((row) => row.layer)), heads = ascending(rows.map((row) => row.head));
  const { layer = null, head = null } = chosen || {};
  const redraw = (change) => growthSection(section, view, { layer, head, ...change });
  const shown = rows.filter((row) => (layer === null || row.layer === layer) && (head === null || row.head === head));
  const options = (name, values) => (values.length < 2 ? [] :
    [[null, `all ${values.length}`], ...values.map((value) => [value, `${name} ${value}`])]);
  section.replaceChildren(
    make("h2", {}, "Growth with length"),
    make("p", {}, "Both scales are logarithmic, so a power law is a straight line. Grey: the slopes of √n, dashed, " +
      "the worst case at a fixed radius, and of n to the power ¼, dotted."),
    make("div", { class: "controls" },
      choice("layers", options("layer", layers), layer, (value) => redraw({ layer: value })),
      choice("heads", options("head", heads), head, (value) => redraw({ head: value }))));
  const curves = [...groupBy(shown, (row) => `${row.layer}|${row.head}`).values()]
    .map((points) => ({ points, layer: points[0].layer, head: points[0].head, law: lawOf(points[0]),
      byLength: groupBy(points.filter((row) => row.value !== null), (row) => row.n) }))
    .sort((a, b) => a.layer - b.layer || a.head - b.head);
  const chart = VIEWS.get(view).growth;
  const series = chart ? chart.series.filter((one) => (layer === null || one.layer === layer)
    && (head === null || one.head === head)) : [];
  if (series.length) {
    section.append(chartFigure(section, "growth", { ...chart, series }, () => [shown, columnsOf("measurements")]));
  }
  const laws = curves.map((curve) => curve.law).filter(Boolean);
  section.append(lawTable(curves, ascending(shown.map((row) => row.n))),
    make("div", { class: "controls buttons" },
      laws.length ? csvButton("laws", () => [laws, columnsOf("laws")], "CSV of the laws") : null));
}

const lawOf = (row) => LAWS.get(JSON.stringify(CURVE.map((name) => row[name] ?? null)));
// A law that is rejected or has too few lengths is not shown.
const isShown = (law) => law && law.shown;
// The confidence of the intervals of exponents; all laws of a page have the same.
const level = (curves) => `${100 * (curves.find((curve) => curve.law)?.law.confidence ?? 0.95)} %`;
const power = (value) => (Math.round(value * 100) / 100 + 0).toFixed(2).replace("-", "−");

function lawTable(curves, lengths) {
  const step = Math.ceil(lengths.length / 6);
  const shownLengths = lengths.length <= 7 ? lengths : lengths.filter((_, i) => i % step === 0 || i === lengths.length - 1);
  const heads = curves.some((curve) => curve.head !== null);
  const at = (curve, n) => {
    const rows = curve.byLength.get(n);
    return rows ? number(median(rows.map((row) => row.value)), 3) : "";
  };
  const ends = (law) => (isShown(law) && law.exponent_low !== null ? `${power(law.exponent_low)} … ${power(law.exponent_high)}` : "");
  const unfinished = (curve) => curve.points.filter((row) => !ACCEPTED_STATUSES.includes(row.status)).length;
  return htmlTable(curves, [["layer", (curve) => curve.layer ?? "all", "number"],
    ...(heads ? [["head", (curve) => curve.head, "number"]] : []),
    ...shownLengths.map((n) => [`n\u00a0=\u00a0${n.toLocaleString("en")}`, (curve) => at(curve, n), "number"]),
    ["α", (curve) => (isShown(curve.law) ? power(curve.law.exponent) : ""), "number"],
    [`${level(curves)} interval of α`, (curve) => ends(curve.law), "number"],
    ["is it Lip ≈ C nᵅ?", (curve) => (curve.law ? curve.law.verdict : ""), "wide"],
    ...(curves.some(unfinished) ? [["not converged", (curve) => unfinished(curve) || "", "number"]] : [])],
  "Median Lip over samples at each length, and the power law fitted to all samples");
}
