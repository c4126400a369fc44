// SPDX-License-Identifier: MIT
// A block of columns cut into heads, and what that costs under two rules.
// Python's head_cost counts the same; the tests compare the two on a grid.
import { button, choice, count, fmt, h, matrixTable, onData, onResize, shell, slider, store, svg, toggle } from "./common.js";

// What h heads of a width cost; Python's head_cost is its twin.
export function headCost(dModel, nHeads, headDim, seqLen, countO = true) {
  const whole = { d_model: dModel, n_heads: nHeads, seq_len: seqLen };
  if (headDim !== null) whole.head_dim = headDim;
  for (const [name, value] of Object.entries(whole))
    if (!Number.isSafeInteger(value) || value < 1) throw new RangeError(`${name} must be an integer ≥ 1, got ${value}`);
  if (headDim === null && dModel % nHeads)
    throw new RangeError(`${nHeads} heads do not divide d_model = ${dModel}`);
  const dim = headDim ?? dModel / nHeads;
  const width = nHeads * dim, one = dModel * width, o = countO ? one : 0;
  return {
    d_model: dModel, n_heads: nHeads, head_dim: dim, seq_len: seqLen, width, ratio: width / dModel,
    q: one, k: one, v: one, o, parameters: 3 * one + o, score_entries: nHeads * seqLen * seqLen,
  };
}

// The numbers of heads that can be chosen: divisors of the width, up to four times what
// the example has, and the example's own.
export function headCounts({ d_model: d, n_heads: n }) {
  const most = Math.min(d, Math.max(4 * n, 8));
  const found = new Set([n]);
  for (let c = 1; c <= most; c += 1) if (d % c === 0) found.add(c);
  return [...found].sort((a, b) => a - b);
}

export function cleanState(state, data) {
  const preset = data.presets[state.preset] ? state.preset : 0;
  const example = data.presets[preset], counts = headCounts(example);
  const rule = state.rule === "fixed" ? "fixed" : "split";
  const fits = rule === "fixed" ? counts : counts.filter((c) => example.d_model % c === 0);
  const n_heads = fits.reduce((best, c) =>
    (Math.abs(c - state.n_heads) < Math.abs(best - state.n_heads) ? c : best), fits[0]);
  const whole = (x, otherwise, most) => (Number.isInteger(x) && x >= 1 && x <= most ? x : otherwise);
  const head_dim = rule === "split" ? example.d_model / n_heads : whole(state.head_dim, example.head_dim, 65536);
  return { ...state, preset, rule, n_heads, head_dim, seq_len: whole(state.seq_len, example.seq_len, 1 << 20) };
}

const costOf = (data, s, n = s.n_heads, dim = s.head_dim) =>
  headCost(data.presets[s.preset].d_model, n, dim, s.seq_len, s.count_o);

const times = (x) => `${fmt(x, 2).replace(/\.?0+$/, "")}×`;
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

export function sentenceOf(cost, rule) {
  const { n_heads: n, head_dim: dim, d_model: d, width, ratio } = cost;
  if (rule === "split")
    return `${count(d)} columns are cut into ${plural(n, "head")} of ${count(dim)}. Nothing is copied: the parameters are the same for any number of heads, the score maps multiply.`;
  const wide = ratio === 1 ? `as wide as the model` : `${times(ratio)} the model’s width`;
  return `Every head has ${plural(dim, "column")}, however many heads there are: ${count(n)} × ${count(dim)} = ${count(width)} columns, ${wide}. Parameters grow with the heads.`;
}

// ------------------------------------------------------------------------ the picture

const TEXT = 15;
const label = (x, y, text, attrs = {}) => svg("text", { x, y, "font-size": TEXT, ...attrs }, text);

// One row of columns, cut into bands; band numbers where there is room.
function band(cost, role, left, top, unit, cut) {
  const tall = 34, total = cut ? cost.width : cost.d_model, parts = cut ? cost.n_heads : 1;
  const wide = (total * unit) / parts, colour = `var(--dd-${role})`;
  const roomy = wide >= 6;
  const node = svg("g", {});
  for (let i = 0; i < parts; i += 1) {
    const x = left + i * wide;
    node.append(svg("rect", {
      x: x + (roomy && cut ? 1 : 0), y: top, width: Math.max(wide - (roomy && cut ? 2 : 0), 0.5), height: tall,
      rx: roomy ? 3 : 0, style: `fill:${colour};fill-opacity:${cut ? (i % 2 ? 0.38 : 0.17) : 0.08};stroke:${colour};stroke-width:${roomy ? 1.2 : 0}`,
    }));
    if (cut && wide >= 22) node.append(label(x + wide / 2, top + 22, String(i + 1), { "text-anchor": "middle" }));
  }
  if (cut && !roomy) node.append(svg("rect", { x: left, y: top, width: total * unit, height: tall, style: `fill:none;stroke:${colour};stroke-width:1.2` }));
  return node;
}

// The name of a matrix with its letter set low, for SVG.
const named = (x, y, letter, role) => svg("text", { x, y, "font-size": TEXT, "font-weight": 600, style: `fill:var(--dd-${role})` },
  "W", svg("tspan", { dy: 4, "font-size": 12 }, letter));

function bands(cost, countO, width) {
  const narrow = width < 560;
  const left = narrow ? 0 : 46, right = narrow ? width : width - 236;
  const unit = (right - left) / Math.max(cost.width, cost.d_model);
  const step = narrow ? 66 : 46, drop = narrow ? 24 : 0;
  const rows = [["x", "ink"], ["Q", "q"], ["K", "k"], ["V", "v"], ["O", "ink"]];
  const node = svg("svg", { width, height: rows.length * step + 4, "aria-hidden": true });
  rows.forEach(([letter, role], i) => {
    const y = i * step, off = letter === "O" && !countO;
    const amount = letter === "x" ? `${count(cost.d_model)} columns`
      : off ? "not counted"
        : `${count(letter === "O" ? cost.width : cost.d_model)} × ${count(letter === "O" ? cost.d_model : cost.width)} = ${count(cost.q)}`;
    const line = narrow ? y + 18 : y + 23;
    node.append(letter === "x" ? label(left && 0, line, "x", { "font-weight": 600 }) : named(0, line, letter, role));
    if (off) node.append(svg("rect", { x: left, y: y + drop, width: cost.width * unit, height: 34, rx: 3, style: "fill:none;stroke:var(--dd-muted);stroke-width:1.2;stroke-dasharray:5 4" }));
    else node.append(band(cost, role, left, y + drop, unit, letter !== "x"));
    node.append(label(width, line, amount, { "text-anchor": "end", style: off || letter === "x" ? "fill:var(--dd-muted)" : null }));
  });
  return node;
}

// A rising line is named on its upper left, a flat one at its right end.
function curveName({ name, values, on }, x, y, last, most) {
  const flat = values[0] === values.at(-1), end = values.at(-1);
  const [px, py] = flat ? [x(last), y(end) + (end > 0.8 * most ? 20 : -9)]
    : [x(last * 0.7) - 10, y(0.7 * end) - 6];
  return label(px, py, name, { "font-size": 14, "text-anchor": "end", "font-weight": on ? 600 : 400, style: `fill:var(--dd-${on ? "ink" : "muted"})` });
}

// A small curve over the number of heads, the current point ringed and labelled.
function plot(width, counts, lines, now) {
  const tall = 124, left = 6, right = width - 12, foot = tall - 24, top = 14;
  const last = counts.at(-1);
  const most = Math.max(...lines.flatMap((line) => line.values));
  const x = (n) => left + ((n - (last > 1 ? 1 : 0)) / Math.max(last - 1, 1)) * (right - left);
  const y = (v) => foot - (v / most) * (foot - top);
  const node = svg("svg", { width, height: tall, "aria-hidden": true },
    svg("line", { x1: left, x2: right, y1: foot, y2: foot, style: "stroke:var(--dd-muted)" }),
    label(left, tall - 6, "1 head", { "font-size": 14 }),
    label(right, tall - 6, `${last} heads`, { "font-size": 14, "text-anchor": "end" }));
  for (const line of lines) {
    const points = counts.map((n, i) => `${x(n)},${y(line.values[i])}`).join(" ");
    node.append(svg("polyline", { points, style: `fill:none;stroke:var(--dd-${line.on ? "ink" : "muted"});stroke-width:${line.on ? 3 : 2};${line.on ? "" : "stroke-dasharray:5 4"}` }));
    if (line.on) counts.forEach((n, i) => node.append(svg("circle", { cx: x(n), cy: y(line.values[i]), r: 3.5, style: "fill:var(--dd-ink)" })));
    if (line.name) node.append(curveName(line, x, y, last, most));
  }
  node.append(svg("circle", { cx: x(now.n), cy: y(now.value), r: 8, style: "fill:none;stroke:var(--dd-accent);stroke-width:3" }));
  return node;
}

const card = (title, value, formula, drawing) => h("div", { class: "hs-card" },
  h("p", { class: "hs-name" }, title), h("p", { class: "hs-value" }, value), h("p", { class: "hs-formula" }, formula), drawing);

// ------------------------------------------------------------------------- the widget

const LENGTHS = [1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072];
const TITLE = "Cutting columns into heads";

export function curvesOf(data, s) {
  const example = data.presets[s.preset], counts = headCounts(example);
  const cut = counts.filter((n) => example.d_model % n === 0);
  return {
    counts, cut,
    split: cut.map((n) => costOf(data, s, n, null)),
    fixed: counts.map((n) => costOf(data, s, n, s.head_dim)),
  };
}

function tablesOf(data, s) {
  const cost = costOf(data, s), curves = curvesOf(data, s);
  const rows = [["d_model", "columns of x"], ["n_heads", "heads h"], ["head_dim", "columns of a head"], ["width", "columns of all heads"],
    ["seq_len", "words N"], ["q", "parameters of W_Q"], ["k", "parameters of W_K"], ["v", "parameters of W_V"], ["o", "parameters of W_O"],
    ["parameters", "parameters in all"], ["score_entries", "score entries h · N²"]];
  return [
    matrixTable({ caption: "What these heads cost", name: "cost", rows: rows.map(([, text]) => text), cols: ["number"], digits: 0,
      values: rows.map(([key]) => [key === "o" && !s.count_o ? "not counted" : cost[key]]) }),
    matrixTable({ caption: `For other numbers of heads, N = ${count(s.seq_len)}`, name: "heads", digits: 0, rowName: "heads", blocked: "does not divide",
      rows: curves.counts.map(count), cols: ["parameters, width d / h", `parameters, width ${count(s.head_dim)}`, "score entries"],
      values: curves.counts.map((n, i) => [curves.split[curves.cut.indexOf(n)]?.parameters ?? null, curves.fixed[i].parameters, curves.fixed[i].score_entries]) }),
  ];
}

function render({ model, el }) {
  let data = model.get("data");
  const s = store(model, { preset: 0, n_heads: 1, rule: "split", head_dim: 1, count_o: true, seq_len: 1 }, (state) => cleanState(state, data));
  const visit = (by) => {
    const preset = s.get().preset + by, example = data.presets[preset];
    if (!example) return;
    const { d_model: d, n_heads, head_dim, seq_len } = example;
    s.set({ preset, n_heads, head_dim, seq_len, rule: n_heads * head_dim === d ? "split" : "fixed" });
  };
  const back = button("Back", () => visit(-1)), next = button("Next", () => visit(1));
  const title = h("p", { class: "hs-step" }), words = h("div", { class: "hs-words" });
  const block = h("div", {}), cards = h("div", { class: "hs-cards" });
  const figure = h("div", { class: "hs-figure" }, h("div", { class: "hs-stepper" }, back, title, next), words, block, cards);
  const holder = h("div", { class: "hs-holder" });
  let heads = null, listed = "", width = 680;

  const drawHeads = (state) => {
    const example = data.presets[state.preset];
    const values = headCounts(example).filter((n) => state.rule === "fixed" || example.d_model % n === 0);
    if (listed !== values.join()) {
      listed = values.join();
      heads = slider({ label: "Heads h", values, value: state.n_heads, onChange: (n_heads) => s.set({ n_heads }) });
      holder.replaceChildren(heads.el);
    }
    heads.set(state.n_heads);
  };
  const draw = () => {
    const state = s.get(), example = data.presets[state.preset], cost = costOf(data, state), curves = curvesOf(data, state);
    const asGiven = state.n_heads === example.n_heads && state.head_dim === example.head_dim;
    title.replaceChildren(h("span", { class: "hs-count" }, `${TITLE}: example ${state.preset + 1} of ${data.presets.length}`),
      `${example.name}: ${count(state.n_heads)} × ${count(state.head_dim)} on ${count(cost.d_model)}${asGiven ? "" : " (changed)"}`);
    back.setAttribute("aria-disabled", String(state.preset === 0));
    next.setAttribute("aria-disabled", String(state.preset === data.presets.length - 1));
    words.replaceChildren(h("p", {}, sentenceOf(cost, state.rule)), example.note ? h("p", { class: "hs-note" }, example.note) : "");
    block.replaceChildren(bands(cost, state.count_o, width));
    const split = state.rule === "split", half = width < 560 ? width - 26 : (width - 16) / 2 - 26;
    const at = (list) => list.map((c) => c.parameters);
    const cut = { name: "width d / h", on: split, values: curves.counts.map(() => curves.split[0].parameters) };
    const fixed = { name: `width ${count(state.head_dim)}`, on: !split, values: at(curves.fixed) };
    cards.replaceChildren(
      card("Parameters", count(cost.parameters),
        `${state.count_o ? 4 : 3} · ${count(cost.d_model)} · ${count(cost.width)}`,
        plot(half, curves.counts, [split ? fixed : cut, split ? cut : fixed], { n: state.n_heads, value: cost.parameters })),
      card("Score entries", count(cost.score_entries), `h · N² = ${count(state.n_heads)} · ${count(state.seq_len)}²`,
        plot(half, curves.counts, [{ name: "", on: true, values: curves.fixed.map((c) => c.score_entries) }], { n: state.n_heads, value: cost.score_entries })));
    drawHeads(state);
  };

  const view = shell(el, {
    model, store: s, title: TITLE, figure,
    controls: [holder, choice({ label: "Head width", store: s, key: "rule",
      options: [{ value: "split", label: "d / h" }, { value: "fixed", label: "fixed" }] })],
    more: [
      toggle({ label: "Count W_O", hint: "the matrix that mixes the heads", store: s, key: "count_o" }),
      slider({ label: "Words N", values: LENGTHS, store: s, key: "seq_len" }),
    ],
    summary: () => {
      const state = s.get(), cost = costOf(data, state);
      return `${data.presets[state.preset].name}: ${plural(cost.n_heads, "head")} of ${count(cost.head_dim)}; ${plural(cost.parameters, "parameter")}; ${count(cost.score_entries)} score entries for ${plural(cost.seq_len, "word")}.`;
    },
    table: () => tablesOf(data, s.get()),
  });
  view.root.classList.add("hs-widget");
  const stop = [s.subscribe(draw), onData(model, (fresh) => { data = fresh; draw(); view.refresh(); }),
    onResize(figure, (wide) => { width = wide; draw(); })];
  draw();
  return () => { stop.forEach((f) => f()); view.destroy(); };
}

export default { render };
