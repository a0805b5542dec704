"use strict";
// Values under the pointer, curves chosen in a legend, menus, tokens, downloads, the theme. All content is in the page
// already: without this script everything is shown.

const byId = (id) => document.getElementById(id);

// Creates an element; strings become text nodes and are never parsed as HTML.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function announce(text) {
  if (byId("announcement")) byId("announcement").textContent = text;
}

function save(name, content, type) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
  announce(`saved ${name}`);
}

// ---- charts -----------------------------------------------------------------------------------------------------
const SVG = "http://www.w3.org/2000/svg";
const REACH = 22; // pixels between the pointer and a point that says its value

function prepareFigure(figure) {
  const svg = figure.querySelector("svg"), series = JSON.parse(figure.querySelector("script").textContent);
  const chosen = new Set(), buttons = [...figure.querySelectorAll("[data-series]")];
  const box = figure.querySelector(".drawn"), tip = make("div", { class: "tip", role: "status", hidden: "" });
  const ring = document.createElementNS(SVG, "circle");
  ring.setAttribute("class", "ring");
  box.append(tip);
  const parts = series.map((_, i) => {
    const id = `${figure.id}-chart-0-series-${i}`;
    return [...svg.querySelectorAll(`[id="${id}"], [id^="${id}-"]`)];
  });
  const shown = (i) => !chosen.size || chosen.has(i);

  function choose(change) {
    change();
    buttons.forEach((button) => button.setAttribute("aria-pressed", chosen.has(Number(button.dataset.series))));
    parts.forEach((elements, i) => elements.forEach((element) => {
      element.classList.toggle("faded", !shown(i));
      element.classList.toggle("chosen", chosen.has(i));
    }));
  }
  for (const button of buttons) {
    const i = Number(button.dataset.series);
    button.addEventListener("click", () => choose(() => { if (!chosen.delete(i)) chosen.add(i); }));
  }
  figure.querySelector(".find")?.addEventListener("input", (event) => choose(() => {
    const wanted = event.target.value.trim().toLowerCase();
    chosen.clear();
    for (const button of buttons) {
      const fits = new RegExp(`(^|\\D)${wanted.replace(/\W/g, "\\$&")}(?!\\d)`).test(button.textContent.toLowerCase());
      button.parentElement.hidden = wanted !== "" && !fits;
      if (wanted && fits) chosen.add(Number(button.dataset.series));
    }
  }));

  function leave() {
    tip.hidden = true;
    ring.remove();
  }
  function point(event) {
    const frame = svg.getBoundingClientRect(), scale = frame.width / svg.viewBox.baseVal.width;
    const x = event.clientX - frame.left, y = event.clientY - frame.top;
    let best = REACH, found = null;
    series.forEach(({ name, points }, i) => {
      if (!shown(i)) return;
      for (const [px, py, text] of points) {
        const distance = Math.hypot(px * scale - x, py * scale - y);
        if (distance < best) { best = distance; found = [px, py, name ? `${name}, ${text}` : text]; }
      }
    });
    if (!found) { leave(); return; }
    const [px, py, text] = found;
    ring.setAttribute("cx", px);
    ring.setAttribute("cy", py);
    ring.setAttribute("r", 5);
    svg.append(ring);
    tip.textContent = text;
    tip.hidden = false;
    tip.style.left = `${Math.max(0, Math.min(px * scale - tip.offsetWidth / 2, box.clientWidth - tip.offsetWidth))}px`;
    tip.style.top = `${py * scale + (py * scale > tip.offsetHeight + 12 ? -tip.offsetHeight - 10 : 14)}px`;
  }
  box.addEventListener("pointermove", point);
  box.addEventListener("pointerdown", point);
  box.addEventListener("pointerleave", leave);
  figure.append(make("button", { type: "button", class: "save", "data-svg": figure.id, "aria-label": `Save the picture ${figure.id} as SVG`,
    onclick: () => save(`${figure.id}.svg`, standalone(svg), "image/svg+xml") }, "↓ SVG"));
}

// Returns a picture as a file of its own, with the colours of the theme that is shown.
function standalone(svg) {
  const copy = svg.cloneNode(true), style = getComputedStyle(document.documentElement);
  copy.setAttribute("xmlns", SVG);
  copy.querySelector(".ring")?.remove();
  const probe = make("span");
  document.body.append(probe);
  for (const element of copy.querySelectorAll("[style]")) {
    const text = element.getAttribute("style").replace(/color-mix\((?:[^()]|\([^()]*\))*\)/g, (mix) => {
      probe.style.color = mix; // as resolved by the browser
      const [r, g, b] = getComputedStyle(probe).color.match(/[\d.]+(?= |\))/g).map(Number);
      return `rgb(${[r, g, b].map((part) => Math.round(255 * part)).join()})`;
    });
    element.setAttribute("style", text.replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim()));
  }
  probe.remove();
  copy.setAttribute("font-family", "DejaVu Sans, Verdana, sans-serif");
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(copy)}\n`;
}

// ---- menus ------------------------------------------------------------------------------------------------------
function menu(label, names, changed) {
  const select = make("select", { onchange: () => changed(select.selectedIndex) }, ...names.map((name) => make("option", {}, name)));
  return make("label", { class: "menu" }, label, select);
}

function prepareChoice(choice) {
  const parts = [...choice.children], show = (chosen) => parts.forEach((part, i) => { part.hidden = i !== chosen; });
  choice.prepend(menu(choice.dataset.label, parts.map((part) => part.dataset.name), show));
  show(0);
}

const DECADES = 4; // range of the colours below the largest share, as in colours.py

function prepareDirections(part) {
  const { texts, choices } = JSON.parse(part.querySelector("script").textContent);
  const words = part.querySelector(".words"), scale = words.previousElementSibling;
  if (choices.length < 2) { scale.before(make("p", {}, choices[0].name)); return; }
  scale.before(menu("curve", choices.map(({ name }) => name), (chosen) => {
    const { text, shares } = choices[chosen], most = Math.max(...shares);
    const percent = (share) => `${Number((100 * share).toPrecision(2))} %`;
    words.replaceChildren(...texts[text].flatMap((word, i) => {
      const span = make("span", { title: `position ${i}: ${percent(shares[i])}` }, word);
      span.style.setProperty("--share", shares[i] > 0 ? Math.max(0, 1 + Math.log10(shares[i] / most) / DECADES).toFixed(3) : 0);
      return [span, " "];
    }));
    scale.firstChild.textContent = `Share of each token, log scale: ${percent(most / 10 ** DECADES)} `;
    scale.lastChild.textContent = ` ${percent(most)}`;
  }));
}

// ---- tables and files -------------------------------------------------------------------------------------------
const MANY_ROWS = 12; // a table with more gets a field to find some

function prepareTable(scroll) {
  const rows = [...scroll.querySelectorAll("tbody tr")];
  if (rows.length <= MANY_ROWS) return;
  scroll.before(make("input", { type: "search", class: "find", placeholder: "find rows", "aria-label": "find rows", oninput: (event) => {
    const wanted = event.target.value.toLowerCase();
    rows.forEach((row) => { row.hidden = !row.textContent.toLowerCase().includes(wanted); });
  } }));
}

// A table is stored as CSV, compressed and in base64.
async function unpack(text) {
  const packed = new Blob([Uint8Array.from(atob(text), (character) => character.charCodeAt(0))]);
  return new Response(packed.stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

for (const button of document.querySelectorAll("[data-csv]")) {
  const name = button.dataset.csv;
  button.addEventListener("click", async () => {
    save(`${name}.csv`, await unpack(JSON.parse(byId("data").textContent)[name]), "text/csv;charset=utf-8");
  });
}

document.querySelectorAll("figure[id]").forEach(prepareFigure);
document.querySelectorAll(".choice").forEach(prepareChoice);
document.querySelectorAll(".directions").forEach(prepareDirections);
document.querySelectorAll(".scroll").forEach(prepareTable);

byId("theme")?.addEventListener("click", () => {
  const root = document.documentElement, dark = getComputedStyle(root).colorScheme.includes("dark");
  root.dataset.theme = dark ? "light" : "dark";
  announce(dark ? "light theme" : "dark theme");
});

// Expand all <details> when printing.
addEventListener("beforeprint", () => document.querySelectorAll("details:not([open])").forEach((details) => {
  details.open = true;
  details.dataset.folded = "";
}));
addEventListener("afterprint", () => document.querySelectorAll("details[data-folded]").forEach((details) => {
  details.open = false;
  delete details.dataset.folded;
}));
