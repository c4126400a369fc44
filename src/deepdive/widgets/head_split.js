// SPDX-License-Identifier: MIT
// A block of columns cut into heads, and what that costs under two rules.
// Python's head_cost counts the same; the tests compare the two on a grid.
import { button, choice, count, fmt, h, matrixTable, onData, onResize, shell, slider, store, svg,
  toggle } from "./common.js";

// ------------------------------------------------------------------------ counting

// What h heads of a width cost; Python's head_cost is its twin.
export function headCost(dModel, nHeads, headDim, seqLen, countO = true) {
  const given = { d_model: dModel, n_heads: nHeads, seq_len: seqLen };
  if (headDim !== null) given.head_dim = headDim;
  for (const [name, value] of Object.entries(given))
    if (!Number.isSafeInteger(value) || value < 1)
      throw new RangeError(`${name} must be an integer ≥ 1, got ${value}`);
  if (headDim === null && dModel % nHeads)
    throw new RangeError(`${nHeads} heads do not divide d_model = ${dModel}`);
  const dim = headDim ?? dModel / nHeads, width = nHeads * dim;
  const one = dModel * width, o = countO ? one : 0;
  return {
    d_model: dModel, n_heads: nHeads, head_dim: dim, seq_len: seqLen, width,
    ratio: width / dModel, q: one, k: one, v: one, o, parameters: 3 * one + o,
    score_entries: nHeads * seqLen * seqLen,
  };
}

// The numbers of heads that can be chosen: divisors of the width, up to four times what
// the example has, and the example's own.
export function headCounts({ d_model: d, n_heads: n }) {
  const most = Math.min(d, Math.max(4 * n, 8)), found = new Set([n]);
  for (let c = 1; c <= most; c += 1) if (d % c === 0) found.add(c);
  return [...found].sort((a, b) => a - b);
}
const allowed = (example, rule) =>
  headCounts(example).filter((n) => rule === "fixed" || example.d_model % n === 0);
const nearest = (list, x) => list.reduce((a, b) => (Math.abs(b - x) < Math.abs(a - x) ? b : a));
const wholeOr = (x, otherwise, most) => (Number.isInteger(x) && x >= 1 && x <= most ? x : otherwise);

export function cleanState(state, data) {
  const preset = data.presets[state.preset] ? state.preset : 0, example = data.presets[preset];
  const rule = state.rule === "fixed" ? "fixed" : "split";
  const n_heads = nearest(allowed(example, rule), state.n_heads);
  const head_dim = rule === "split" ? example.d_model / n_heads
    : wholeOr(state.head_dim, example.head_dim, 65536);
  const seq_len = wholeOr(state.seq_len, example.seq_len, 1 << 20);
  return { ...state, preset, rule, n_heads, head_dim, seq_len };
}

const costOf = (data, s, n = s.n_heads, dim = s.head_dim) =>
  headCost(data.presets[s.preset].d_model, n, dim, s.seq_len, s.count_o);

// The costs for every number of heads, under both rules.
export function curvesOf(data, s) {
  const example = data.presets[s.preset], counts = headCounts(example);
  const cut = allowed(example, "split");
  return {
    counts, cut,
    split: cut.map((n) => costOf(data, s, n, null)),
    fixed: counts.map((n) => costOf(data, s, n)),
  };
}

// ------------------------------------------------------------------------- the words

const times = (x) => `${fmt(x, 2).replace(/\.?0+$/, "")}×`;
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

function sentenceOf({ n_heads: n, head_dim: dim, d_model: d, width, ratio }, rule) {
  if (rule === "split")
    return `${count(d)} columns are cut into ${plural(n, "head")} of ${count(dim)}. Nothing is ` +
      "copied: the parameters are the same for any number of heads, the score maps multiply.";
  const wide = ratio === 1 ? "as wide as the model" : `${times(ratio)} the model’s width`;
  return `Every head has ${plural(dim, "column")}, however many heads there are: ${count(n)} × ` +
    `${count(dim)} = ${count(width)} columns, ${wide}. Parameters grow with the heads.`;
}

// ----------------------------------------------------------------------- the picture

const SIZE = 15, TALL = 28;
const ink = (role) => `fill:var(--dd-${role})`;
const label = (x, y, text, attrs = {}) => svg("text", { x, y, "font-size": SIZE, ...attrs }, text);
const rect = (x, y, width, rx, style) =>
  svg("rect", { x, y, width: Math.max(width, 0.5), height: TALL, rx, style });

// A block of columns cut into bands, every other one darker, numbered where there is room.
function cutBlock(x, y, width, parts, role) {
  const wide = width / parts, roomy = wide >= 6, gap = roomy ? 2 : 0;
  const edge = `stroke:var(--dd-${role});stroke-width:1.2`;
  const bands = Array.from({ length: parts }, (_, i) => {
    const style = `${ink(role)};fill-opacity:${i % 2 ? 0.38 : 0.17};${roomy ? edge : ""}`;
    return [rect(x + i * wide + gap / 2, y, wide - gap, roomy ? 3 : 0, style),
      wide >= 22 && label(x + (i + 0.5) * wide, y + 20, String(i + 1), { "text-anchor": "middle" })];
  });
  return svg("g", {}, bands, !roomy && rect(x, y, width, 0, `fill:none;${edge}`));
}

// The input's columns, then one row for each matrix with its number of parameters.
function blocks(cost, countO, width) {
  const narrow = width < 560, left = narrow ? 0 : 46, step = narrow ? 54 : 34;
  const across = narrow ? width : width - 236 - left;
  const unit = across / Math.max(cost.width, cost.d_model);
  const muted = { "text-anchor": "end", style: ink("muted") };
  const line = (i) => i * step + (narrow ? 18 : 20), top = (i) => i * step + (narrow ? 24 : 0);
  const dashed = "fill:none;stroke:var(--dd-muted);stroke-width:1.2;stroke-dasharray:5 4";
  const solid = "fill:var(--dd-soft);stroke:var(--dd-ink);stroke-width:1.2";
  const matrix = (letter, i) => {
    const role = { Q: "q", K: "k", V: "v" }[letter] ?? "ink";
    const size = [cost.d_model, cost.width].map(count);
    const shape = (letter === "O" ? size.reverse() : size).join(" × ");
    const counted = letter !== "O" || countO, block = cost.width * unit;
    return [
      svg("text", { x: 0, y: line(i), "font-size": SIZE, "font-weight": 600, style: ink(role) },
        "W", svg("tspan", { dy: 4, "font-size": 12 }, letter)),
      counted ? cutBlock(left, top(i), block, cost.n_heads, role) : rect(left, top(i), block, 3, dashed),
      counted ? label(width, line(i), `${shape} = ${count(cost.q)}`, { "text-anchor": "end" })
        : label(width, line(i), "not counted", muted)];
  };
  return svg("svg", { width, height: 5 * step + 4, viewBox: `0 0 ${width} ${5 * step + 4}`, "aria-hidden": true },
    label(0, line(0), "x", { "font-weight": 600 }),
    rect(left, top(0), cost.d_model * unit, 3, solid),
    label(width, line(0), `${count(cost.d_model)} columns`, muted),
    ["Q", "K", "V", "O"].map((letter, n) => matrix(letter, n + 1)));
}

// A rising line is named on its upper left, a flat one at its right end.
function lineName({ name, values, on }, x, y, last, most) {
  const end = values.at(-1), flat = values[0] === end;
  const [px, py] = flat ? [x(last), y(end) + (end > 0.8 * most ? 20 : -9)]
    : [x(last * 0.7) - 10, y(0.7 * end) - 6];
  return label(px, py, name, { "font-size": 14, "text-anchor": "end",
    "font-weight": on ? 600 : 400, style: ink(on ? "ink" : "muted") });
}

// A small curve over the number of heads, the current point ringed.
function plot(width, counts, lines, now) {
  const tall = 96, left = 6, right = width - 12, foot = tall - 24, top = 14;
  const last = counts.at(-1), most = Math.max(...lines.flatMap((line) => line.values));
  const x = (n) => left + ((n - 1) / Math.max(last - 1, 1)) * (right - left);
  const y = (v) => foot - (v / most) * (foot - top);
  const dot = (n, i, values) => svg("circle", { cx: x(n), cy: y(values[i]), r: 3.5, style: ink("ink") });
  const drawn = lines.map((line) => [
    svg("polyline", {
      points: counts.map((n, i) => `${x(n)},${y(line.values[i])}`).join(" "),
      style: line.on ? "fill:none;stroke:var(--dd-ink);stroke-width:3"
        : "fill:none;stroke:var(--dd-muted);stroke-width:2;stroke-dasharray:5 4",
    }),
    line.on && counts.map((n, i) => dot(n, i, line.values)),
    line.name && lineName(line, x, y, last, most)]);
  return svg("svg", { width, height: tall, viewBox: `0 0 ${width} ${tall}`, "aria-hidden": true },
    svg("line", { x1: left, x2: right, y1: foot, y2: foot, style: "stroke:var(--dd-muted)" }),
    label(left, tall - 6, "1 head", { "font-size": 14 }),
    label(right, tall - 6, `${last} heads`, { "font-size": 14, "text-anchor": "end" }), drawn,
    svg("circle", { cx: x(now.n), cy: y(now.value), r: 8,
      style: "fill:none;stroke:var(--dd-accent);stroke-width:3" }));
}

const card = (title, formula, value, drawing) => h("div", { class: "hs-card" },
  h("p", { class: "hs-name" }, h("span", {}, title), h("span", { class: "hs-formula" }, formula)),
  h("p", { class: "hs-value" }, count(value)), drawing);

// Both counters, each over its curve.
function counters(data, s, width) {
  const cost = costOf(data, s), { counts, split, fixed } = curvesOf(data, s);
  const cut = s.rule === "split", wide = width < 560 ? width - 26 : (width - 16) / 2 - 26;
  const lines = [
    { name: "width d / h", on: cut, values: counts.map(() => split[0].parameters) },
    { name: `width ${count(s.head_dim)}`, on: !cut, values: fixed.map((c) => c.parameters) }];
  const entries = [{ on: true, values: fixed.map((c) => c.score_entries) }];
  const now = (value) => ({ n: s.n_heads, value });
  return [
    card("Parameters", `${s.count_o ? 4 : 3} · ${count(cost.d_model)} · ${count(cost.width)}`,
      cost.parameters,
      plot(wide, counts, lines.sort((a, b) => a.on - b.on), now(cost.parameters))),
    card("Score entries", `h · N² = ${count(s.n_heads)} · ${count(s.seq_len)}²`,
      cost.score_entries, plot(wide, counts, entries, now(cost.score_entries)))];
}

// ------------------------------------------------------------------------ the widget

const TITLE = "Cutting columns into heads";
const LENGTHS = [1, 2, 3, 4, 8, 16, 32, 64, 100,
  ...Array.from({ length: 11 }, (_, i) => 2 ** (i + 7))];
const ROWS = {
  d_model: "columns of x", n_heads: "heads h", head_dim: "columns of a head",
  width: "columns of all heads", seq_len: "words N", q: "parameters of W_Q",
  k: "parameters of W_K", v: "parameters of W_V", o: "parameters of W_O",
  parameters: "parameters in all", score_entries: "score entries h · N²",
};

function tablesOf(data, s) {
  const cost = costOf(data, s), { counts, cut, split, fixed } = curvesOf(data, s);
  const shown = (key) => (key === "o" && !s.count_o ? "not counted" : cost[key]);
  return [
    matrixTable({
      caption: "What these heads cost", name: "cost", digits: 0, rows: Object.values(ROWS),
      cols: ["number"], values: Object.keys(ROWS).map((key) => [shown(key)]) }),
    matrixTable({
      caption: `For other numbers of heads, N = ${count(s.seq_len)}`, name: "heads", digits: 0,
      rowName: "heads", rows: counts.map(count), blocked: "does not divide",
      cols: ["parameters, width d / h", `parameters, width ${count(s.head_dim)}`, "score entries"],
      values: counts.map((n, i) => [split[cut.indexOf(n)]?.parameters ?? null,
        fixed[i].parameters, fixed[i].score_entries]) }),
  ];
}

// The slider over heads; its list depends on the example and the rule.
function headSlider(s) {
  const el = h("div", { class: "hs-holder" });
  let made = null, listed = "";
  const show = (example, { rule, n_heads }) => {
    const values = allowed(example, rule);
    if (listed !== values.join()) {
      listed = values.join();
      made = slider({ label: "Heads h", values, value: n_heads,
        onChange: (n) => s.set({ n_heads: n }) });
      el.replaceChildren(made.el);
    }
    made.set(n_heads);
  };
  return { el, show };
}

function render({ model, el }) {
  let data = model.get("data"), width = 680;
  const first = { preset: 0, n_heads: 1, rule: "split", head_dim: 1, count_o: true, seq_len: 1 };
  const s = store(model, first, (state) => cleanState(state, data));
  const visit = (by) => {
    const preset = s.get().preset + by;
    if (!data.presets[preset]) return;
    const { d_model: d, n_heads, head_dim, seq_len } = data.presets[preset];
    const rule = n_heads * head_dim === d ? "split" : "fixed";
    s.set({ preset, n_heads, head_dim, seq_len, rule });
  };
  const back = button("Back", () => visit(-1)), next = button("Next", () => visit(1));
  const [words, block, cards] = ["hs-words", "hs-block", "hs-cards"].map((c) => h("div", { class: c }));
  const title = h("p", { class: "hs-step" });
  const figure = h("div", { class: "hs-figure" }, block, cards, words);
  const heads = headSlider(s);

  const draw = () => {
    const state = s.get(), { preset, n_heads, head_dim } = state, cost = costOf(data, state);
    const example = data.presets[preset], n = data.presets.length;
    const same = n_heads === example.n_heads && head_dim === example.head_dim;
    title.replaceChildren(
      h("span", { class: "hs-count" }, `${TITLE}: example ${preset + 1} of ${n}`),
      `${example.name}: ${count(n_heads)} × ${count(head_dim)} on ${count(cost.d_model)}`,
      same ? "" : " (changed)");
    back.setAttribute("aria-disabled", String(preset === 0));
    next.setAttribute("aria-disabled", String(preset === n - 1));
    words.replaceChildren(h("p", {}, sentenceOf(cost, state.rule)),
      h("p", { class: "hs-note" }, example.note));
    block.replaceChildren(blocks(cost, state.count_o, width));
    cards.replaceChildren(...counters(data, state, width));
    heads.show(example, state);
  };

  const view = shell(el, {
    model, store: s, title: TITLE, figure,
    top: h("div", { class: "hs-stepper" }, back, title, next),
    controls: [heads, choice({ label: "Head width", store: s, key: "rule", options: [
      { value: "split", label: "d / h" }, { value: "fixed", label: "fixed" }] })],
    more: [
      toggle({ label: "Count W_O", hint: "the matrix that mixes the heads", store: s, key: "count_o" }),
      slider({ label: "Words N", values: LENGTHS, store: s, key: "seq_len" })],
    summary: () => {
      const state = s.get(), cost = costOf(data, state);
      const rule = state.rule === "fixed" ? "head width fixed" : "head width d / h";
      return `${data.presets[state.preset].name}, ${rule}: ${plural(cost.n_heads, "head")} of ` +
        `${count(cost.head_dim)}; ${plural(cost.parameters, "parameter")}; ` +
        `${count(cost.score_entries)} score entries for ${plural(cost.seq_len, "word")}.`;
    },
    table: () => tablesOf(data, s.get()),
  });
  view.root.classList.add("hs-widget");
  const stop = [s.subscribe(draw),
    onData(model, (fresh) => { data = fresh; s.reread(); draw(); view.refresh(); }),
    onResize(figure, (wide) => { width = wide; draw(); })];
  draw();
  return () => { stop.forEach((f) => f()); view.destroy(); };
}

export default { render };
