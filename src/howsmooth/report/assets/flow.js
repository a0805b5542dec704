"use strict";
// Tokens along depth on a canvas, instruments beside them. Everything drawn comes from the JSON block of the page.
const scenes = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
const dark = matchMedia("(prefers-color-scheme: dark)");
const TAIL = 8;          // saved depths that a token's tail reaches back
const SECONDS = 9;       // from the first depth to the last
const VIRIDIS = [[68, 1, 84], [71, 45, 123], [59, 82, 139], [44, 114, 142], [33, 145, 140], [40, 174, 128],
                 [94, 201, 98], [173, 220, 48], [253, 231, 37]];

let scene, paths, reach, frame = 0, playing = false, last = 0, turn = 0.6, tilt = 0.35, pointed = -1, charts = [];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const number = (v) => v === null || v === undefined ? "–" : v === 0 ? "0" :
  Math.abs(v) >= 1e5 || Math.abs(v) < 1e-3 ? v.toExponential(1).replace("+", "").replace(".0e", "e") : String(+v.toPrecision(3));

function decode(text) {  // little-endian 16-bit numbers
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0)), view = new DataView(bytes.buffer);
  return Float64Array.from({ length: bytes.length / 2 }, (_, i) => view.getUint16(2 * i, true));
}

function open(index) {
  scene = scenes[index];
  const raw = decode(scene.paths);
  const span = scene.high.map((high, k) => (high - scene.low[k]) || 1);
  paths = raw.map((v, i) => scene.low[i % scene.dim] + span[i % scene.dim] * v / 65535);
  const middle = scene.low.map((low, k) => (low + scene.high[k]) / 2);
  reach = 1e-12;  // how far a token is ever from the middle
  for (let i = 0; i < paths.length; i += scene.dim) reach = Math.max(reach, Math.hypot(...middle.map((m, k) => paths[i + k] - m)));
  at("title").textContent = scene.title;
  at("about").textContent = scene.about;
  at("facts").textContent = scene.facts;
  at("depth").max = scene.depths.length - 1;
  at("tokens").classList.toggle("turns", scene.dim === 3);
  at("tokens").setAttribute("aria-label", scene.title + ": " + scene.names.join(", "));
  at("turning").hidden = scene.dim !== 3;
  buildCharts();
  show(0);
}

// ---- tokens -----------------------------------------------------------------------------------------------------
function canvasOf(canvas) {  // cleared, in CSS pixels
  const box = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(box.width * ratio);
  canvas.height = Math.round(box.height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.font = "12px system-ui, 'Liberation Sans', sans-serif";
  return [pen, box.width, box.height];
}

function token(i, f) {  // coordinates at a depth between two saved ones
  const n = scene.count, d = scene.dim, low = Math.floor(f), share = f - low, high = Math.min(low + 1, scene.depths.length - 1);
  return Array.from({ length: d }, (_, k) =>
    (1 - share) * paths[(low * n + i) * d + k] + share * paths[(high * n + i) * d + k]);
}

function projection(width, height) {
  const margin = scene.dim === 3 ? 18 : 40;
  const middle = scene.low.map((low, k) => (low + scene.high[k]) / 2);
  const half = scene.low.map((low, k) => (scene.high[k] - low) / 2 || 1);
  if (scene.dim === 3) {
    const scale = (Math.min(width, height) / 2 - margin) / reach;
    const [ct, st, cp, sp] = [Math.cos(turn), Math.sin(turn), Math.cos(tilt), Math.sin(tilt)];
    return (p) => {
      const [x, y, z] = p.map((v, k) => v - middle[k]);
      const across = ct * x - st * y, away = st * x + ct * y;
      return [width / 2 + scale * across, height / 2 - scale * (cp * z + sp * away), (sp * z - cp * away) / reach];
    };
  }
  const room = [width / 2 - margin, height / 2 - margin];
  const scale = room.map((r, k) => r / half[k] * 0.97);
  if (scene.equal) scale.fill(Math.min(...scale));
  return (p) => [width / 2 + 12 + scale[0] * (p[0] - middle[0]), height / 2 - 10 - scale[1] * (p[1] - middle[1]), 0];
}

function tint(i, shades) {
  const s = scene.shades[i];
  if (scene.sink === i) return shades[1];
  if (scene.ordered) {
    const [from, to] = dark.matches ? [0.28, 1] : [0.05, 0.88], x = Math.min(from + s * (to - from), 0.999) * (VIRIDIS.length - 1), k = Math.floor(x), w = x - k;
    return "rgb(" + VIRIDIS[k].map((c, j) => Math.round(c * (1 - w) + VIRIDIS[k + 1][j] * w)).join() + ")";
  }
  return shades[s % shades.length];
}

function drawTokens() {
  const [pen, width, height] = canvasOf(at("tokens")), project = projection(width, height);
  const shades = [0, 1, 2, 3, 4, 5].map((k) => colour("--c" + k));
  pen.fillStyle = colour("--paper");
  pen.fillRect(0, 0, width, height);
  if (scene.dim === 3) drawAxes(pen, project); else drawFrame(pen, project, width, height);
  const back = scene.trace ? frame : Math.min(frame, TAIL), radius = scene.count > 150 ? 2.5 : 4.5;
  const order = Array.from({ length: scene.count }, (_, i) => [i, project(token(i, frame))]);
  order.sort((a, b) => a[1][2] - b[1][2]);
  pen.lineWidth = 1.1;
  for (const [i, [x, y]] of order) {
    pen.globalAlpha = 0.38;
    pen.strokeStyle = tint(i, shades);
    pen.beginPath();
    pen.moveTo(x, y);
    for (let f = Math.ceil(frame) - 1; f >= frame - back && f >= 0; f--) pen.lineTo(...project(token(i, f)).slice(0, 2));
    pen.stroke();
  }
  pen.globalAlpha = 1;
  for (const [i, [x, y, near]] of order) {
    pen.fillStyle = tint(i, shades);
    pen.strokeStyle = colour("--paper");
    pen.beginPath();
    pen.arc(x, y, radius * (scene.dim === 3 ? 1 + 0.25 * near : 1) * (i === pointed ? 1.7 : 1), 0, 2 * Math.PI);
    pen.fill();
    pen.stroke();
  }
  const named = order.filter(([i]) => i === pointed || i === scene.sink);
  for (const [i, [x, y]] of named) {
    const label = scene.words[i] + (i === scene.sink ? "  (sink)" : "");
    const left = Math.max(4, Math.min(x + 9, width - pen.measureText(label).width - 6));
    pen.lineWidth = 3;
    pen.strokeStyle = colour("--paper");
    pen.strokeText(label, left, y - 8);
    pen.fillStyle = colour("--ink");
    pen.fillText(label, left, y - 8);
  }
}

function drawAxes(pen, project) {
  const middle = scene.low.map((low, k) => (low + scene.high[k]) / 2);
  pen.lineWidth = 1;
  for (let k = 0; k < 3; k++) {
    const ends = [scene.low[k], scene.high[k]].map((v) => project(middle.map((m, j) => j === k ? v : m)));
    pen.strokeStyle = colour("--line");
    pen.beginPath();
    pen.moveTo(ends[0][0], ends[0][1]);
    pen.lineTo(ends[1][0], ends[1][1]);
    pen.stroke();
    pen.fillStyle = colour("--faint");
    pen.fillText(String(k + 1), ends[1][0] + 3, ends[1][1] - 3);
  }
}

function ticks(low, high, count) {
  const raw = (high - low) / count, unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * unit).find((s) => s >= raw);
  const found = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + 1e-9 * step; v += step) found.push(Math.abs(v) < step / 1e6 ? 0 : v);
  return found;
}

function drawFrame(pen, project, width, height) {
  pen.strokeStyle = colour("--line");
  pen.fillStyle = colour("--faint");
  pen.lineWidth = 1;
  for (const v of ticks(scene.low[0], scene.high[0], 6)) {
    const [x] = project([v, scene.low[1]]);
    pen.beginPath(); pen.moveTo(x, 8); pen.lineTo(x, height - 30); pen.stroke();
    pen.textAlign = "center";
    pen.fillText(number(scene.bent ? bent(v) : v), x, height - 13);
  }
  for (const v of ticks(scene.low[1], scene.high[1], 6)) {
    const [, y] = project([scene.low[0], v]);
    pen.beginPath(); pen.moveTo(42, y); pen.lineTo(width - 8, y); pen.stroke();
    pen.textAlign = "right";
    pen.fillText(number(scene.bent ? bent(v) : v), 38, y + 4);
  }
  pen.textAlign = "left";
}

const bent = (v) => scene.bent * Math.sinh(v);  // coordinates that run away are kept as asinh(x / bent)

// ---- instruments ------------------------------------------------------------------------------------------------
function buildCharts() {
  at("charts").replaceChildren();
  charts = scene.charts.map((chart) => {
    const figure = document.createElement("section"), heading = document.createElement("h2");
    const legend = document.createElement("ul"), canvas = document.createElement("canvas");
    figure.className = "chart";
    heading.textContent = chart.title;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", chart.title + ": " + chart.curves.map((c) => c.name).join(", "));
    const values = chart.curves.map((curve) => {
      const item = document.createElement("li"), line = document.createElement("i"), value = document.createElement("b");
      line.style.borderTopStyle = ["solid", "dashed", "dotted"][curve.dash];
      line.style.borderTopColor = `var(--c${curve.colour})`;
      item.append(line, curve.name + " ", value);
      legend.append(item);
      return value;
    });
    figure.append(heading, legend, canvas);
    at("charts").append(figure);
    const scrub = (event) => {
      const box = canvas.getBoundingClientRect(), share = (event.clientX - box.left - 46) / (box.width - 56);
      const [first, end] = [scene.depths[0], scene.depths[scene.depths.length - 1]], t = first + share * (end - first);
      let best = 0;
      scene.depths.forEach((d, i) => { if (Math.abs(d - t) < Math.abs(scene.depths[best] - t)) best = i; });
      pause();
      show(best);
    };
    canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); scrub(event); });
    canvas.addEventListener("pointermove", (event) => { if (event.buttons) scrub(event); });
    return { chart, canvas, values };
  });
}

function drawChart({ chart, canvas, values }) {
  const [pen, width, height] = canvasOf(canvas), left = 46, right = width - 10, top = 8, bottom = height - 20;
  const depths = scene.depths, x = (t) => left + (right - left) * (t - depths[0]) / ((depths[depths.length - 1] - depths[0]) || 1);
  const map = chart.log ? Math.log10 : (v) => v;
  const fine = (v) => v !== null && (!chart.log || v > chart.least);
  const all = chart.curves.flatMap((c) => c.values).filter(fine).map(map);
  if (!all.length) return;
  let low = Math.min(...all), high = Math.max(...all);
  if (!chart.log) { low = Math.min(low, 0); high = Math.max(high, low + 1e-9); }
  if (high - low < 1e-9) { low -= 0.5; high += 0.5; }
  const y = (v) => bottom - (bottom - top) * (map(v) - low) / (high - low);
  pen.lineWidth = 1;
  pen.strokeStyle = colour("--line");
  pen.fillStyle = colour("--faint");
  let marks = ticks(low, high, 4);
  if (chart.log) {
    marks = marks.filter((v) => Number.isInteger(Math.round(v * 1e9) / 1e9)).map((v) => 10 ** v);
    if (marks.length < 2) marks = [Math.floor(low), Math.ceil(low), Math.floor(high)].flatMap((k) => [1, 2, 5].map((m) => m * 10 ** k))
      .filter((v) => Math.log10(v) >= low - 1e-9 && Math.log10(v) <= high + 1e-9);
  }
  for (const v of marks) {
    pen.beginPath(); pen.moveTo(left, y(v)); pen.lineTo(right, y(v)); pen.stroke();
    pen.textAlign = "right";
    pen.fillText(number(v), left - 6, y(v) + 4);
  }
  pen.textAlign = "center";
  for (const t of ticks(depths[0], depths[depths.length - 1], 6)) pen.fillText(number(t), x(t), height - 5);
  pen.textAlign = "left";
  for (const curve of chart.curves) {
    pen.strokeStyle = pen.fillStyle = colour("--c" + curve.colour);
    pen.lineWidth = 1.8;
    pen.setLineDash([[], [6, 4], [2, 3]][curve.dash]);
    pen.beginPath();
    let begun = false;
    curve.values.forEach((v, i) => {
      if (!fine(v)) return;
      if (begun && chart.steps) pen.lineTo(x(depths[i]), pen.previous);
      pen[begun ? "lineTo" : "moveTo"](x(depths[i]), y(v));
      pen.previous = y(v);
      begun = true;
    });
    pen.stroke();
  }
  pen.setLineDash([]);
  const k = Math.round(frame), low_ = Math.floor(frame), high_ = Math.min(low_ + 1, depths.length - 1);
  const now = x(depths[low_] + (frame - low_) * (depths[high_] - depths[low_]));
  pen.strokeStyle = colour("--ink");
  pen.lineWidth = 1;
  pen.beginPath(); pen.moveTo(now, top - 4); pen.lineTo(now, bottom + 3); pen.stroke();
  chart.curves.forEach((curve, i) => {
    const v = curve.values[k];
    values[i].textContent = number(v);
    if (!fine(v)) return;
    pen.fillStyle = colour("--c" + curve.colour);
    pen.beginPath(); pen.arc(x(depths[k]), y(v), 3.5, 0, 2 * Math.PI); pen.fill();
  });
}

// ---- time -------------------------------------------------------------------------------------------------------
function draw() {
  drawTokens();
  charts.forEach(drawChart);
}

function show(value) {
  frame = Math.max(0, Math.min(value, scene.depths.length - 1));
  const k = Math.round(frame);
  at("depth").value = k;
  at("depth").setAttribute("aria-valuetext", scene.clock[k]);
  at("clock").textContent = scene.clock[k];
  at("axes").textContent = scene.names.map((name, i) => scene.dim === 3 ? `${i + 1}: ${name}` : ["→ ", "↑ "][i] + name).join(" · ");
  draw();
}

function tick(now) {
  if (!playing) return;
  const ahead = (now - last) / 1000 * (scene.depths.length - 1) / SECONDS * Number(at("speed").value);
  last = now;
  if (frame + ahead >= scene.depths.length - 1) { show(scene.depths.length - 1); pause(); return; }
  show(frame + ahead);
  requestAnimationFrame(tick);
}

function play() {
  if (frame >= scene.depths.length - 1) frame = 0;
  playing = true;
  at("play").textContent = "❚❚ Pause";
  last = performance.now();
  requestAnimationFrame(tick);
}

function pause() {
  playing = false;
  at("play").textContent = "▶ Play";
}

at("play").addEventListener("click", () => playing ? pause() : play());
at("depth").addEventListener("input", () => { pause(); show(Number(at("depth").value)); });
at("scenes").addEventListener("change", () => { pause(); open(Number(at("scenes").value)); });
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select")) return;
  const onSlider = event.target === at("depth"), onButton = event.target === at("play");
  const keys = {
    " ": onButton ? null : () => playing ? pause() : play(),
    ArrowRight: onSlider ? null : () => { pause(); show(Math.round(frame) + 1); },
    ArrowLeft: onSlider ? null : () => { pause(); show(Math.round(frame) - 1); },
    Home: onSlider ? null : () => { pause(); show(0); },
    End: onSlider ? null : () => { pause(); show(scene.depths.length - 1); },
    "[": () => { turn -= 0.12; draw(); },
    "]": () => { turn += 0.12; draw(); },
  };
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
});

const canvas = at("tokens");
canvas.addEventListener("pointermove", (event) => {
  if (event.buttons && scene.dim === 3) {
    turn += event.movementX / 140;
    tilt = Math.max(-1.5, Math.min(1.5, tilt + event.movementY / 140));
  }
  const box = canvas.getBoundingClientRect(), project = projection(box.width, box.height);
  let best = 14;
  pointed = -1;
  for (let i = 0; i < scene.count; i++) {
    const [x, y] = project(token(i, frame)), far = Math.hypot(x - event.clientX + box.left, y - event.clientY + box.top);
    if (far < best) { best = far; pointed = i; }
  }
  drawTokens();
});
canvas.addEventListener("pointerleave", () => { pointed = -1; drawTokens(); });

scenes.forEach((s, i) => at("scenes").append(new Option(s.choice, i)));
at("scenes").hidden = scenes.length < 2;
dark.addEventListener("change", draw);
addEventListener("resize", draw);
open(0);
if (!still) play();
