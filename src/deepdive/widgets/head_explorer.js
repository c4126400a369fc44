// SPDX-License-Identifier: MIT
// Where a trained model's heads look, and what changes when one is taken away.
// Python computed every number (head_explorer.py); this file unpacks, sorts and draws.
import { button, choice, cividis, decode24, fmt, h, inkOn, matrixTable, onData, scrolling, shell, store, svg, uid } from "./common.js";

const signed = (x, digits) => (x > 0 && Number(x.toFixed(digits)) !== 0 ? "+" : "") + fmt(x, digits);

// ------------------------------------------------------------------- pure functions

// All maps of a sentence: maps[layer][head] = T rows of S weights. Of a causal model the
// rows up to the diagonal are stored; what lies ahead is null, blocked.
export function unpack(sentence, layers, heads) {
  const [T, S] = [sentence.rows.length, sentence.columns.length];
  const { causal } = sentence;
  const size = causal ? (T * (T + 1)) / 2 : T * S;
  const flat = decode24(sentence.weights, layers * heads * size);
  const row = (at, i) => (causal
    ? [...flat.subarray(at + (i * (i + 1)) / 2, at + ((i + 1) * (i + 2)) / 2), ...Array(T - i - 1).fill(null)]
    : Array.from(flat.subarray(at + i * S, at + (i + 1) * S)));
  return Array.from({ length: layers }, (_, l) => Array.from({ length: heads },
    (__, k) => Array.from({ length: T }, (___, i) => row((l * heads + k) * size, i))));
}

const mean = (x) => x.reduce((sum, v) => sum + v, 0) / x.length;

// What each piece of a text but the first costs a language model, in nats: before and
// after the removal of one head.
export function costs(sentence, layer, head) {
  return sentence.losses.map((before, t) => {
    const change = sentence.changes[layer][head][t];
    return { piece: sentence.rows[t + 1], before, after: before + change, change };
  });
}

// Of a text that is said twice, `copy` pieces a time: how much of the second copy's
// weight rests on the piece after its earlier copy, and what both copies cost, without
// their first piece: nothing says that the text begins again.
export function twice(sentence, map, layer, head) {
  const [n, T] = [sentence.copy, sentence.rows.length];
  const list = costs(sentence, layer, head);
  const copies = [list.slice(T - 2 * n, T - n - 1), list.slice(T - n, T - 1)];
  const score = mean(Array.from({ length: n }, (_, i) => map[T - n + i][T - 2 * n + i + 1]));
  return { score, before: copies.map((x) => mean(x.map((c) => c.before))),
    after: copies.map((x) => mean(x.map((c) => c.after))) };
}

// The sentences to choose from: Python's, and the reader's own where there is one.
export function sentencesOf(data) {
  return data.own?.weights ? [...data.sentences, data.own] : data.sentences;
}

// Pairs of sentences in the order of `changes`: (0,1), (0,2) …, with the cosine before,
// after the removal of one head, and the change.
export function pairs(data, layer, head) {
  const found = [];
  for (let i = 0; i < data.cosines.length; i++) {
    for (let j = i + 1; j < data.cosines.length; j++) {
      const change = data.changes[layer][head][found.length];
      found.push({ i, j, before: data.cosines[i][j], after: data.cosines[i][j] + change, change });
    }
  }
  return found;
}

// Heads by what their removal changes, most first:
// {layer, head, effect, peak, peak_on_words, rank}.
export function ranking(data) {
  const all = data.effect.flatMap((row, layer) => row.map((effect, head) => ({
    layer, head, effect, peak: data.peak[layer][head], peak_on_words: data.peak_on_words[layer][head],
  })));
  all.sort((a, b) => b.effect - a.effect);
  all.forEach((item, i) => { item.rank = i + 1; });
  return all;
}

// Pearson's correlation of two lists.
export function correlation(a, b) {
  const [ma, mb] = [mean(a), mean(b)];
  const sum = (f) => a.reduce((s, v, i) => s + f(v - ma, b[i] - mb), 0);
  return sum((x, y) => x * y) / Math.sqrt(sum((x) => x * x) * sum((_, y) => y * y));
}

// The name that readers see, counted from 1.
export function short(layer, head) {
  return `L${layer + 1}·H${head + 1}`;
}

// The same where the figure begins with a later layer of its model.
const named = (data, layer, head) => short(layer + (data.first ?? 0), head);

const PLACES = {
  previous: "the previous word", next: "the next word", itself: "itself",
  CLS: "[CLS]", SEP: "[SEP]",
};
const PIECES = { first: "the first piece", previous: "the piece before it", itself: "itself" };
const placesOf = (data) => (data.causal ? PIECES : PLACES);

// What a head mostly looks at, in words, from the measured patterns.
export function manner(data, layer, head) {
  const [name, share] = Object.entries(data.patterns)
    .map(([key, x]) => [key, x[layer][head]])
    .reduce((best, item) => (item[1] > best[1] ? item : best));
  return { name, mean: share, words: `a ${data.causal ? "piece" : "word"} gives ${fmt(share)} of its weight to ${placesOf(data)[name]}` };
}

// --------------------------------------------------------------------------- drawing

function paint(canvas, map) {
  const [T, S] = [map.length, map[0].length];
  canvas.width = S;
  canvas.height = T;
  const pen = canvas.getContext("2d");
  map.forEach((row, i) => row.forEach((w, j) => {
    if (w === null) return; // the hatched ground shows
    pen.fillStyle = cividis(w);
    pen.fillRect(j, i, 1, 1);
  }));
}

const wide = (words) => Math.max(...words.map((w) => w.length)) * 8.2 + 8;
const colour = (name) => `fill: var(--dd-${name})`;
const text = (x, y, words, attrs = {}) => svg("text", { x, y, "font-size": 15, ...attrs }, words);

// What each query reads most, for who can't see the picture.
const chiefly = ({ rows, columns }, map) => `Most weight: ${map.map((row, i) => {
  const j = row.indexOf(Math.max(...row));
  return `${rows[i]} to ${columns[j]} (${fmt(row[j], 2)})`;
}).join(", ")}.`;

// Queries on the left, keys on the right, a line for each weight of at least 0.02.
function drawLines({ rows, columns }, map) {
  const [T, S] = [rows.length, columns.length];
  const step = Math.max(T, S) > 16 ? 20 : Math.max(T, S) > 9 ? 24 : 29;
  const [a, b] = [wide(rows), wide(columns)];
  const reach = Math.max(100, 280 - a - b);
  const y = (i) => 38 + i * step;
  const lines = map.flatMap((row, i) => row.map((w, j) => ({ w, i, j })))
    .filter(({ w }) => w >= 0.02).sort((p, q) => p.w - q.w)
    .map(({ w, i, j }) => svg("line", {
      x1: a + 6, y1: y(i) - 5, x2: a + reach - 6, y2: y(j) - 5, "stroke-linecap": "round",
      "stroke-width": (1 + 6 * w).toFixed(2), style: "stroke: var(--dd-q)",
      "stroke-opacity": (0.12 + 0.88 * w).toFixed(3),
    }));
  return svg("svg", {
    viewBox: `0 0 ${a + reach + b} ${y(Math.max(T, S)) - step + 14}`, width: a + reach + b,
    role: "img", "aria-label": `Lines from each query to the keys it reads. ${chiefly({ rows, columns }, map)}`,
  },
  text(a, 16, "query", { "text-anchor": "end", "font-size": 14, style: colour("muted") }),
  text(a + reach, 16, "key", { "font-size": 14, style: colour("muted") }),
  lines,
  rows.map((w, i) => text(a, y(i), w, { "text-anchor": "end", style: colour("q") })),
  columns.map((w, j) => text(a + reach, y(j), w, { style: colour("k") })));
}

// What lies ahead of a causal model's queries: one hatched staircase, in cells.
function ahead(T, cell, x, y) {
  const lines = Array.from({ length: 2 * T - 2 }, (_, k) => {
    const c = k + 1.5; // on the line x + y = c
    return c < 2 * T - 1 && `M${c / 2 + 0.5} ${c / 2 - 0.5}L${Math.min(c, T)} ${Math.max(0, c - T)}`;
  }).filter(Boolean).join("");
  const attrs = { transform: `translate(${x} ${y}) scale(${cell})`, "stroke-width": 1 / cell };
  return [
    svg("path", { ...attrs, d: `M1 0${"v1h1".repeat(T - 1)}V0z`, class: "dd-blocked" }),
    svg("path", { ...attrs, d: lines, class: "dd-hatching" }),
  ];
}

function drawMap({ rows, columns, causal }, map) {
  const [T, S] = [rows.length, columns.length];
  const numbers = Math.max(T, S) <= 8;
  const cell = numbers ? 39 : Math.max(T, S) > 20 ? 16 : Math.max(T, S) > 16 ? 18 : 22;
  const tall = numbers ? 29 : cell;
  const left = Math.max(wide(rows) + 4, 62);
  const upright = columns.every((w) => w.length * 8.2 <= cell + 4);
  const top = upright ? 46 : 30 + wide(columns) * 0.75;
  const slanted = (x) => (upright ? { "text-anchor": "middle" } : { transform: `rotate(-45 ${x} ${top - 8})` });
  return svg("svg", {
    viewBox: `0 0 ${left + S * cell + (upright ? 4 : 40)} ${top + T * tall + 4}`,
    width: left + S * cell + (upright ? 4 : 40),
    style: `min-width: ${Math.round(0.85 * (left + S * cell))}px`, // then it scrolls
    role: "img", "aria-label": `Heat map: rows are queries, columns are keys. ${chiefly({ rows, columns }, map)}`,
  },
  text(left - 6, top - 8, "query ↓", { "text-anchor": "end", "font-size": 13, style: colour("muted") }),
  text(left, 16, "key →", { "font-size": 13, style: colour("muted") }),
  columns.map((w, j) => {
    const x = left + j * cell + cell / 2;
    return text(x, top - 8, w.trim() || "␣", { ...slanted(x), style: colour("k"), ...(cell < 19 && { "font-size": 12.5 }) });
  }),
  rows.map((w, i) => text(left - 6, top + i * tall + tall / 2 + 5, w, { "text-anchor": "end", style: colour("q") })),
  causal && ahead(T, cell, left, top),
  map.map((row, i) => row.map((w, j) => w !== null && [
    svg("rect", { x: left + j * cell, y: top + i * tall, width: cell - 2, height: tall - 2, rx: 2, fill: cividis(w) }),
    numbers && text(left + j * cell + cell / 2 - 1, top + i * tall + tall / 2 + 4, fmt(w), {
      "text-anchor": "middle", "font-size": 13.5, style: `fill: ${inkOn(cividis(w))}` }),
  ])));
}

// One ring for each head: how sharp its map is against what its removal changes. `key`
// is the measure of sharpness, peak or peak_on_words.
function drawScatter(data, ranked, layer, head, key) {
  const [W, H, left, top] = [220, 150, 48, 40];
  const most = ranked[0].effect;
  const low = Math.min(0, ranked[ranked.length - 1].effect);
  const up = (effect) => top + H * (1 - 0.94 * (effect - low) / (most - low));
  const at = (item) => [left + W * item[key], up(item.effect)];
  const words = key === "peak" ? "all keys" : data.causal ? "first piece left out" : "[CLS] left out";
  const found = data[key === "peak" ? "pearson" : "pearson_on_words"];
  const [px, py] = at(ranked.find((item) => item.layer === layer && item.head === head));
  const quiet = (x, y, words, attrs = {}) => text(x, y, words, { "font-size": 14, style: colour("muted"), ...attrs });
  return svg("svg", {
    viewBox: `0 0 ${left + W + 24} ${top + H + 44}`, width: left + W + 24, role: "img",
    "aria-label": `Scatter plot of ${ranked.length} heads, ${words}: correlation ${signed(found, 2)}; the table has the numbers.`,
  },
  text(8, 20, [svg("tspan", { "font-weight": 650 }, words), `: correlation ${signed(found, 2)}`]),
  svg("path", { d: `M${left} ${top - 8}V${top + H}${low ? `M${left} ${up(0)}` : ""}H${left + W}`, fill: "none", style: "stroke: var(--dd-muted)" }),
  quiet(left + 10, 38, data.causal ? "↑ change of the loss" : "↑ mean change of cosines"),
  quiet(left - 6, top + H * 0.06 + 5, fmt(most), { "text-anchor": "end" }),
  quiet(left - 6, up(0) + 5, "0", { "text-anchor": "end" }),
  quiet(left, top + H + 20, "0", { "text-anchor": "middle" }),
  quiet(left + W, top + H + 20, "1", { "text-anchor": "middle" }),
  quiet(left + W / 2, top + H + 38, `a ${data.causal ? "piece" : "word"}'s largest weight, mean →`, { "text-anchor": "middle" }),
  ranked.map((item) => {
    const [x, y] = at(item);
    return svg("circle", { cx: x, cy: y, r: 3.5, fill: "none", "stroke-width": 1.5, style: "stroke: var(--dd-muted)" });
  }),
  svg("circle", { cx: px, cy: py, r: 6, style: colour("ink") }),
  text(px > left + W / 2 ? px - 9 : px + 9, data.causal && py < top + 20 ? py + 19 : py - 9, named(data, layer, head), {
    "text-anchor": px > left + W / 2 ? "end" : "start", "font-weight": 650, "paint-order": "stroke",
    style: "fill: var(--dd-ink); stroke: var(--dd-paper); stroke-width: 4px",
  }));
}

// Cosines of all pairs as a triangle; with a head removed, what changed.
function pairTable(data, list, removed) {
  const n = data.cosines.length;
  const most = Math.max(...data.changes.flat(2).map(Math.abs));
  const cell = ({ i, j, before, after, change }) => h("td", {
    "aria-label": `sentences ${i + 1} and ${j + 1}: ${removed ? `${fmt(after)}, changed by ${signed(change, 4)}` : fmt(before)}`,
  }, removed ? fmt(after) : fmt(before),
  removed && h("span", { class: "dd-change" }, signed(change, 3)),
  removed && h("span", { class: "dd-swing" }, h("span", {
    style: `left: ${(50 + 50 * Math.min(0, change / most)).toFixed(1)}%; width: ${(50 * Math.abs(change) / most).toFixed(1)}%`,
  })));
  const of = (i, j) => list.find((p) => p.i === i && p.j === j);
  const number = (i, scope) => h("th", { scope }, String(i + 1));
  return h("table", { class: "dd-pairs" },
    h("thead", {}, h("tr", {}, h("td", { class: "dd-void" }),
      Array.from({ length: n - 1 }, (_, i) => number(i, "col")))),
    h("tbody", {}, Array.from({ length: n - 1 }, (_, r) => h("tr", {}, number(r + 1, "row"),
      Array.from({ length: n - 1 }, (__, i) => (i <= r ? cell(of(i, r + 1)) : h("td", { class: "dd-void" })))))));
}

// A bar for what each piece costs; with a head removed, a mark where it was before.
function drawCosts(sentence, list, removed) {
  const [step, H, left, top] = [30, 120, 34, 34];
  const most = Math.max(...sentence.losses, ...list.map((c) => c.after), 1);
  const up = (nats) => top + H * (1 - nats / most);
  const n = sentence.copy;
  const from = list.length + 1 - 2 * n; // the first bar of the second copy is from + n
  const wideOne = Math.max(...list.map((c) => c.piece.length)) * 8;
  const [W, under] = [left + list.length * step, 14 + 0.72 * wideOne];
  const name = (i, words) => text(left + i * step, 13, words, { "font-size": 13, style: colour("muted") });
  return svg("svg", {
    viewBox: `0 0 ${W + 16} ${top + H + under}`, width: W + 16, role: "img",
    style: `min-width: ${Math.round(0.9 * W)}px`,
    "aria-label": `Bars: what each piece costs, in nats; the table has the numbers. ${list
      .map((c) => `${c.piece} ${fmt(removed ? c.after : c.before, 1)}`).join(", ")}.`,
  },
  text(left - 6, top + 4, fmt(most, 0), { "text-anchor": "end", "font-size": 13, style: colour("muted") }),
  text(left - 6, top + H + 4, "0", { "text-anchor": "end", "font-size": 13, style: colour("muted") }),
  svg("path", { d: `M${left} ${top}V${top + H}H${W}`, fill: "none", style: "stroke: var(--dd-muted)" }),
  n > 0 && [name(Math.max(0, from - 1), "first copy"), name(from + n - 1, "second copy"),
    svg("path", { d: `M${left + (from + n - 1) * step} 2V${top + H}`, "stroke-dasharray": "4 3", style: "stroke: var(--dd-muted)" })],
  list.map(({ piece, before, after, change }, i) => {
    const x = left + i * step;
    const mid = x + step / 2;
    const height = up(removed ? after : before);
    return [
      svg("rect", { x: x + 5, y: height, width: step - 10, height: top + H - height, style: colour("muted") }),
      removed && svg("path", { d: `M${x + 2} ${up(before)}h${step - 4}`, "stroke-width": 2.5, style: "stroke: var(--dd-ink)" }),
      removed && Math.abs(change) >= 0.05 && text(mid, Math.min(height, up(before)) - 5, signed(change, 1), {
        "text-anchor": "middle", "font-size": 12, "font-weight": 600 }),
      text(mid + 4, top + H + 15, piece, { "text-anchor": "end", "font-size": 14, transform: `rotate(-45 ${mid + 4} ${top + H + 15})` }),
    ];
  }));
}

// The grid of all maps. Arrow keys walk it, and the head in focus is the one shown.
function headGrid(data, s) {
  const cells = [];
  const first = data.first ?? 0;
  const most = data.effect && Math.max(...data.effect.flat().map(Math.abs));
  const rows = Array.from({ length: data.layers }, (_, layer) => h("div", { role: "row", class: "dd-heads-row" },
    h("span", { role: "rowheader" }, `L${layer + 1 + first}`),
    Array.from({ length: data.heads }, (__, head) => {
      const canvas = h("canvas", { "aria-hidden": true });
      const effect = data.effect?.[layer][head];
      const knob = h("button", {
        type: "button", tabindex: -1, "data-key": `${layer}.${head}`,
        "aria-label": `Layer ${layer + 1 + first}, head ${head + 1}`,
        onClick: () => s.set({ layer, head }),
      }, canvas, effect !== undefined &&
        h("span", { class: effect < 0 ? "dd-bar dd-less" : "dd-bar", style: `width: ${(100 * Math.abs(effect) / most).toFixed(1)}%` }));
      const el = h("div", { role: "gridcell" }, knob);
      cells.push({ layer, head, canvas, knob, el });
      return el;
    })));
  const at = (layer, head) => cells[layer * data.heads + head];
  const grid = h("div", {
    role: "grid", class: "dd-heads", style: `--dd-n: ${data.heads}`,
    "aria-label": `${cells.length} heads: ${data.layers} layers of ${data.heads}. Arrow keys choose one.`,
    onKeydown: (event) => {
      const { layer, head } = s.get();
      const [lastL, lastH] = [data.layers - 1, data.heads - 1];
      const all = event.ctrlKey || event.metaKey;
      const to = {
        ArrowLeft: [layer, head - 1], ArrowRight: [layer, head + 1],
        ArrowUp: [layer - 1, head], ArrowDown: [layer + 1, head],
        Home: [all ? 0 : layer, 0], End: [all ? lastL : layer, lastH],
      }[event.key];
      if (!to || event.altKey || event.shiftKey) return;
      event.preventDefault();
      const [l, k] = [Math.min(Math.max(to[0], 0), lastL), Math.min(Math.max(to[1], 0), lastH)];
      s.set({ layer: l, head: k });
      at(l, k).knob.focus();
    },
  },
  h("div", { role: "row", class: "dd-heads-row" }, h("span", { role: "columnheader" }, h("span", { class: "dd-hidden" }, "layer")),
    Array.from({ length: data.heads }, (_, k) => h("span", { role: "columnheader" }, `H${k + 1}`))),
  rows);
  return {
    el: h("div", { class: "dd-heads-box" }, h("div", { class: "dd-heads-scroll" }, grid)),
    choose(layer, head) {
      for (const c of cells) {
        const mine = c.layer === layer && c.head === head;
        c.el.setAttribute("aria-selected", String(mine));
        c.knob.tabIndex = mine ? 0 : -1;
      }
    },
    show(maps) { for (const c of cells) paint(c.canvas, maps[c.layer][c.head]); },
  };
}

// The reader's own sentence: a text box where Python is there, one sentence elsewhere.
function ownBox(model, s, announce) {
  const note = h("p", { class: "dd-own-note", role: "status" });
  if (model.static) {
    return { el: h("p", { class: "dd-quiet" }, "To see the heads read a sentence of your own, open this chapter " +
      "as a notebook: a text box stands here then, and the real model answers."), note };
  }
  const id = uid("own");
  const input = h("input", { id, type: "text", maxlength: 400, autocomplete: "off" });
  let timer;
  const send = () => {
    const asked = input.value.trim();
    clearTimeout(timer);
    if (!asked) { note.textContent = "Type a sentence first."; input.focus(); return; }
    if (asked === s.get().ask && model.get("data").own?.text === asked) { announce(); return; }
    note.textContent = "Asking the model …";
    timer = setTimeout(() => {
      note.textContent = "No answer from Python. Is the notebook's kernel running? Run the cell above once more.";
    }, 10_000);
    if (asked === s.get().ask) s.set({ ask: "" });
    s.set({ ask: asked });
  };
  input.addEventListener("keydown", (event) => { if (event.key === "Enter") send(); });
  return {
    el: h("div", { class: "dd-own" },
      h("div", {}, h("label", { for: id, class: "dd-label" }, "Your own sentence"), input),
      button("Show its maps", send), note),
    note,
    answered(words) { clearTimeout(timer); note.textContent = words; },
  };
}

// ---------------------------------------------------------------------------- widget

export default {
  render({ model, el }) {
    let data = model.get("data");
    const many = () => sentencesOf(data).length;
    const within = (x, n) => Number.isInteger(x) && x >= 0 && x < n;
    const s = store(model, {}, (state) => ({
      ...state,
      layer: within(state.layer, data.layers) ? state.layer : 0,
      head: within(state.head, data.heads) ? state.head : 0,
      sentence: within(state.sentence, many()) ? state.sentence : 0,
      view: state.view === "map" ? "map" : "lines",
    }));
    const full = Boolean(data.effect); // else weights alone: nothing was removed
    const causal = Boolean(data.causal); // removal changes a loss, not cosines
    const ranked = full ? ranking(data) : [];
    const grid = headGrid(data, s);

    const closeTitle = h("p", { class: "dd-heading" });
    const closeView = scrolling("The chosen head", { class: "dd-view" });
    const closeWords = h("div", {});
    const pairTitle = h("p", { class: "dd-heading" });
    const texts = h("ol", { class: "dd-texts" });
    const pairBox = scrolling(causal ? "What each piece costs" : "Cosines of the sentences", { class: "dd-view" });
    const pairWords = h("p", { class: "dd-quiet" });
    const remove = button("Remove this head", () => s.set({ removed: !s.get().removed }));
    const scatter = scrolling("All heads compared", { class: "he-two dd-view" });
    const list = h("ol", { class: "dd-rank" });
    const predictWords = h("p", {});

    const brief = h("p", { class: "he-brief", "aria-hidden": "true" });
    const figure = h("div", { class: causal ? "he-figure he-causal" : "he-figure" },
      h("div", { class: "he-main" },
        h("div", { class: "he-all" }, grid.el, brief,
          h("p", { class: "he-legend" }, "Each square is a head’s map: rows ask, columns are read, bright is much.",
            full && (causal ? " The bar under it: how much the loss of the sentences rises when the head is removed; a hollow one, falls."
              : " The bar under it: how much the cosines change when the head is removed."))),
        h("div", { class: "he-close" }, closeTitle, closeView, closeWords)),
      full && h("div", { class: "he-lower" },
        h("div", { class: "he-bar" }, pairTitle, remove),
        causal ? [pairBox, pairWords]
          : h("div", { class: "he-pairs" }, h("div", {}, pairBox), h("div", {}, texts, pairWords))),
      full && h("details", { class: "dd-predict" },
        h("summary", {}, "Predict first: do the most striking maps belong to the heads that matter most?"),
        predictWords, scatter, list));

    const menu = h("select", { class: "dd-select", id: uid("sentence") });
    const fillMenu = () => {
      menu.replaceChildren(...sentencesOf(data).map((x, i) => h("option", { value: i },
        i < data.sentences.length ? `${i + 1}  ${x.text}` : `yours: ${x.text}`)));
      menu.value = String(s.get().sentence);
    };
    menu.addEventListener("change", () => s.set({ sentence: Number(menu.value) }));
    const sentence = h("div", { class: "dd-control" },
      h("label", { class: "dd-label", for: menu.id }, causal ? "Text" : "Sentence"), menu);
    const view = choice({
      label: "Chosen head as", store: s, key: "view",
      options: [{ value: "lines", label: "lines" }, { value: "map", label: "heat map" }],
    });
    const own = full && !causal && ownBox(model, s, () => s.set({ sentence: many() - 1 }));

    const current = () => {
      const { layer, head, sentence: i } = s.get();
      const item = sentencesOf(data)[i];
      return { layer, head, i, item, map: mapsOf(i)[layer][head] };
    };
    const kept = new Map();
    function mapsOf(i) {
      const item = sentencesOf(data)[i];
      if (!kept.has(item)) kept.set(item, unpack(item, data.layers, data.heads));
      return kept.get(item);
    }

    function drawRank(layer, head) {
      const place = ranked.findIndex((x) => x.layer === layer && x.head === head);
      const shown = [0, 1, 2, 3, 4, ranked.length - 2, ranked.length - 1].filter((i) => within(i, ranked.length));
      if (!shown.includes(place)) shown.push(place);
      list.replaceChildren(...[...new Set(shown)].sort((a, b) => a - b).map((i) => {
        const x = ranked[i];
        return h("li", {}, h("span", {}, `${x.rank}.`),
          h("button", {
            type: "button", "data-key": `rank ${named(data, x.layer, x.head)}`, "aria-current": i === place ? "true" : null,
            "aria-label": `${named(data, x.layer, x.head)}, number ${x.rank}: show`,
            onClick: () => {
              s.set({ layer: x.layer, head: x.head });
              list.querySelector(`[data-key="rank ${named(data, x.layer, x.head)}"]`)?.focus();
            },
          }, named(data, x.layer, x.head)),
          h("span", {}, h("span", { class: "dd-fill", style: `width: ${(100 * Math.max(0, x.effect) / ranked[0].effect).toFixed(1)}%` })),
          h("span", {}, causal ? signed(x.effect, 4) : fmt(x.effect, 4)));
      }));
      const sharpest = ranked.reduce((a, b) => (b.peak > a.peak ? b : a));
      predictWords.textContent = `${data.verdict} The sharpest map of all, ${named(data, sharpest.layer, sharpest.head)} ` +
        `(${fmt(sharpest.peak)}), is number ${sharpest.rank} of ${ranked.length}. “Matters” means ${causal ? "this loss" : "these cosines"}, on ` +
        `these ${data.sentences.filter((x) => !x.copy).length} sentences; another measure can rank otherwise.`;
    }

    const code = (layer, head) => h("span", { class: "dd-code" }, `ablate(model, ${layer + (data.first ?? 0)}, ${head})`);

    // The lower half for a language model: what each piece costs.
    function drawLoss(layer, head) {
      const { removed } = s.get();
      const { item, map } = current();
      const list = costs(item, layer, head);
      const [before, after] = [mean(list.map((c) => c.before)), mean(list.map((c) => c.after))];
      const { effect, rank } = ranked.find((x) => x.layer === layer && x.head === head);
      pairTitle.textContent = removed ? `Loss without ${named(data, layer, head)}, nats a piece` : "Loss, nats a piece";
      pairBox.replaceChildren(drawCosts(item, list, removed));
      remove.textContent = removed ? "Put it back" : "Remove this head";
      pairWords.replaceChildren(removed
        ? `This text: ${fmt(before)} before (marks), ${fmt(after)} without the head (${signed(after - before, 3)}). All ` +
          `sentences: ${signed(effect, 4)}, number ${rank} of ${ranked.length}. `
        : `This text: ${fmt(before)} on average; all sentences: ${fmt(data.loss)}. `, "In code: ", code(layer, head));
      closeWords.replaceChildren(...(item.copy ? [h("p", { class: "dd-quiet" }, inCopies(item, map, layer, head))] : []));
      scatter.replaceChildren(...["peak", "peak_on_words"].map((key) => drawScatter(data, ranked, layer, head, key)));
      drawRank(layer, head);
    }

    // What a text that is said twice shows of a head.
    function inCopies(item, map, layer, head) {
      const { score, before, after } = twice(item, map, layer, head);
      const loss = (pair) => `${fmt(pair[0], 2)} the first time, ${fmt(pair[1], 2)} the second`;
      return `Said twice: a piece of the second copy gives ${fmt(score)} of its weight to the piece after its earlier ` +
        `copy. Loss: ${loss(before)}${s.get().removed ? `; without the head ${loss(after)}` : ""}.`;
    }

    function drawFull(layer, head) {
      const { removed } = s.get();
      const [atCls, atWords] = data.values[layer][head];
      closeWords.replaceChildren(
        h("p", { class: "dd-quiet" }, `Its value vectors: length ${fmt(atCls, 2)} at [CLS], ${fmt(atWords, 2)} at words.`));
      pairTitle.textContent = removed ? `Cosines without ${named(data, layer, head)}` : "Cosines of the sentences’ vectors";
      texts.replaceChildren(...data.sentences.map((x, i) =>
        h("li", { "aria-current": i === s.get().sentence ? "true" : null }, `${i + 1}  ${x.text}`)));
      pairBox.replaceChildren(pairTable(data, pairs(data, layer, head), removed));
      remove.textContent = removed ? "Put it back" : "Remove this head";
      const { effect, rank } = ranked.find((x) => x.layer === layer && x.head === head);
      pairWords.replaceChildren(removed
        ? `Mean change ${fmt(effect, 4)}: number ${rank} of ${ranked.length}. In code: `
        : "In code: ", code(layer, head));
      scatter.replaceChildren(...["peak", "peak_on_words"].map((key) => drawScatter(data, ranked, layer, head, key)));
      drawRank(layer, head);
    }

    let drawn = null; // the sentence whose maps stand in the grid
    function draw() {
      const { layer, head, i, item, map } = current();
      if (drawn !== item) { grid.show(mapsOf(i)); drawn = item; }
      grid.choose(layer, head);
      menu.value = String(i);
      brief.textContent = briefly();
      closeTitle.textContent = `${named(data, layer, head)} reads “${item.text}”`;
      closeView.replaceChildren(s.get().view === "map" ? drawMap(item, map) : drawLines(item, map));
      if (full) (causal ? drawLoss : drawFull)(layer, head);
    }

    // What the arrow keys change, in the line under the grid.
    function briefly() {
      const { layer, head } = s.get();
      if (!full) return summary();
      const { name, mean: share } = manner(data, layer, head);
      const { effect, rank } = ranked.find((x) => x.layer === layer && x.head === head);
      if (causal) {
        const { item, map } = current();
        if (item.copy) {
          const { score, before, after } = twice(item, map, layer, head);
          return `${named(data, layer, head)}: ${fmt(score)} of the second copy’s weight on the piece after the earlier copy; ` +
            `without it, that copy costs ${signed(after[1] - before[1], 3)} nats a piece.`;
        }
        return `${named(data, layer, head)}: ${fmt(share)} of a piece’s weight on ${PIECES[name]}; removal changes the loss by ` +
          `${signed(effect, 4)}, number ${rank} of ${ranked.length}.`;
      }
      return `${named(data, layer, head)}: ${fmt(share)} of a word’s weight on ${PLACES[name]}; removal changes ` +
        `cosines by ${fmt(effect, 4)}, number ${rank} of ${ranked.length}.`;
    }

    function summary() {
      const { layer, head, item, map } = current();
      const name = `Layer ${layer + 1 + (data.first ?? 0)}, head ${head + 1}`;
      if (!full) {
        const row = map[0];
        const j = row.indexOf(Math.max(...row));
        return `${name}: “${item.rows[0]}” reads most from “${item.columns[j]}” (${fmt(row[j])}).`;
      }
      const { effect, rank } = ranked.find((x) => x.layer === layer && x.head === head);
      const gone = s.get().removed ? `${named(data, layer, head)} removed. ` : "";
      const how = s.get().view === "map" ? "Heat map" : "Lines";
      if (causal) {
        return `${gone}${how} for “${item.text}”. ${name}: on average ${manner(data, layer, head).words}. Removing it changes the loss by ` +
          `${signed(effect, 4)} nats a piece, number ${rank} of ${ranked.length}.${item.copy ? ` ${inCopies(item, map, layer, head)}` : ""}`;
      }
      return `${gone}${how} for “${item.text}”. ${name}: on average ${manner(data, layer, head).words}. Removing it changes the cosines by ` +
        `${fmt(effect, 4)} on average, number ${rank} of ${ranked.length}.`;
    }

    function table() {
      const { layer, head, item, map } = current();
      const name = named(data, layer, head);
      const tables = [matrixTable({
        caption: `Weights of ${name} on “${item.text}”`, name: "weights", rowName: "query", colName: "key",
        rows: item.rows, cols: item.columns, values: map,
      })];
      if (!full) return tables;
      if (causal) return [...tables, ...lossTables(item, layer, head)];
      const list_ = pairs(data, layer, head);
      const kinds = Object.keys(data.patterns);
      return [...tables, matrixTable({
        caption: `Cosines of the sentences, and without ${name}`, name: "cosines", rowName: "sentences",
        rows: list_.map(({ i, j }) => `${i + 1} and ${j + 1}`), cols: ["cosine", `without ${name}`, "change"],
        values: list_.map(({ before, after, change }) => [before, after, change]),
      }), matrixTable({
        caption: "All heads, by the mean change of the cosines when one is removed", name: "heads", rowName: "head",
        rows: ranked.map((x) => named(data, x.layer, x.head)),
        cols: ["mean change", "largest weight", "without [CLS]", ...kinds.map((k) => `to ${PLACES[k]}`), "length of v at [CLS]", "at words"],
        values: ranked.map((x) => [x.effect, x.peak, x.peak_on_words, ...kinds.map((k) => data.patterns[k][x.layer][x.head]),
          ...data.values[x.layer][x.head]]),
      })];
    }

    function lossTables(item, layer, head) {
      const cols = ["loss", `without ${named(data, layer, head)}`, "change"];
      const row = ({ before, after, change }) => [before, after, change];
      const ofText = (x) => {
        const list = costs(x, layer, head);
        const [before, after] = [mean(list.map((c) => c.before)), mean(list.map((c) => c.after))];
        return { before, after, change: after - before };
      };
      const kinds = Object.keys(data.patterns);
      const again = data.sentences.map((x, i) => [x, i]).filter(([x]) => x.copy);
      const scores = again.map(([x, i]) => mapsOf(i).map((row, l) => row.map((map, k) => twice(x, map, l, k).score)));
      return [matrixTable({
        caption: `Nats that each text costs a piece, and without ${named(data, layer, head)}`, name: "texts", rowName: "text",
        rows: data.sentences.map((x, i) => `${i + 1}  ${x.text}`), cols, values: data.sentences.map((x) => row(ofText(x))),
      }), matrixTable({
        caption: `Nats that each piece of “${item.text}” costs, and without ${named(data, layer, head)}`, name: "losses", rowName: "piece",
        rows: item.rows.slice(1), cols, values: costs(item, layer, head).map(row),
      }), matrixTable({
        caption: "All heads, by the change of the sentences’ loss when one is removed", name: "heads", rowName: "head",
        rows: ranked.map((x) => named(data, x.layer, x.head)),
        cols: ["change", "largest weight", "without the first piece", ...kinds.map((k) => `to ${PIECES[k]}`),
          ...again.map(([x]) => `after the earlier copy, ${x.text}`)],
        values: ranked.map((x) => [x.effect, x.peak, x.peak_on_words, ...kinds.map((k) => data.patterns[k][x.layer][x.head]),
          ...scores.map((table_) => table_[x.layer][x.head])]),
      })];
    }

    fillMenu();
    const stopDraw = s.subscribe(draw);
    const frame = shell(el, {
      model, store: s, title: causal ? "Heads of a trained language model" : full ? "Heads of a trained encoder" : "Attention heads", figure,
      controls: full ? [sentence, view] : [view],
      more: own ? [own] : [], summary, table, paper: () => table()[full ? 1 : 0],
    });
    frame.root.classList.add("he-widget");
    draw();
    frame.refresh();

    const stopData = onData(model, (next) => {
      const before = data.own;
      data = next;
      s.reread(); // a sentence that is gone, or one that came after the state that asked for it
      fillMenu();
      const answer = data.own;
      if (own?.answered && answer && JSON.stringify(answer) !== JSON.stringify(before)) {
        if (answer.error) own.answered(`Python says: ${answer.error}.`);
        else {
          const near = answer.cosines.reduce((b, v, i) => (v > answer.cosines[b] ? i : b), 0);
          own.answered(`Shown above. Of the sentences, number ${near + 1} is nearest: cosine ${fmt(answer.cosines[near])}.`);
          s.set({ sentence: many() - 1 });
        }
      }
      draw();
      frame.refresh();
    });
    return () => { stopDraw(); stopData(); frame.destroy(); };
  },
};
