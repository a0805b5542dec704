"use strict";
// The worst direction over the text: each token coloured by its share, the largest listed.

const TOGETHER = 120; // tokens laid out at once; what is out of sight waits
const LISTED = 10;

function directionSection(section, view, chosen) {
  const rows = DIRECTIONS.filter((row) => viewOf(row) === view);
  const named = MEASURED.filter((row) => viewOf(row) === view && row.token_1 !== null);
  section.hidden = !rows.length && !named.length;
  if (section.hidden) return;
  section.replaceChildren(make("h2", {}, "Where the worst direction sits"),
    make("p", {}, "The change of the tokens that moves the output most, and how it is spread over the text: shares are of its squared norm and add up to one."));
  if (rows.length) {
    const { at = rows.reduce((best, row, i) => (row.value > rows[best].value ? i : best), 0) } = chosen || {};
    section.append(make("div", { class: "controls" }, choice("map", rows.map((row, i) => [i, `${mapName(row)}, n = ${row.n}, sample ${row.sample}: Lip ${number(row.value, 3)}`]), at, (value) => directionSection(section, view, { at: value }))),
      ...overText(section, rows[at]));
  }
  if (named.length) section.append(placesTable(named, rows.length > 0));
}

const visible = (word) => word.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069]/g, "�");

function overText(section, row) {
  const { words, shares } = row, most = Math.max(...shares);
  const order = shares.map((share, i) => i).sort((a, b) => shares[b] - shares[a]).slice(0, LISTED).filter((i) => shares[i] > 0);
  const rank = new Map(order.map((i, place) => [i, place + 1]));
  const box = make("div", { class: "words", tabindex: 0, role: "region", "aria-label": `The text, tokens coloured by share; the ${order.length} largest are numbered and listed in the table` });
  for (let first = 0; first < words.length; first += TOGETHER) {
    const line = make("p");
    for (let i = first; i < Math.min(first + TOGETHER, words.length); i++) {
      const span = make("span", { class: rank.has(i) ? "top" : null }, visible(words[i]));
      span.style.setProperty("--share", most > 0 ? Math.sqrt(shares[i] / most).toFixed(3) : 0);
      if (shares[i] >= 0.001) span.title = `${visible(words[i])} at ${i}: ${(100 * shares[i]).toPrecision(3)} %`;
      line.append(span);
      if (rank.has(i)) line.append(make("sup", {}, String(rank.get(i))));
      if (!/^\s|\s$/.test(words[i + 1] ?? "") && !/\s$/.test(words[i])) line.append(spaced(words) ? "" : " ");
    }
    box.append(make("div", {}, make("span", { class: "at" }, String(first)), line));
  }
  const tokens = words.map((token, position) => ({ layer: row.layer, head: row.head, n: row.n, sample: row.sample, position, token, share: shares[position] }));
  const table = htmlTable(order, [["no.", (i) => rank.get(i), "number"], ["token", (i) => visible(words[i]), ""], ["position", (i) => i, "number"], ["share", (i) => `${(100 * shares[i]).toPrecision(3)} %`, "number"]],
    `The ${order.length} largest shares, together ${(100 * order.reduce((sum, i) => sum + shares[i], 0)).toFixed(1)} %`);
  return [box, figure("direction", shareStrip(section, row, most), "The share of each token along the text.", () => [tokens, ["layer", "head", "n", "sample", "position", "token", "share"]]), table];
}

// Whether the tokens carry their own spaces, as byte-level ones do; word pieces do not.
const spaced = (words) => words.filter((word) => /^\s/.test(word)).length > words.length / 4;

function shareStrip(section, row, most) {
  const width = roomFor(section), height = 120, left = 52, right = 12, bottom = 34, top = 18, n = row.shares.length;
  const label = `Share of the worst direction by position, ${mapName(row)}, n = ${row.n}`;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, draw("title", {}, label));
  const bins = Math.min(n, Math.floor((width - left - right) / 2)), peaks = new Float64Array(bins);
  row.shares.forEach((share, i) => { const bin = Math.floor(i * bins / n); peaks[bin] = Math.max(peaks[bin], share); });
  const x = (bin) => left + (bin + 0.5) * (width - left - right) / bins, y = (share) => height - bottom - (most > 0 ? share / most : 0) * (height - bottom - top);
  svg.append(draw("line", { class: "grid", x1: left, x2: width - right, y1: y(0), y2: y(0) }), draw("line", { class: "grid", x1: left, x2: width - right, y1: y(most), y2: y(most) }),
    draw("text", { x: left - 8, y: y(0) + 4, "text-anchor": "end" }, "0"), draw("text", { x: left - 8, y: y(most) + 4, "text-anchor": "end" }, `${(100 * most).toPrecision(2)} %`));
  peaks.forEach((share, bin) => { if (share > 0) svg.append(draw("line", { class: "sharebar", x1: x(bin), x2: x(bin), y1: y(0), y2: y(share) })); });
  for (const part of [0, 0.25, 0.5, 0.75, 1]) svg.append(draw("text", { x: x(part * (bins - 1)), y: height - bottom + 16, "text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle" }, Math.round(part * (n - 1)).toLocaleString("en")));
  svg.append(draw("text", { class: "faint", x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle" }, "position in the text"));
  return svg;
}

function placesTable(named, shown) {
  const worst = [...groupBy(named, (row) => `${row.layer}|${row.head}|${row.n}`).values()].map((rows) => rows.reduce((a, b) => (b.value > a.value ? b : a)));
  worst.sort((a, b) => a.layer - b.layer || a.head - b.head || a.n - b.n);
  const place = (row, i) => (row[`token_${i}`] === null || row[`token_${i}`] === undefined ? "" : `${visible(row[`token_${i}`]).trim() || "␣"} at ${row[`position_${i}`]}, ${(100 * row[`share_${i}`]).toFixed(0)} %`);
  const heads = worst.some((row) => row.head !== null), few = worst.slice(0, 2000);
  const table = htmlTable(few, [["layer", (row) => row.layer ?? "all", "number"], ...(heads ? [["head", (row) => row.head, "number"]] : []), ["n", (row) => row.n, "number"], ["Lip", (row) => number(row.value), "number"],
    ["largest share", (row) => place(row, 1), ""], ["second", (row) => place(row, 2), ""], ["third", (row) => place(row, 3), ""]],
  `The three tokens with the largest shares, of the most sensitive sample at each length${few.length < worst.length ? `; the first ${few.length} of ${worst.length}` : ""}`);
  return shown ? make("details", {}, make("summary", {}, "The largest shares at every length"), table) : table;
}
