"use strict";
// Plots as inline SVG: axes, lines, and the file that a plot becomes.

// Okabe and Ito's colours with the faint two replaced; each keeps 3:1 on white and on the dark page alike.
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7b7fd9", "#a87b00"];
const DASHES = ["", "7 3", "2 3", "8 3 2 3"];
const CIVIDIS = [[0, 32, 77], [49, 68, 107], [102, 105, 112], [149, 143, 120], [202, 185, 105], [255, 234, 70]];
const BLUE_TO_ORANGE = [[0, 114, 178], [95, 120, 140], [140, 115, 105], [213, 94, 0]];

function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null && value !== undefined) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function between(stops, share) {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1), i = Math.min(Math.floor(place), stops.length - 2);
  return stops[i].map((low, k) => Math.round(low + (place - i) * (stops[i + 1][k] - low)));
}
const colour = (rgb) => `rgb(${rgb.join(",")})`;
function inkOn(rgb) {
  const [r, g, b] = rgb.map((c) => (c / 255 <= 0.03928 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000000" : "#ffffff";
}

const logScale = ([low, high], [from, to]) => (value) => from + ((Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low) || 1)) * (to - from);

function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const digit of high / low < 30 ? [1, 2, 3, 5, 7] : [1, 2, 5]) {
      const tick = digit * 10 ** power;
      if (tick >= low && tick <= high) ticks.push(tick);
    }
  }
  return ticks.length > 9 ? ticks.filter((tick) => Number.isInteger(Math.round(Math.log10(tick) * 1e9) / 1e9)) : ticks;
}

const plain = (value) => (value >= 1e6 || value < 1e-3 ? value.toExponential(0).replace("e+", "e") : Number(value.toPrecision(6)).toLocaleString("en"));

// An empty plot on log scales: {svg, x, y} with functions from values to places.
function logPlot({ width, height, lengths, values, label }) {
  const left = 52, right = 46, top = 22, bottom = 44;
  const wide = [lengths[0], lengths.at(-1)];
  const xs = wide[0] === wide[1] ? [wide[0] / 2, wide[0] * 2] : [wide[0] / 1.08, wide[1] * 1.08];
  const low = Math.min(...values) / 1.15, high = Math.max(...values) * 1.15;
  const x = logScale(xs, [left, width - right]), y = logScale([low, high], [height - bottom, top]);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, draw("title", {}, label));
  for (const tick of logTicks(low, high)) {
    svg.append(draw("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }),
      draw("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, plain(tick)));
  }
  let last = -Infinity;
  for (const n of lengths) {
    const words = n.toLocaleString("en"), half = 3.6 * words.length;
    svg.append(draw("line", { class: "grid", x1: x(n), x2: x(n), y1: top, y2: height - bottom }));
    if (x(n) - half < last + 8) continue;
    last = x(n) + half;
    svg.append(draw("text", { x: x(n), y: height - bottom + 18, "text-anchor": "middle" }, words));
  }
  svg.append(draw("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, "length n (tokens)"),
    draw("text", { x: left - 44, y: 12 }, "Lip = ‖D f‖₂"));
  return { svg, x, y, right: width - right };
}

function marker(shape, x, y, size, fill, opacity) {
  const d = { circle: `M${x - size},${y}a${size},${size} 0 1 0 ${2 * size},0a${size},${size} 0 1 0 ${-2 * size},0`,
    square: `M${x - size},${y - size}h${2 * size}v${2 * size}h${-2 * size}z`, up: `M${x},${y - 1.3 * size}l${1.2 * size},${2.2 * size}h${-2.4 * size}z`,
    diamond: `M${x},${y - 1.4 * size}l${1.4 * size},${1.4 * size}l${-1.4 * size},${1.4 * size}l${-1.4 * size},${-1.4 * size}z`,
    down: `M${x},${y + 1.3 * size}l${1.2 * size},${-2.2 * size}h${-2.4 * size}z`, bar: `M${x - 1.4 * size},${y - size / 2}h${2.8 * size}v${size}h${-2.8 * size}z` }[shape];
  return draw("path", { d, fill, "fill-opacity": opacity });
}
const MARKERS = ["circle", "square", "up", "diamond", "down", "bar"];
const path = (points, attributes) => draw("path", { d: "M" + points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join("L"), fill: "none", ...attributes });

function legend(entries) {
  return make("ul", { class: "legend" }, ...entries.map(({ words, stroke, dash, shape, ink }) => {
    const key = draw("svg", { viewBox: "0 0 34 12", "aria-hidden": "true" });
    key.append(draw("line", { x1: 1, x2: 33, y1: 6, y2: 6, stroke, class: ink ? "ink" : null, "stroke-width": 2, "stroke-dasharray": dash || null }));
    if (shape) key.append(marker(shape, 17, 6, 3.5, stroke, 1));
    return make("li", {}, key, words);
  }));
}

// The plot as a file of its own: what the page's style said is written into each element.
function svgText(svg) {
  const copy = svg.cloneNode(true), known = new Map();
  const from = svg.querySelectorAll("*"), to = copy.querySelectorAll("*");
  from.forEach((element, i) => {
    const text = element.tagName === "text", name = element.getAttribute("class");
    if (!text && !name) return;
    const key = `${element.tagName} ${name} ${element.getAttribute("style")}`;
    if (!known.has(key)) {
      const style = getComputedStyle(element);
      known.set(key, text ? { fill: style.fill, "font-family": "sans-serif", "font-size": style.fontSize } : { fill: style.fill, stroke: style.stroke, "stroke-width": style.strokeWidth });
    }
    for (const [what, value] of Object.entries(known.get(key))) if (!(text && what === "fill" && element.hasAttribute("style"))) to[i].setAttribute(what, value);
  });
  const [, , width, height] = svg.getAttribute("viewBox").split(" ");
  const paper = getComputedStyle(document.body).backgroundColor;
  copy.prepend(draw("rect", { width, height, fill: paper }));
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(copy)}\n`;
}

// A figure with its buttons; `contents` gives [rows, columns] of the data that it shows.
function figure(name, svg, caption, contents, ...more) {
  return make("figure", { id: `figure-${name}` }, svg, ...more, make("figcaption", {}, caption),
    make("div", { class: "controls buttons" }, csvButton(name, contents),
      make("button", { type: "button", "data-svg": name, "aria-label": `Save the plot ${name} as SVG`, onclick: () => save(`${name}.svg`, svgText(svg), "image/svg+xml") }, "↓ SVG")));
}

const roomFor = (element) => Math.max(300, Math.min(1050, element.clientWidth || 700));
