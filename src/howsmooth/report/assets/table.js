"use strict";
// Reads the embedded tables, creates elements without parsing HTML, formats numbers, saves files.

const DATA = JSON.parse(document.getElementById("data").textContent);
const CURVE = ["model", "checkpoint", "text", "map", "layer", "head", "tokens", "quantity", "cutting"];
const VIEW = CURVE.filter((name) => name !== "layer" && name !== "head");

function rowsOf(name) {
  const table = DATA.tables[name];
  if (!table) return [];
  const rows = Array.from({ length: table.rows }, () => ({}));
  for (const [column, cells] of Object.entries(table.columns)) {
    if (Array.isArray(cells)) rows.forEach((row, i) => { row[column] = cells[i]; });
    else if ("constant" in cells) rows.forEach((row) => { row[column] = cells.constant; });
    else rows.forEach((row, i) => { row[column] = cells.values[cells.indices[i]]; });
  }
  return rows;
}

// Creates an element; strings become text nodes and are never parsed as HTML.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// As `number` in rows.py: up to a million a decimal, with a comma before every three digits.
function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const rounded = Number(value.toPrecision(digits)), size = Math.abs(rounded);
  if (size < 1e-4) return value.toExponential(digits - 1);
  if (size < Math.min(1000, 10 ** digits)) return value.toPrecision(digits);
  const power = Math.floor(Math.log10(size)), decimals = Math.max(0, digits - 1 - power);
  if (size >= 1e6) return value.toExponential(digits - 1).replace("e+", "·10^");
  return rounded.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

// Formats a number given by its logarithm; bounds may overflow a float.
function magnitude(log, digits = 3) {
  if (log === null || log === undefined) return "–";
  if (log >= Math.log(1e6)) return `10^${(log / Math.LN10).toFixed(0)}`;
  return number(Math.exp(log), digits);
}

function median(values) {
  const sorted = Float64Array.from(values).sort();
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

function groupBy(rows, key) {
  const groups = new Map();
  for (const row of rows) {
    const name = key(row);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(row);
  }
  return groups;
}

const distinct = (values) => [...new Set(values)];
const ascending = (values) => distinct(values).sort((a, b) => a - b);
// Shortens a local path to its last part.
const modelName = (name) => (/^([~.]|\/|[A-Za-z]:\\)/.test(name)
  ? name.replace(/[\\/]+$/, "").split(/[\\/]/).pop() : name);
const mapName = (row) =>
  (row.layer === null ? "all layers" : `layer ${row.layer}`) + (row.head === null ? "" : ` head ${row.head}`);
// Cached on the row, since it is called for every row at every change; CSV exports ignore it.
const viewOf = (row) => (row.view ??= JSON.stringify(VIEW.map((name) => row[name] ?? null)));

function csvOf(rows, columns) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = [columns, ...rows.map((row) => columns.map((name) => row[name]))];
  return lines.map((cells) => cells.map(cell).join(",") + "\n").join("");
}

function save(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
  document.getElementById("announcement").textContent = `saved ${name}`;
}

function csvButton(name, contents, label = "CSV") {
  const saveCsv = () => save(`${name}.csv`, csvOf(...contents()), "text/csv;charset=utf-8");
  return make("button", { type: "button", "data-csv": name, "aria-label": `Save the data of ${name} as CSV`,
    onclick: saveCsv }, `↓ ${label}`);
}

const columnsOf = (name) => Object.keys(DATA.tables[name].columns);

// columns: [heading, cell text of a row, "number" | "wide" | ""]
function htmlTable(rows, columns, caption) {
  const head = columns.map(([heading, , kind]) => make("th", { scope: "col", class: kind || null }, heading));
  const cells = (row) => columns.map(([, cell, kind]) => make("td", { class: kind || null }, String(cell(row) ?? "")));
  const body = make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells(row))));
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...head)), body));
}

// A labelled <select>; options are [value, text]. Hidden if there are fewer than two options.
function choice(label, options, chosen, changed) {
  const select = make("select", { onchange: () => changed(options[select.selectedIndex][0]) },
    ...options.map(([value, text]) => make("option", { selected: value === chosen }, text)));
  return make("label", { hidden: options.length < 2 }, label, select);
}
