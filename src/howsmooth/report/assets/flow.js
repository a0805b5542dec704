"use strict";
// Draws tokens along depth on a canvas, from the JSON block of the page, and shows the depth in the charts next to it.
const scenes = JSON.parse(document.getElementById("data").textContent);
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)").matches;
const dark = matchMedia("(prefers-color-scheme: dark)");
const TRAIL_LENGTH = 8;          // saved depths in the trail behind a token
const DURATION_SECONDS = 9;       // from the first depth to the last
const VIRIDIS = [[68, 1, 84], [71, 45, 123], [59, 82, 139], [44, 114, 142], [33, 145, 140], [40, 174, 128],
                 [94, 201, 98], [173, 220, 48], [253, 231, 37]];

let scene, paths, cloudRadius, frame = 0, playing = false, last = 0, turn = 0.6, tilt = 0.35, hovered = -1, charts = [];

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
  cloudRadius = 1e-12;  // largest distance of a token from the centre at any depth
  for (let i = 0; i < paths.length; i += scene.dim) cloudRadius = Math.max(cloudRadius, Math.hypot(...middle.map((m, k) => paths[i + k] - m)));
  byId("title").textContent = scene.title;
  byId("about").textContent = scene.about;
  byId("facts").textContent = scene.facts;
  byId("depth").max = scene.depths.length - 1;
  byId("tokens").classList.toggle("turns", scene.dim === 3);
  byId("tokens").setAttribute("aria-label", scene.title + ": " + scene.names.join(", "));
  byId("turning").hidden = scene.dim !== 3;
  buildCharts(index);
  show(0);
}

// ---- tokens -----------------------------------------------------------------------------------------------------
function clearedCanvas(canvas) {  // cleared, in CSS pixels
  const box = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(box.width * ratio);
  canvas.height = Math.round(box.height * ratio);
  const ctx = canvas.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.font = "12px system-ui, 'Liberation Sans', sans-serif";
  return [ctx, box.width, box.height];
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
    const scale = (Math.min(width, height) / 2 - margin) / cloudRadius;
    const [ct, st, cp, sp] = [Math.cos(turn), Math.sin(turn), Math.cos(tilt), Math.sin(tilt)];
    return (p) => {
      const [x, y, z] = p.map((v, k) => v - middle[k]);
      const across = ct * x - st * y, away = st * x + ct * y;
      return [width / 2 + scale * across, height / 2 - scale * (cp * z + sp * away), (sp * z - cp * away) / cloudRadius];
    };
  }
  const available = [width / 2 - margin, height / 2 - margin];
  const scale = available.map((r, k) => r / half[k] * 0.97);
  if (scene.equal) scale.fill(Math.min(...scale));
  return (p) => [width / 2 + 12 + scale[0] * (p[0] - middle[0]), height / 2 - 10 - scale[1] * (p[1] - middle[1]), 0];
}

function tokenColour(i, palette) {
  const s = scene.token_colours[i];
  if (scene.sink === i) return palette[1];
  if (scene.sequential) {
    const [from, to] = dark.matches ? [0.28, 1] : [0.05, 0.88], x = Math.min(from + s * (to - from), 0.999) * (VIRIDIS.length - 1), k = Math.floor(x), w = x - k;
    return "rgb(" + VIRIDIS[k].map((c, j) => Math.round(c * (1 - w) + VIRIDIS[k + 1][j] * w)).join() + ")";
  }
  return palette[s % palette.length];
}

function drawTokens() {
  const [ctx, width, height] = clearedCanvas(byId("tokens")), project = projection(width, height);
  const palette = [0, 1, 2, 3, 4, 5].map((k) => colour("--series-" + k));
  ctx.fillStyle = colour("--background");
  ctx.fillRect(0, 0, width, height);
  if (scene.dim === 3) drawAxes(ctx, project); else drawFrame(ctx, project, width, height);
  const trail = scene.full_trails ? frame : Math.min(frame, TRAIL_LENGTH), radius = scene.count > 150 ? 2.5 : 4.5;
  const order = Array.from({ length: scene.count }, (_, i) => [i, project(token(i, frame))]);
  order.sort((a, b) => a[1][2] - b[1][2]);
  ctx.lineWidth = 1.1;
  for (const [i, [x, y]] of order) {
    ctx.globalAlpha = 0.38;
    ctx.strokeStyle = tokenColour(i, palette);
    ctx.beginPath();
    ctx.moveTo(x, y);
    for (let f = Math.ceil(frame) - 1; f >= frame - trail && f >= 0; f--) ctx.lineTo(...project(token(i, f)).slice(0, 2));
    ctx.stroke();
  }
  ctx.globalAlpha = 1;
  for (const [i, [x, y, near]] of order) {
    ctx.fillStyle = tokenColour(i, palette);
    ctx.strokeStyle = colour("--background");
    ctx.beginPath();
    ctx.arc(x, y, radius * (scene.dim === 3 ? 1 + 0.25 * near : 1) * (i === hovered ? 1.7 : 1), 0, 2 * Math.PI);
    ctx.fill();
    ctx.stroke();
  }
  const named = order.filter(([i]) => i === hovered || i === scene.sink);
  for (const [i, [x, y]] of named) {
    const label = scene.words[i] + (i === scene.sink ? "  (sink)" : "");
    const left = Math.max(4, Math.min(x + 9, width - ctx.measureText(label).width - 6));
    ctx.lineWidth = 3;
    ctx.strokeStyle = colour("--background");
    ctx.strokeText(label, left, y - 8);
    ctx.fillStyle = colour("--foreground");
    ctx.fillText(label, left, y - 8);
  }
}

function drawAxes(ctx, project) {
  const middle = scene.low.map((low, k) => (low + scene.high[k]) / 2);
  ctx.lineWidth = 1;
  for (let k = 0; k < 3; k++) {
    const ends = [scene.low[k], scene.high[k]].map((v) => project(middle.map((m, j) => j === k ? v : m)));
    ctx.strokeStyle = colour("--line");
    ctx.beginPath();
    ctx.moveTo(ends[0][0], ends[0][1]);
    ctx.lineTo(ends[1][0], ends[1][1]);
    ctx.stroke();
    ctx.fillStyle = colour("--muted");
    ctx.fillText(String(k + 1), ends[1][0] + 3, ends[1][1] - 3);
  }
}

function ticks(low, high, count) {
  const raw = (high - low) / count, unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * unit).find((s) => s >= raw);
  const found = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + 1e-9 * step; v += step) found.push(Math.abs(v) < step / 1e6 ? 0 : v);
  return found;
}

function drawFrame(ctx, project, width, height) {
  ctx.strokeStyle = colour("--line");
  ctx.fillStyle = colour("--muted");
  ctx.lineWidth = 1;
  for (const v of ticks(scene.low[0], scene.high[0], 6)) {
    const [x] = project([v, scene.low[1]]);
    ctx.beginPath(); ctx.moveTo(x, 8); ctx.lineTo(x, height - 30); ctx.stroke();
    ctx.textAlign = "center";
    ctx.fillText(number(scene.asinh_scale ? fromAsinh(v) : v), x, height - 13);
  }
  for (const v of ticks(scene.low[1], scene.high[1], 6)) {
    const [, y] = project([scene.low[0], v]);
    ctx.beginPath(); ctx.moveTo(42, y); ctx.lineTo(width - 8, y); ctx.stroke();
    ctx.textAlign = "right";
    ctx.fillText(number(scene.asinh_scale ? fromAsinh(v) : v), 38, y + 4);
  }
  ctx.textAlign = "left";
}

const fromAsinh = (v) => scene.asinh_scale * Math.sinh(v);  // the stored coordinate is asinh(x / asinh_scale)

// ---- charts -----------------------------------------------------------------------------------------------------
// The pictures are in the page; a line in each goes along with the depth, and its legend shows the values there.
function buildCharts(index) {
  document.querySelectorAll("#charts > div").forEach((part, i) => { part.hidden = i !== index; });
  const figures = [...document.querySelectorAll(`#scene-${index} figure`)];
  charts = figures.map((figure, i) => {
    const svg = figure.querySelector("svg"), panel = svg.querySelector('[id$="-patch_2"] path').getBBox();
    const line = svg.querySelector(".now") || svg.appendChild(document.createElementNS(SVG, "line"));
    line.setAttribute("class", "now");
    line.setAttribute("y1", panel.y);
    line.setAttribute("y2", panel.y + panel.height);
    const scrub = (event) => {
      const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
      const share = ((event.clientX - box.left) / scale - panel.x) / panel.width;
      const [first, end] = [scene.depths[0], scene.depths.at(-1)], t = first + share * (end - first);
      pause();
      show(scene.depths.reduce((best, d, k) => (Math.abs(d - t) < Math.abs(scene.depths[best] - t) ? k : best), 0));
    };
    svg.onpointerdown = scrub;
    svg.onpointermove = (event) => { if (event.buttons) scrub(event); };
    const values = [...figure.querySelectorAll("[data-series]")].map((button) =>
      button.querySelector("b") || button.appendChild(make("b")));
    return { line, panel, values, curves: scene.charts[i] };
  });
}

function drawChart({ line, panel, values, curves }) {
  const depths = scene.depths, low = Math.floor(frame), high = Math.min(low + 1, depths.length - 1);
  const t = depths[low] + (frame - low) * (depths[high] - depths[low]);
  const x = panel.x + panel.width * (t - depths[0]) / ((depths.at(-1) - depths[0]) || 1);
  line.setAttribute("x1", x);
  line.setAttribute("x2", x);
  curves.forEach((curve, i) => { values[i].textContent = number(curve[Math.round(frame)]); });
}

// ---- time -------------------------------------------------------------------------------------------------------
function draw() {
  drawTokens();
  charts.forEach(drawChart);
}

function show(value) {
  frame = Math.max(0, Math.min(value, scene.depths.length - 1));
  const k = Math.round(frame);
  byId("depth").value = k;
  byId("depth").setAttribute("aria-valuetext", scene.depth_texts[k]);
  byId("clock").textContent = scene.depth_texts[k];
  byId("axes").textContent = scene.names.map((name, i) => scene.dim === 3 ? `${i + 1}: ${name}` : ["→ ", "↑ "][i] + name).join(" · ");
  draw();
}

function tick(now) {
  if (!playing) return;
  const advance = (now - last) / 1000 * (scene.depths.length - 1) / DURATION_SECONDS * Number(byId("speed").value);
  last = now;
  if (frame + advance >= scene.depths.length - 1) { show(scene.depths.length - 1); pause(); return; }
  show(frame + advance);
  requestAnimationFrame(tick);
}

function play() {
  if (frame >= scene.depths.length - 1) frame = 0;
  playing = true;
  byId("play").textContent = "❚❚ Pause";
  last = performance.now();
  requestAnimationFrame(tick);
}

function pause() {
  playing = false;
  byId("play").textContent = "▶ Play";
}

byId("play").addEventListener("click", () => playing ? pause() : play());
byId("depth").addEventListener("input", () => { pause(); show(Number(byId("depth").value)); });
byId("scenes").addEventListener("change", () => { pause(); open(Number(byId("scenes").value)); });
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select")) return;
  const onSlider = event.target === byId("depth"), onButton = event.target === byId("play");
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

const canvas = byId("tokens");
canvas.addEventListener("pointermove", (event) => {
  if (event.buttons && scene.dim === 3) {
    turn += event.movementX / 140;
    tilt = Math.max(-1.5, Math.min(1.5, tilt + event.movementY / 140));
  }
  const box = canvas.getBoundingClientRect(), project = projection(box.width, box.height);
  let best = 14;
  hovered = -1;
  for (let i = 0; i < scene.count; i++) {
    const [x, y] = project(token(i, frame)), distance = Math.hypot(x - event.clientX + box.left, y - event.clientY + box.top);
    if (distance < best) { best = distance; hovered = i; }
  }
  drawTokens();
});
canvas.addEventListener("pointerleave", () => { hovered = -1; drawTokens(); });

scenes.forEach((s, i) => byId("scenes").append(new Option(s.choice, i)));
byId("scenes").hidden = scenes.length < 2;
dark.addEventListener("change", draw);
addEventListener("resize", draw);
open(0);
if (!reducedMotion) play();
