"use strict";
// Draws the charts of chart.py as inline SVG, and saves them as SVG files.

// The palette of Okabe and Ito with its two palest colours replaced: contrast 3:1 on light and dark backgrounds.
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7b7fd9", "#a87b00"];
const MARKERS = ["circle", "square", "up", "diamond", "down", "bar"];
const CIVIDIS = [[0, 32, 77], [49, 68, 107], [102, 105, 112], [149, 143, 120], [202, 185, 105], [255, 234, 70]];
const BLUE_TO_ORANGE = [[0, 114, 178], [95, 120, 140], [140, 115, 105], [213, 94, 0]];
const SVG = "http://www.w3.org/2000/svg";

function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function interpolate(stops, share) {
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1), i = Math.min(Math.floor(at), stops.length - 2);
  return stops[i].map((low, k) => Math.round(low + (at - i) * (stops[i + 1][k] - low)));
}

const colour = (rgb) => `rgb(${rgb.join(",")})`;

// Returns black or white, whichever has the higher contrast on a colour.
function textColourOn(rgb) {
  const [r, g, b] = rgb.map((c) => (c / 255 <= 0.03928 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000000" : "#ffffff";
}

const chartWidth = (element) => Math.max(300, Math.min(1050, element.clientWidth || 700));

function sizeFor(element) {
  const width = chartWidth(element);
  return { width, height: Math.round(Math.max(300, Math.min(460, 0.55 * width))) };
}

function logScale([low, high], [from, to]) {
  const span = Math.log(high / low) || 1;
  return (value) => from + (Math.log(value / low) / span) * (to - from);
}

function logTicks(low, high) {
  const ticks = [], digits = high / low < 30 ? [1, 2, 3, 5, 7] : high / low < 1e3 ? [1, 2, 5] : [1];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    ticks.push(...digits.map((digit) => digit * 10 ** power).filter((tick) => tick >= low && tick <= high));
  }
  return ticks;
}

const tickText = (value) => (value >= 1e6 || value < 1e-3 ? value.toExponential(0).replace("e+", "e")
  : Number(value.toPrecision(6)).toLocaleString("en"));

// Returns an empty plot on log scales, and the functions from values to pixel coordinates.
function logPlot({ width, height, lengths, values, label, axes }) {
  const left = 52, right = width - 46, top = 22, bottom = height - 44, [first, last] = [lengths[0], lengths.at(-1)];
  const low = Math.min(...values) / 1.15, high = Math.max(...values) * 1.15;
  const x = logScale(first === last ? [first / 2, first * 2] : [first / 1.08, last * 1.08], [left, right]);
  const y = logScale([low, high], [bottom, top]);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    draw("title", {}, label));
  for (const tick of logTicks(low, high)) {
    svg.append(draw("line", { class: "grid", x1: left, x2: right, y1: y(tick), y2: y(tick) }),
      draw("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, tickText(tick)));
  }
  let lastRight = -Infinity;
  for (const n of lengths) {
    const label = n.toLocaleString("en"), half = 3.6 * label.length;
    if (x(n) - half < lastRight + 8) continue;
    lastRight = x(n) + half;
    svg.append(draw("line", { class: "grid", x1: x(n), x2: x(n), y1: top, y2: bottom }),
      draw("text", { x: x(n), y: bottom + 18, "text-anchor": "middle" }, label));
  }
  svg.append(draw("text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, ...typeset(axes.x_axis.label)),
    draw("text", { x: 0, y: 12 }, ...typeset(axes.y_axis.label)));
  return { svg, x, y };
}

function marker(shape, x, y, r, fill, opacity) {
  const d = {
    circle: `M${x - r},${y}a${r},${r} 0 1 0 ${2 * r},0a${r},${r} 0 1 0 ${-2 * r},0`,
    square: `M${x - r},${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
    up: `M${x},${y - 1.3 * r}l${1.2 * r},${2.2 * r}h${-2.4 * r}z`,
    diamond: `M${x},${y - 1.4 * r}l${1.4 * r},${1.4 * r}l${-1.4 * r},${1.4 * r}l${-1.4 * r},${-1.4 * r}z`,
    down: `M${x},${y + 1.3 * r}l${1.2 * r},${-2.2 * r}h${-2.4 * r}z`,
    bar: `M${x - 1.4 * r},${y - r / 2}h${2.8 * r}v${r}h${-2.8 * r}z`,
  }[shape];
  return draw("path", { d, fill, "fill-opacity": opacity });
}

function path(points, attributes) {
  const d = "M" + points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L");
  return draw("path", { d, fill: "none", ...attributes });
}

// ---- charts ---------------------------------------------------------------------------------------------------

const MAX_DETAILED_SERIES = 6; // as in chart.py: with more series of samples, only their median lines are drawn
const DASH_ARRAYS = { solid: "", dashed: "6 4", dotted: "2 3", dashdot: "8 3 2 3" };

// Draws a chart in the format of chart.py; returns {svg, legend, caption}. A series may refer to `rows` of the
// table of measurements instead of containing its points.
function drawChart(section, chart) {
  return chart.kind === "heat" ? heatMap(section, chart) : linePlot(section, chart);
}

// Converts superscripts and subscripts of mathtext such as n$^{1/4}$ to SVG.
function typeset(text) {
  return text.split(/(\$[_^]\{?[^}$]*\}?\$)/).map((part) => {
    const [, kind, small] = part.match(/^\$([_^])\{?([^}$]*)\}?\$$/) || [];
    return small ? draw("tspan", { "font-size": "9px", "baseline-shift": kind === "^" ? "super" : "sub" }, small) : part;
  });
}

function pointsOf(series) {
  if (series.points) return series.points;
  const at = (list, i) => (list ? list[i] ?? null : undefined);
  series.points = series.rows
    ? series.rows.map((i) => MEASURED[i]).map((row) => ({ x: row.n, y: row.value, lower: row.lower, upper: row.upper, row }))
    : series.x.map((x, i) => ({ x, y: series.y[i], lower: at(series.lower, i), upper: at(series.upper, i) }));
  return series.points;
}

function mediansOf(series) {
  const groups = groupBy(pointsOf(series), (point) => point.x);
  return [...groups].map(([x, points]) => [x, median(points.map((point) => point.y))]).sort((a, b) => a[0] - b[0]);
}

function linePlot(section, chart) {
  const samples = chart.series.filter((series) => series.has_samples), detailed = samples.length <= MAX_DETAILED_SERIES;
  const points = chart.series.flatMap((series) => (detailed ? pointsOf(series).map(({ x, y }) => [x, y]) : mediansOf(series)));
  const lengths = ascending(points.map(([x]) => x));
  const yMin = points.reduce((a, [, y]) => Math.min(a, y), Infinity), yMax = points.reduce((a, [, y]) => Math.max(a, y), 0);
  const slopes = lengths.length > 1 ? chart.reference_slopes || [] : [], yStart = 0.72 * yMin;
  const plot = logPlot({ ...sizeFor(section), lengths, values: [slopes.length ? yStart : yMin, yMax], axes: chart,
    label: `${chart.title}: ${chart.series.length} curves against length, from ${number(yMin, 3)} to ${number(yMax, 3)}` });
  for (const { exponent, label, linestyle } of slopes) {
    const xStart = lengths[0], xEnd = Math.min(lengths.at(-1), xStart * (1.1 * yMax / yStart) ** (1 / exponent));
    const yEnd = yStart * (xEnd / xStart) ** exponent;
    plot.svg.append(path([[plot.x(xStart), plot.y(yStart)], [plot.x(xEnd), plot.y(yEnd)]],
      { class: "guide", "stroke-dasharray": DASH_ARRAYS[linestyle || "dashed"] }),
    draw("text", { class: "muted", x: plot.x(xEnd) + 6, y: plot.y(yEnd) + 4 }, ...typeset(label)));
  }
  for (const band of chart.bands || []) {
    const edge = (values) => band.x.map((x, i) => [plot.x(x), plot.y(values[i])]);
    plot.svg.append(path([...edge(band.lower), ...edge(band.upper).reverse()], { class: "band" }));
  }
  const entries = (chart.bands || []).filter((band) => band.label).map((band) => ({ text: band.label, band: true }));
  let paletteIndex = 0;
  for (const series of chart.series) {
    const index = series.colour === undefined ? paletteIndex++ : series.colour, foreground = index === "foreground";
    const share = samples.length > 1 ? index / (samples.length - 1) : 0.5;
    const stroke = foreground ? null : series.has_samples && !detailed ? colour(interpolate(BLUE_TO_ORANGE, share))
      : COLOURS[index % COLOURS.length];
    const shape = series.show_markers && !(series.has_samples && !detailed) ? MARKERS[(series.marker_index ?? index) % MARKERS.length] : null;
    plot.svg.append(drawSeries(plot, series, { stroke, shape, foreground, lineOnly: series.has_samples && !detailed }));
    const law = series.law && detailed ? [`: ${number(series.law.constant, 3)} n`,
      make("sup", {}, power(series.law.exponent))] : [];
    const firstOrLast = !detailed && (series === samples[0] || series === samples.at(-1));
    if (series.has_samples ? detailed || firstOrLast : series.label) {
      entries.push({ text: [series.label || "", ...law], stroke, foreground, shape, dash: DASH_ARRAYS[series.linestyle || "solid"] });
    }
  }
  const omitted = samples.reduce((sum, series) => sum + (series.omitted_count || 0), 0);
  const caption = [detailed ? chart.caption : chart.caption_without_details,
    omitted ? `${omitted} values are zero or missing and cannot be drawn on a log scale.` : ""];
  return { svg: plot.svg, legend: legend(entries), caption: caption.filter(Boolean).join(" ") };
}

// Draws the line (through the medians of samples), the markers with intervals, and the law of a series.
function drawSeries(plot, series, { stroke, shape, foreground, lineOnly }) {
  const line = series.has_samples ? mediansOf(series) : pointsOf(series).map(({ x, y }) => [x, y]);
  const values = line.map(([x, y]) => `${number(y, 3)} at ${x}`).join(", ");
  const group = draw("g", {}, draw("title", {}, `${series.label || ""}${series.has_samples ? ": median" : ":"} ${values}`));
  if (shape) for (const point of pointsOf(series)) group.append(...pointMarker(plot, series, point, { stroke, shape, foreground }));
  if (series.linestyle) {
    let points = line.map(([x, y]) => [plot.x(x), plot.y(y)]);
    if (points.length === 1 && !shape) points = [-14, 14].map((side) => [points[0][0] + side, points[0][1]]);
    group.append(path(points, { stroke, class: foreground ? "foreground" : null, "stroke-width": lineOnly ? 1.2 : foreground ? 2.4 : 2,
      "stroke-opacity": lineOnly ? 0.75 : 1, "stroke-dasharray": DASH_ARRAYS[series.linestyle] || null }));
  }
  if (series.law && shape) {
    const ends = [line[0][0], line.at(-1)[0]].map((n) => [n, series.law.constant * n ** series.law.exponent]);
    group.append(path(ends.map(([n, value]) => [plot.x(n), plot.y(value)]),
      { stroke, "stroke-width": 1.3, "stroke-dasharray": DASH_ARRAYS[series.law_linestyle || "dashed"] }));
  }
  return group;
}

function pointMarker(plot, series, { x, y, lower, upper, row }, { stroke, shape, foreground }) {
  const at = plot.x(x), mark = marker(shape, at, plot.y(y), foreground ? 4 : 3, stroke, foreground ? 1 : 0.6);
  if (foreground) mark.setAttribute("class", "foreground-fill");
  const ends = lower === undefined ? "" : ` (${number(lower)} to ${upper === null ? "∞" : number(upper)})`;
  const sample = row ? `, sample ${row.sample}` : "", status = row && row.status ? `, ${row.status}` : "";
  mark.append(draw("title", {}, `${series.label || ""}, n = ${x}${sample}: ${number(y)}${ends}${status}`));
  if (!(lower > 0) || upper === null || upper === undefined) return [mark];
  return [mark, draw("line", { x1: at, x2: at, y1: plot.y(lower), y2: plot.y(upper), stroke, class: foreground ? "foreground" : null })];
}

function heatMap(section, { title, x_axis: x, y_axis: y, columns, rows, values }) {
  const width = chartWidth(section), left = 44, top = 46, side = Math.min(64, (width - left - 4) / columns.length);
  const tall = Math.max(15, Math.min(26, side)), bottom = top + rows.length * tall, height = bottom + 34;
  const wide = Math.max(300, left + columns.length * side + 4), known = values.flat().filter((value) => value !== null);
  const low = Math.min(...known), high = Math.max(...known);
  const shade = (value) => interpolate(CIVIDIS, high > low ? Math.log(value / low) / Math.log(high / low) : 0.5);
  const label = `${title}: ${rows.length} × ${columns.length}, from ${number(low, 3)} to ${number(high, 3)}`;
  const svg = draw("svg", { viewBox: `0 0 ${wide} ${height}`, role: "img", "aria-label": label }, draw("title", {}, label));
  svg.style.maxWidth = `${wide}px`;
  const text = (content, at, line, anchor, more) =>
    svg.append(draw("text", { x: at, y: line, "text-anchor": anchor, ...more }, content));
  text(title, 0, 13, "start", { class: "strong" });
  for (let i = 0; i < 60; i++) {
    svg.append(draw("rect", { x: left + 2 * i, y: 22, width: 2.2, height: 9, fill: colour(interpolate(CIVIDIS, i / 59)) }));
  }
  text(number(low, 3), left - 6, 31, "end");
  text(`${number(high, 3)} (log scale)`, left + 126, 31, "start");
  const every = Math.ceil(26 / side), down = Math.ceil(13 / tall), middle = (top + bottom) / 2;
  columns.forEach((value, j) => {
    if (j % every === 0) text(value.toLocaleString("en"), left + (j + 0.5) * side, bottom + 15, "middle");
  });
  rows.forEach((value, i) => { if (i % down === 0) text(value, left - 6, top + (i + 0.5) * tall + 4, "end"); });
  text(x.label, left + columns.length * side / 2, height - 3, "middle", { class: "muted" });
  text(y.label, 10, middle, "middle", { class: "muted", transform: `rotate(-90 10 ${middle})` });
  values.forEach((line, i) => line.forEach((value, j) => {
    if (value === null) return;
    const at = left + j * side, under = top + i * tall, rgb = shade(value);
    svg.append(draw("rect", { x: at, y: under, width: side - 1, height: tall - 1, fill: colour(rgb) },
      draw("title", {}, `${y.label} ${rows[i]}, ${x.label} ${columns[j]}: ${number(value)}`)));
    if (side >= 36) {
      text(number(value, 3), at + side / 2 - 0.5, under + tall / 2 + 3.5, "middle",
        { style: `fill:${textColourOn(rgb)};font-size:11px` });
    }
  }));
  return { svg, legend: null, caption: "Dark is small, bright is large." };
}

function legend(entries) {
  return make("ul", { class: "legend" }, ...entries.map(({ text, stroke, dash, shape, foreground, band }) => {
    const key = draw("svg", { viewBox: "0 0 34 12", "aria-hidden": "true" }, band
      ? draw("rect", { class: "band", x: 1, y: 1, width: 32, height: 10 })
      : draw("line", { x1: 1, x2: 33, y1: 6, y2: 6, stroke, class: foreground ? "foreground" : null, "stroke-width": 2,
        "stroke-dasharray": dash || null }));
    if (shape) key.append(foreground ? draw("circle", { class: "foreground-fill", cx: 17, cy: 6, r: 3.5 }) : marker(shape, 17, 6, 3.5, stroke, 1));
    return make("li", {}, key, make("span", {}, ...[text].flat()));
  }));
}

// Returns the plot as a standalone SVG file, with the computed style of the page as attributes.
function svgText(svg) {
  const copy = svg.cloneNode(true), styles = new Map(), copies = copy.querySelectorAll("*");
  svg.querySelectorAll("*").forEach((element, i) => {
    const text = element.tagName === "text", name = element.getAttribute("class");
    if (!text && !name) return;
    const key = `${element.tagName} ${name} ${element.getAttribute("style")}`;
    if (!styles.has(key)) {
      const style = getComputedStyle(element);
      styles.set(key, text
        ? { fill: style.fill, "font-family": "sans-serif", "font-size": style.fontSize, "font-weight": style.fontWeight }
        : { fill: style.fill, stroke: style.stroke, "stroke-width": style.strokeWidth });
    }
    for (const [what, value] of Object.entries(styles.get(key))) copies[i].setAttribute(what, value);
  });
  const [, , width, height] = svg.getAttribute("viewBox").split(" ");
  copy.prepend(draw("rect", { width, height, fill: getComputedStyle(document.body).backgroundColor }));
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(copy)}\n`;
}

// Returns a chart as a <figure>; `contents` returns [rows, columns] of its data for the CSV export.
function chartFigure(section, name, chart, contents, ...more) {
  const { svg, legend: entries, caption } = drawChart(section, chart);
  return figure(name, svg, caption, contents, ...(entries ? [entries] : []), ...more);
}

// Returns a <figure> with its download buttons.
function figure(name, svg, caption, contents, ...more) {
  const saveSvg = () => save(`${name}.svg`, svgText(svg), "image/svg+xml");
  return make("figure", { id: `figure-${name}` }, svg, ...more, make("figcaption", {}, caption),
    make("div", { class: "controls buttons" }, csvButton(name, contents),
      make("button", { type: "button", "data-svg": name, "aria-label": `Save the plot ${name} as SVG`, onclick: saveSvg },
        "↓ SVG")));
}
