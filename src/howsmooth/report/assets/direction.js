"use strict";
// The worst direction over the text: each token coloured by its share, the largest listed.

const TOGETHER = 120; // tokens laid out at once; what is out of sight waits
const LISTED = 10;
const DECADES = 4; // of shares below the largest that logarithmic colours tell apart
const STRENGTHS = {
  logarithmic: (part) => (part > 0 ? Math.max(0, 1 + Math.log10(part) / DECADES) : 0),
  proportional: (part) => part,
};

function directionSection(section, view, chosen) {
  const rows = DIRECTIONS.filter((row) => viewOf(row) === view);
  const named = MEASURED.filter((row) => viewOf(row) === view && row.token_1 !== null);
  section.hidden = !rows.length && !named.length;
  if (section.hidden) return;
  section.replaceChildren(
    make("h2", {}, "Where the worst direction sits"),
    make("p", {}, "The change of the tokens that moves the output most, and how it is spread over the text: " +
      "shares are of its squared norm and add up to one."));
  if (rows.length) {
    const largest = rows.reduce((best, row, i) => (row.value > rows[best].value ? i : best), 0);
    const { at = largest, strength = "logarithmic" } = chosen || {};
    const again = (change) => directionSection(section, view, { at, strength, ...change });
    const words = (row) => `${mapName(row)}, n = ${row.n}, sample ${row.sample}: Lip ${number(row.value, 3)}`;
    section.append(
      make("div", { class: "controls" },
        choice("map", rows.map((row, i) => [i, words(row)]), at, (value) => again({ at: value })),
        choice("colours", Object.keys(STRENGTHS).map((name) => [name, name]), strength,
          (value) => again({ strength: value }))),
      ...overText(section, rows[at], strength));
  }
  if (named.length) section.append(placesTable(named, rows.length > 0));
}

// Characters that would hide, or turn the text around, are made visible.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069]/g;
const visible = (word) => word.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(HIDDEN, "�");
const percent = (share) => `${(100 * share).toPrecision(3)} %`;
// Whether the tokens carry their own spaces, as byte-level ones do; word pieces do not.
const spaced = (words) => words.filter((word) => /^\s/.test(word)).length > words.length / 4;

function overText(section, row, strength) {
  const { words, shares } = row, most = Math.max(...shares);
  const order = shares.map((_, i) => i).sort((a, b) => shares[b] - shares[a]).slice(0, LISTED);
  const rank = new Map(order.filter((i) => shares[i] > most / 10 ** DECADES).map((i, place) => [i, place + 1]));
  const listed = [...rank.keys()], together = listed.reduce((sum, i) => sum + shares[i], 0);
  const table = htmlTable(listed, [["no.", (i) => rank.get(i), "number"], ["token", (i) => visible(words[i]), ""],
    ["position", (i) => i, "number"], ["share", (i) => percent(shares[i]), "number"]],
  `The ${listed.length} largest shares, together ${(100 * together).toFixed(1)} %`);
  const tokens = words.map((token, position) => ({ layer: row.layer, head: row.head, n: row.n, sample: row.sample,
    position, token, share: shares[position] }));
  const caption = `The share of each token along the text, ${strength === "logarithmic" ? "log" : "linear"} scale.`;
  return [
    wordsBox(words, shares, rank, (share) => (most > 0 ? STRENGTHS[strength](share / most) : 0)),
    figure("direction", shareStrip(section, row, most, strength), caption,
      () => [tokens, ["layer", "head", "n", "sample", "position", "token", "share"]]),
    table,
  ];
}

function wordsBox(words, shares, rank, strength) {
  const gap = spaced(words) ? "" : " ";
  const box = make("div", { class: "words", tabindex: 0, role: "region",
    "aria-label": `The text, tokens coloured by share; the ${rank.size} largest are numbered and in the table below` });
  for (let first = 0; first < words.length; first += TOGETHER) {
    const line = make("p");
    for (let i = first; i < Math.min(first + TOGETHER, words.length); i++) {
      const span = make("span", { class: rank.has(i) ? "top" : null }, visible(words[i]));
      span.style.setProperty("--share", strength(shares[i]).toFixed(3));
      if (shares[i] > 0) span.title = `position ${i}: ${percent(shares[i])}`;
      line.append(span, rank.has(i) ? make("sup", {}, String(rank.get(i))) : "", gap);
    }
    box.append(make("div", {}, make("span", { class: "at" }, String(first)), line));
  }
  return box;
}

function shareStrip(section, row, most, strength) {
  const width = roomFor(section), height = 130, left = 68, right = 12, bottom = 34, top = 14, n = row.shares.length;
  const label = `Share of the worst direction by position, ${mapName(row)}, n = ${row.n}`;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    draw("title", {}, label));
  const bins = Math.min(n, Math.floor((width - left - right) / 2)), peaks = new Float64Array(bins);
  row.shares.forEach((share, i) => {
    const bin = Math.floor(i * bins / n);
    peaks[bin] = Math.max(peaks[bin], share);
  });
  const x = (bin) => left + (bin + 0.5) * (width - left - right) / bins;
  const y = (part) => height - bottom - STRENGTHS[strength](part) * (height - bottom - top);
  for (const part of strength === "logarithmic" ? [1, 0.01, 10 ** -DECADES] : [1, 0.5, 0]) {
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
  svg.append(draw("text", { class: "faint", x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle" },
    "position in the text"));
  return svg;
}

function placesTable(named, shown) {
  const worst = [...groupBy(named, (row) => `${row.layer}|${row.head}|${row.n}`).values()]
    .map((rows) => rows.reduce((a, b) => (b.value > a.value ? b : a)))
    .sort((a, b) => a.layer - b.layer || a.head - b.head || a.n - b.n);
  const few = worst.slice(0, 2000), heads = worst.some((row) => row.head !== null);
  const sits = (row, i) => {
    const token = row[`token_${i}`];
    if (token === null || token === undefined) return "";
    return `${visible(token).trim() || "␣"} at ${row[`position_${i}`]}, ${(100 * row[`share_${i}`]).toFixed(0)} %`;
  };
  const table = htmlTable(few, [["layer", (row) => row.layer ?? "all", "number"],
    ...(heads ? [["head", (row) => row.head, "number"]] : []),
    ["n", (row) => row.n, "number"], ["Lip", (row) => number(row.value), "number"],
    ["largest share", (row) => sits(row, 1), ""], ["second", (row) => sits(row, 2), ""],
    ["third", (row) => sits(row, 3), ""]],
  "The three tokens with the largest shares, of the most sensitive sample at each length" +
    (few.length < worst.length ? `; the first ${few.length} of ${worst.length}` : ""));
  return shown ? make("details", {}, make("summary", {}, "The largest shares at every length"), table) : table;
}
