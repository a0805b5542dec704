"use strict";
// Charts as inline SVG: one function draws what chart.py describes; and the file that a plot becomes.

// Okabe and Ito's colours with the faint two replaced; each keeps 3:1 on white and on the dark page alike.
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

function between(stops, share) {
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1), i = Math.min(Math.floor(at), stops.length - 2);
  return stops[i].map((low, k) => Math.round(low + (at - i) * (stops[i + 1][k] - low)));
}

const colour = (rgb) => `rgb(${rgb.join(",")})`;

// Black or white, whichever reads better on a colour.
function inkOn(rgb) {
  const [r, g, b] = rgb.map((c) => (c / 255 <= 0.03928 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000000" : "#ffffff";
}

const roomFor = (element) => Math.max(300, Math.min(1050, element.clientWidth || 700));

function sizeFor(element) {
  const width = roomFor(element);
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

const plain = (value) => (value >= 1e6 || value < 1e-3 ? value.toExponential(0).replace("e+", "e")
  : Number(value.toPrecision(6)).toLocaleString("en"));

// An empty plot on log scales, with functions from values to places.
function logPlot({ width, height, lengths, values, label, axes }) {
  const left = 52, right = width - 46, top = 22, bottom = height - 44, [first, last] = [lengths[0], lengths.at(-1)];
  const low = Math.min(...values) / 1.15, high = Math.max(...values) * 1.15;
  const x = logScale(first === last ? [first / 2, first * 2] : [first / 1.08, last * 1.08], [left, right]);
  const y = logScale([low, high], [bottom, top]);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    draw("title", {}, label));
  for (const tick of logTicks(low, high)) {
    svg.append(draw("line", { class: "grid", x1: left, x2: right, y1: y(tick), y2: y(tick) }),
      draw("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, plain(tick)));
  }
  let taken = -Infinity;
  for (const n of lengths) {
    const words = n.toLocaleString("en"), half = 3.6 * words.length;
    if (x(n) - half < taken + 8) continue;
    taken = x(n) + half;
    svg.append(draw("line", { class: "grid", x1: x(n), x2: x(n), y1: top, y2: bottom }),
      draw("text", { x: x(n), y: bottom + 18, "text-anchor": "middle" }, words));
  }
  svg.append(draw("text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, ...typeset(axes.x.label)),
    draw("text", { x: 0, y: 12 }, ...typeset(axes.y.label)));
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

// ---- one function for every chart -------------------------------------------------------------------------------

const FEW = 6; // series of samples that get colours, marks, intervals and laws of their own
const LINES = { solid: "", dashed: "6 4", dotted: "2 3", dashdot: "8 3 2 3" };

// A chart, as chart.py describes it, as {svg, legend, caption}. Series of samples may have `rows` of measurements.
function drawChart(section, chart) {
  return chart.kind === "heat" ? heatMap(section, chart) : linePlot(section, chart);
}

// Words with powers and indices: n$^{1/4}$.
function typeset(words) {
  return words.split(/(\$[_^]\{?[^}$]*\}?\$)/).map((part) => {
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
  const samples = chart.series.filter((series) => series.samples), few = samples.length <= FEW;
  const every = chart.series.flatMap((series) => (few ? pointsOf(series).map(({ x, y }) => [x, y]) : mediansOf(series)));
  const lengths = ascending(every.map(([x]) => x));
  const least = every.reduce((a, [, y]) => Math.min(a, y), Infinity), most = every.reduce((a, [, y]) => Math.max(a, y), 0);
  const slopes = lengths.length > 1 ? chart.slopes || [] : [], base = 0.72 * least;
  const plot = logPlot({ ...sizeFor(section), lengths, values: [slopes.length ? base : least, most], axes: chart,
    label: `${chart.title}: ${chart.series.length} curves against length, from ${number(least, 3)} to ${number(most, 3)}` });
  for (const { power, name, line } of slopes) {
    const first = lengths[0], reach = Math.min(lengths.at(-1), first * (1.1 * most / base) ** (1 / power));
    const end = base * (reach / first) ** power;
    plot.svg.append(path([[plot.x(first), plot.y(base)], [plot.x(reach), plot.y(end)]],
      { class: "guide", "stroke-dasharray": LINES[line || "dashed"] }),
    draw("text", { class: "faint", x: plot.x(reach) + 6, y: plot.y(end) + 4 }, ...typeset(name)));
  }
  for (const band of chart.bands || []) {
    const edge = (values) => band.x.map((x, i) => [plot.x(x), plot.y(values[i])]);
    plot.svg.append(path([...edge(band.low), ...edge(band.high).reverse()], { class: "band" }));
  }
  const entries = (chart.bands || []).filter((band) => band.name).map((band) => ({ words: band.name, band: true }));
  let own = 0;
  for (const series of chart.series) {
    const place = series.colour === undefined ? own++ : series.colour, ink = place === "ink";
    const share = samples.length > 1 ? place / (samples.length - 1) : 0.5;
    const stroke = ink ? null : series.samples && !few ? colour(between(BLUE_TO_ORANGE, share))
      : COLOURS[place % COLOURS.length];
    const shape = series.marks && !(series.samples && !few) ? MARKERS[(series.marker ?? place) % MARKERS.length] : null;
    plot.svg.append(seriesMarks(plot, series, { stroke, shape, ink, thin: series.samples && !few }));
    const law = series.law && few ? [`: ${number(series.law.constant, 3)} n`,
      make("sup", {}, power(series.law.exponent))] : [];
    const end = !few && (series === samples[0] || series === samples.at(-1));
    if (series.samples ? few || end : series.name) {
      entries.push({ words: [series.name || "", ...law], stroke, ink, shape, dash: LINES[series.line || "solid"] });
    }
  }
  const zeros = samples.reduce((sum, series) => sum + (series.omitted || 0), 0);
  const caption = [few ? chart.caption : chart.caption_of_many,
    zeros ? `${zeros} values are zero or missing and have no place on this scale.` : ""];
  return { svg: plot.svg, legend: legend(entries), caption: caption.filter(Boolean).join(" ") };
}

// The line (of samples through their medians), the marks with intervals, the law.
function seriesMarks(plot, series, { stroke, shape, ink, thin }) {
  const line = series.samples ? mediansOf(series) : pointsOf(series).map(({ x, y }) => [x, y]);
  const said = line.map(([x, y]) => `${number(y, 3)} at ${x}`).join(", ");
  const group = draw("g", {}, draw("title", {}, `${series.name || ""}${series.samples ? ": median" : ":"} ${said}`));
  if (shape) for (const point of pointsOf(series)) group.append(...pointMark(plot, series, point, { stroke, shape, ink }));
  if (series.line) {
    let places = line.map(([x, y]) => [plot.x(x), plot.y(y)]);
    if (places.length === 1 && !shape) places = [-14, 14].map((side) => [places[0][0] + side, places[0][1]]);
    group.append(path(places, { stroke, class: ink ? "ink" : null, "stroke-width": thin ? 1.2 : ink ? 2.4 : 2,
      "stroke-opacity": thin ? 0.75 : 1, "stroke-dasharray": LINES[series.line] || null }));
  }
  if (series.law && shape) {
    const ends = [line[0][0], line.at(-1)[0]].map((n) => [n, series.law.constant * n ** series.law.exponent]);
    group.append(path(ends.map(([n, value]) => [plot.x(n), plot.y(value)]),
      { stroke, "stroke-width": 1.3, "stroke-dasharray": LINES[series.law_line || "dashed"] }));
  }
  return group;
}

function pointMark(plot, series, { x, y, lower, upper, row }, { stroke, shape, ink }) {
  const at = plot.x(x), mark = marker(shape, at, plot.y(y), ink ? 4 : 3, stroke, ink ? 1 : 0.6);
  if (ink) mark.setAttribute("class", "dot");
  const ends = lower === undefined ? "" : ` (${number(lower)} to ${upper === null ? "∞" : number(upper)})`;
  const sample = row ? `, sample ${row.sample}` : "", status = row && row.status ? `, ${row.status}` : "";
  mark.append(draw("title", {}, `${series.name || ""}, n = ${x}${sample}: ${number(y)}${ends}${status}`));
  if (!(lower > 0) || upper === null || upper === undefined) return [mark];
  return [mark, draw("line", { x1: at, x2: at, y1: plot.y(lower), y2: plot.y(upper), stroke, class: ink ? "ink" : null })];
}

function heatMap(section, { title, x, y, columns, rows, values }) {
  const width = roomFor(section), left = 44, top = 46, side = Math.min(64, (width - left - 4) / columns.length);
  const tall = Math.max(15, Math.min(26, side)), bottom = top + rows.length * tall, height = bottom + 34;
  const wide = Math.max(300, left + columns.length * side + 4), known = values.flat().filter((value) => value !== null);
  const low = Math.min(...known), high = Math.max(...known);
  const shade = (value) => between(CIVIDIS, high > low ? Math.log(value / low) / Math.log(high / low) : 0.5);
  const label = `${title}: ${rows.length} × ${columns.length}, from ${number(low, 3)} to ${number(high, 3)}`;
  const svg = draw("svg", { viewBox: `0 0 ${wide} ${height}`, role: "img", "aria-label": label }, draw("title", {}, label));
  svg.style.maxWidth = `${wide}px`;
  const text = (words, at, line, anchor, more) =>
    svg.append(draw("text", { x: at, y: line, "text-anchor": anchor, ...more }, words));
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
  rows.forEach((value, i) => { if (i % down === 0) text(value, left - 6, top + (i + 0.5) * tall + 4, "end"); });
  text(x.label, left + columns.length * side / 2, height - 3, "middle", { class: "faint" });
  text(y.label, 10, middle, "middle", { class: "faint", transform: `rotate(-90 10 ${middle})` });
  values.forEach((line, i) => line.forEach((value, j) => {
    if (value === null) return;
    const at = left + j * side, under = top + i * tall, rgb = shade(value);
    svg.append(draw("rect", { x: at, y: under, width: side - 1, height: tall - 1, fill: colour(rgb) },
      draw("title", {}, `${y.label} ${rows[i]}, ${x.label} ${columns[j]}: ${number(value)}`)));
    if (side >= 36) {
      text(number(value, 3), at + side / 2 - 0.5, under + tall / 2 + 3.5, "middle",
        { style: `fill:${inkOn(rgb)};font-size:11px` });
    }
  }));
  return { svg, legend: null, caption: "Dark is small, bright is large." };
}

function legend(entries) {
  return make("ul", { class: "legend" }, ...entries.map(({ words, stroke, dash, shape, ink, band }) => {
    const key = draw("svg", { viewBox: "0 0 34 12", "aria-hidden": "true" }, band
      ? draw("rect", { class: "band", x: 1, y: 1, width: 32, height: 10 })
      : draw("line", { x1: 1, x2: 33, y1: 6, y2: 6, stroke, class: ink ? "ink" : null, "stroke-width": 2,
        "stroke-dasharray": dash || null }));
    if (shape) key.append(ink ? draw("circle", { class: "dot", cx: 17, cy: 6, r: 3.5 }) : marker(shape, 17, 6, 3.5, stroke, 1));
    return make("li", {}, key, make("span", {}, ...[words].flat()));
  }));
}

// The plot as a file of its own: what the page's style said is written into each element.
function svgText(svg) {
  const copy = svg.cloneNode(true), known = new Map(), copies = copy.querySelectorAll("*");
  svg.querySelectorAll("*").forEach((element, i) => {
    const text = element.tagName === "text", name = element.getAttribute("class");
    if (!text && !name) return;
    const key = `${element.tagName} ${name} ${element.getAttribute("style")}`;
    if (!known.has(key)) {
      const style = getComputedStyle(element);
      known.set(key, text
        ? { fill: style.fill, "font-family": "sans-serif", "font-size": style.fontSize, "font-weight": style.fontWeight }
        : { fill: style.fill, stroke: style.stroke, "stroke-width": style.strokeWidth });
    }
    for (const [what, value] of Object.entries(known.get(key))) copies[i].setAttribute(what, value);
  });
  const [, , width, height] = svg.getAttribute("viewBox").split(" ");
  copy.prepend(draw("rect", { width, height, fill: getComputedStyle(document.body).backgroundColor }));
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(copy)}\n`;
}

// A chart as a figure of the page; `contents` gives [rows, columns] of the data that it shows.
function chartFigure(section, name, chart, contents, ...more) {
  const { svg, legend: entries, caption } = drawChart(section, chart);
  return figure(name, svg, caption, contents, ...(entries ? [entries] : []), ...more);
}

// A figure with its buttons.
function figure(name, svg, caption, contents, ...more) {
  const asSvg = () => save(`${name}.svg`, svgText(svg), "image/svg+xml");
  return make("figure", { id: `figure-${name}` }, svg, ...more, make("figcaption", {}, caption),
    make("div", { class: "controls buttons" }, csvButton(name, contents),
      make("button", { type: "button", "data-svg": name, "aria-label": `Save the plot ${name} as SVG`, onclick: asSvg },
        "↓ SVG")));
}
