"use strict";
// The worst direction over the text: tokens coloured by their share, and a table of the largest shares.

const TOKENS_PER_BLOCK = 120; // each block is laid out only when it becomes visible
const TABLE_ROWS = 10;
const DECADES = 4; // range of the logarithmic colour scale below the largest share
const COLOUR_SCALES = {
  logarithmic: (part) => (part > 0 ? Math.max(0, 1 + Math.log10(part) / DECADES) : 0),
  proportional: (part) => part,
};

function directionSection(section, view, chosen) {
  const rows = DIRECTIONS.filter((row) => viewOf(row) === view);
  const named = MEASURED.filter((row) => viewOf(row) === view && row.token_1 !== null);
  section.hidden = !rows.length && !named.length;
  if (section.hidden) return;
  section.replaceChildren(
    make("h2", {}, "The worst direction over the text"),
    make("p", {}, "The change of the tokens that moves the output most, and how it is spread over the text: " +
      "shares are of its squared norm and add up to one."));
  if (rows.length) {
    const largest = rows.reduce((best, row, i) => (row.value > rows[best].value ? i : best), 0);
    const { at = largest, scale = "logarithmic" } = chosen || {};
    const redraw = (change) => directionSection(section, view, { at, scale, ...change });
    const optionText = (row) => `${mapName(row)}, n = ${row.n}, sample ${row.sample}: Lip ${number(row.value, 3)}`;
    section.append(
      make("div", { class: "controls" },
        choice("map", rows.map((row, i) => [i, optionText(row)]), at, (value) => redraw({ at: value })),
        choice("colours", Object.keys(COLOUR_SCALES).map((name) => [name, name]), scale,
          (value) => redraw({ scale: value }))),
      ...overText(section, rows[at], scale));
  }
  if (named.length) section.append(largestSharesTable(named, rows.length > 0));
}

// Makes control characters visible, including those that change the direction of text.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069]/g;
const visible = (word) => word.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(HIDDEN, "�");
const percent = (share) => `${(100 * share).toPrecision(3)} %`;
// Whether tokens contain their leading spaces, as in byte-level BPE; in WordPiece they do not.
const containSpaces = (words) => words.filter((word) => /^\s/.test(word)).length > words.length / 4;

function overText(section, row, scale) {
  const { words, shares } = row, most = Math.max(...shares);
  const order = shares.map((_, i) => i).sort((a, b) => shares[b] - shares[a]).slice(0, TABLE_ROWS);
  const rank = new Map(order.filter((i) => shares[i] > most / 10 ** DECADES).map((i, place) => [i, place + 1]));
  const listed = [...rank.keys()], sum = listed.reduce((sum, i) => sum + shares[i], 0);
  const table = htmlTable(listed, [["no.", (i) => rank.get(i), "number"], ["token", (i) => visible(words[i]), ""],
    ["position", (i) => i, "number"], ["share", (i) => percent(shares[i]), "number"]],
  `The ${listed.length} largest shares, together ${(100 * sum).toFixed(1)} %`);
  const tokens = words.map((token, position) => ({ layer: row.layer, head: row.head, n: row.n, sample: row.sample,
    position, token, share: shares[position] }));
  const caption = `The share of each token along the text, ${scale === "logarithmic" ? "log" : "linear"} scale.`;
  return [
    wordsBox(words, shares, rank, (share) => (most > 0 ? COLOUR_SCALES[scale](share / most) : 0)),
    figure("direction", shareStrip(section, row, most, scale), caption,
      () => [tokens, ["layer", "head", "n", "sample", "position", "token", "share"]]),
    table,
  ];
}

function wordsBox(words, shares, rank, scale) {
  const gap = containSpaces(words) ? "" : " ";
  const box = make("div", { class: "words", tabindex: 0, role: "region",
    "aria-label": `The text, tokens coloured by share; the ${rank.size} largest are numbered and in the table below` });
  for (let first = 0; first < words.length; first += TOKENS_PER_BLOCK) {
    const line = make("p");
    for (let i = first; i < Math.min(first + TOKENS_PER_BLOCK, words.length); i++) {
      const span = make("span", { class: rank.has(i) ? "top" : null }, visible(words[i]));
      span.style.setProperty("--share", scale(shares[i]).toFixed(3));
      if (shares[i] > 0) span.title = `position ${i}: ${percent(shares[i])}`;
      line.append(span, rank.has(i) ? make("sup", {}, String(rank.get(i))) : "", gap);
    }
    box.append(make("div", {}, make("span", { class: "at" }, String(first)), line));
  }
  return box;
}

function shareStrip(section, row, most, scale) {
  const width = chartWidth(section), height = 130, left = 68, right = 12, bottom = 34, top = 14, n = row.shares.length;
  const label = `Share of the worst direction by position, ${mapName(row)}, n = ${row.n}`;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    draw("title", {}, label));
  const bins = Math.min(n, Math.floor((width - left - right) / 2)), peaks = new Float64Array(bins);
  row.shares.forEach((share, i) => {
    const bin = Math.floor(i * bins / n);
    peaks[bin] = Math.max(peaks[bin], share);
  });
  const x = (bin) => left + (bin + 0.5) * (width - left - right) / bins;
  const y = (part) => height - bottom - COLOUR_SCALES[scale](part) * (height - bottom - top);
  for (const part of scale === "logarithmic" ? [1, 0.01, 10 ** -DECADES] : [1, 0.5, 0]) {
    svg.append(draw("line", { class: "grid", x1: left, x2: width - right, y1: y(part), y2: y(part) }),
      draw("text", { x: left - 8, y: y(part) + 4, "text-anchor": "end" }, `${number(100 * part * most, 2)} %`));
  }
  peaks.forEach((share, bin) => {
    if (share > 0) svg.append(draw("line", { class: "sharebar", x1: x(bin), x2: x(bin), y1: y(0), y2: y(share / most) }));
  });
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const anchor = part === 0 ? "start" : part === 1 ? "end" : "middle";
    svg.append(draw("text", { x: x(part * (bins - 1)), y: height - bottom + 16, "text-anchor": anchor },
      Math.round(part * (n - 1)).toLocaleString("en")));
  }
  svg.append(draw("text", { class: "muted", x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle" },
    "position in the text"));
  return svg;
}

function largestSharesTable(named, shown) {
  const worst = [...groupBy(named, (row) => `${row.layer}|${row.head}|${row.n}`).values()]
    .map((group) => group.reduce((a, b) => (b.value > a.value ? b : a)))
    .sort((a, b) => a.layer - b.layer || a.head - b.head || a.n - b.n);
  const rows = worst.slice(0, 2000), heads = worst.some((row) => row.head !== null);
  const tokenShare = (row, i) => {
    const token = row[`token_${i}`];
    if (token === null || token === undefined) return "";
    return `${visible(token).trim() || "␣"} at ${row[`position_${i}`]}, ${(100 * row[`share_${i}`]).toFixed(0)} %`;
  };
  const table = htmlTable(rows, [["layer", (row) => row.layer ?? "all", "number"],
    ...(heads ? [["head", (row) => row.head, "number"]] : []),
    ["n", (row) => row.n, "number"], ["Lip", (row) => number(row.value), "number"],
    ["largest share", (row) => tokenShare(row, 1), ""], ["second", (row) => tokenShare(row, 2), ""],
    ["third", (row) => tokenShare(row, 3), ""]],
  "The three tokens with the largest shares, of the most sensitive sample at each length" +
    (rows.length < worst.length ? `; the first ${rows.length} of ${worst.length}` : ""));
  return shown ? make("details", {}, make("summary", {}, "The largest shares at every length"), table) : table;
}
