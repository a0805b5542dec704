"use strict";
// Plots as inline SVG: axes, lines, and the file that a plot becomes.

// Okabe and Ito's colours with the faint two replaced; each keeps 3:1 on white and on the dark page alike.
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7b7fd9", "#a87b00"];
const MARKERS = ["circle", "square", "up", "diamond", "down", "bar"];
const DASHES = ["", "7 3", "2 3", "8 3 2 3"];
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
function logPlot({ width, height, lengths, values, label }) {
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
  svg.append(draw("text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, "length n (tokens)"),
    draw("text", { x: 0, y: 12 }, "Lip = ‖D f‖₂"));
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

function legend(entries) {
  return make("ul", { class: "legend" }, ...entries.map(({ words, stroke, dash, shape, ink }) => {
    const key = draw("svg", { viewBox: "0 0 34 12", "aria-hidden": "true" }, draw("line", { x1: 1, x2: 33, y1: 6, y2: 6,
      stroke, class: ink ? "ink" : null, "stroke-width": 2, "stroke-dasharray": dash || null }));
    if (shape) key.append(marker(shape, 17, 6, 3.5, stroke, 1));
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

// A figure with its buttons; `contents` gives [rows, columns] of the data that it shows.
function figure(name, svg, caption, contents, ...more) {
  const asSvg = () => save(`${name}.svg`, svgText(svg), "image/svg+xml");
  return make("figure", { id: `figure-${name}` }, svg, ...more, make("figcaption", {}, caption),
    make("div", { class: "controls buttons" }, csvButton(name, contents),
      make("button", { type: "button", "data-svg": name, "aria-label": `Save the plot ${name} as SVG`, onclick: asSvg },
        "↓ SVG")));
}
