// SPDX-License-Identifier: MIT
// A position as 16 numbers, as eight clocks, and as a dot product; three words shuffled.
import {
  h, svg, fmt, count, store, shell, slider, choice, toggle, button, matrixTable, onResize,
} from "./common.js";

// PE(p), in float32 like deepdive.positions: sin and cos of p · θ, pair by pair.
export function code(p, thetas) {
  return thetas.flatMap((theta) => {
    const angle = Math.fround(p * theta);
    return [Math.fround(Math.sin(angle)), Math.fround(Math.cos(angle))];
  });
}

export function codes(last, thetas) {
  return Array.from({ length: last + 1 }, (_, p) => code(p, thetas));
}

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

// PE(p) · PE(p + k) for k = 0 … steps, and Σ cos(k · θ), where p does not occur.
export function products(p, steps, thetas) {
  const here = code(p, thetas);
  return Array.from({ length: steps + 1 }, (_, k) => [
    dot(here, code(p + k, thetas)),
    thetas.reduce((sum, theta) => sum + Math.cos(k * theta), 0),
  ]);
}

// θ, positions for one whole turn, degrees turned by k steps.
export function hands(k, thetas) {
  return thetas.map((t) => [t, (2 * Math.PI) / t, (k * t * 180) / Math.PI]);
}

// Where each row is found among the others, or −1.
export function again(rows, others) {
  return rows.map((row) => others.findIndex((other) =>
    Math.max(...row.map((x, j) => Math.abs(x - other[j]))) < 1e-9));
}

// −1 … 1 on the ramp Python sends, blue – grey – orange.
export function diverging(x, ramp) {
  const place = ((Math.min(Math.max(x, -1), 1) + 1) / 2) * (ramp.length - 1);
  const low = Math.min(Math.trunc(place), ramp.length - 2);
  const part = place - low;
  const mixed = [1, 3, 5].map((i) => Math.floor(
    parseInt(ramp[low].slice(i, i + 2), 16) * (1 - part) +
    parseInt(ramp[low + 1].slice(i, i + 2), 16) * part + 0.5));
  return "#" + mixed.map((c) => c.toString(16).padStart(2, "0")).join("");
}

// A heat map as one path for each shade, equal cells of a column joined.
export function heat(table, x, y, width, height, levels, ramp) {
  const shade = (v) => Math.floor(((v + 1) / 2) * (levels - 1) + 0.5);
  const paths = new Map();
  for (let j = 0; j < table[0].length; j += 1) {
    let start = 0;
    for (let i = 1; i <= table.length; i += 1) {
      const level = shade(table[start][j]);
      if (i < table.length && shade(table[i][j]) === level) continue;
      const box = `M${x + j * width} ${y + start * height}h${width}v${(i - start) * height}h${-width}z`;
      paths.set(level, (paths.get(level) ?? "") + box);
      start = i;
    }
  }
  return [...paths].sort((a, b) => a[0] - b[0])
    .map(([level, path]) => [diverging((2 * level) / (levels - 1) - 1, ramp), path]);
}

export function cleanState(state, data) {
  const within = (x, most) => Math.min(Math.max(0, Math.trunc(x)), most);
  return {
    ...state,
    view: state.view === "words" ? "words" : "code",
    p: within(state.p, data.first), k: within(state.k, data.steps),
    order: within(state.order, data.words.length - 1),
  };
}

// Three digits or so: 0.1, 6.3, 63, 19 869.
export function plain(x) {
  return x < 9.95 ? fmt(x, 1) : count(Math.floor(x + 0.5));
}

// Where a hand of length r ends: up at angle 0, then clockwise.
export function tip(x, y, r, angle) {
  return [x + r * Math.sin(angle), y - r * Math.cos(angle)];
}

const text = (x, y, words, kind = "", anchor = null) =>
  svg("text", { x, y, class: kind, "text-anchor": anchor }, words);
const line = (x1, y1, x2, y2, kind) => svg("line", { x1, y1, x2, y2, class: kind });

// ------------------------------------------------------------------- the code of a position

// Where everything stands for a given width of the picture.
export function layout(width) {
  const wide = width >= 560;
  const left = 88, right = 30;
  const side = wide ? Math.max(304, Math.floor(width * 0.5)) : width;
  const cell = Math.max(9, Math.floor(((wide ? width - side - 28 : width) - left - right) / 16));
  const map = { x: left, y: 76, cell, row: 5 };
  const foot = map.y + 64 * map.row + 46;
  const clocks = { x: wide ? width - side : 0, y: wide ? 0 : foot + 22, w: side };
  const dots = { x: clocks.x + 24, y: clocks.y + 316, w: side - 36, h: 82 };
  return { wide, map, clocks, dots, height: dots.y + dots.h + 50 };
}

export function drawMap({ x, y, cell, row }, data, { p, k }) {
  const table = codes(data.first + data.steps, data.thetas);
  const width = 16 * cell;
  const paint = ([rows, top, tall]) => heat(rows, x, top, cell, tall, data.levels, data.ramp)
    .map(([fill, d]) => svg("path", { d, fill, "shape-rendering": "crispEdges" }));
  const foot = y + 64 * row + 30;
  const shades = Array.from({ length: data.levels }, (_, i) => (2 * i) / (data.levels - 1) - 1);
  const unit = (width - 52) / data.levels;
  // A rim of the page's colour lifts a marked row off the map.
  const rim = (place, by, kind) => svg("rect", { x: x - by, y: y + place * row - by,
    width: width + 2 * by, height: row + 2 * by, class: kind });
  return [
    text(0, 18, "PE: a row for each position", "dd-head"),
    [[table, y, row], [[table[p]], 26, 20], [[table[p + k]], 50, 20]].map(paint),
    text(x - 22, 41, "PE(p)", "sn-name", "end"),
    text(x - 22, 65, "PE(p+k)", "sn-name sn-next", "end"),
    svg("circle", { cx: x - 12, cy: 36, r: 4, class: "sn-tip" }),
    svg("circle", { cx: x - 12, cy: 60, r: 5, class: "sn-ring" }),
    [0, 16, 32, 48, 63].filter((tick) => Math.abs(tick - p) * row > 15)
      .map((tick) => text(x - 8, y + (tick + 0.5) * row + 5, String(tick), "dd-tick", "end")),
    [p, p + k].map((place) => rim(place, 4, "sn-rim")),
    [p, p + k].map((place) => paint([[table[place]], y + place * row, row])),
    rim(p, 2, "sn-frame"), rim(p + k, 2, "sn-frame sn-next"),
    text(x - 8, y + (p + 0.5) * row + 5, `p = ${p}`, "sn-name", "end"),
    text(x + width + 8, y + (p + k + 0.5) * row + 5, String(p + k), "sn-name sn-next"),
    text(x, foot - 12, "0", "dd-tick"), text(x + width, foot - 12, "15", "dd-tick", "end"),
    text(x + width / 2, foot - 12, "dimension", "dd-tick", "middle"),
    shades.map((v, i) => svg("rect", { x: x + 26 + unit * i, y: foot, width: unit + 0.5, height: 12,
      fill: diverging(v, data.ramp) })),
    text(x + 20, foot + 11, "−1", "dd-tick", "end"),
    text(x + width - 20, foot + 11, "+1", "dd-tick"),
  ];
}

// The arc a hand has gone, clockwise; a ring after a whole turn.
function turn(x, y, r, start, by) {
  if (by >= 2 * Math.PI) return svg("circle", { cx: x, cy: y, r, class: "sn-round" });
  const [from, to] = [start, start + by].map((angle) => tip(x, y, r, angle).join(" "));
  return svg("path", { d: `M${from}A${r} ${r} 0 ${Number(by > Math.PI)} 1 ${to}`, class: "sn-turn" });
}

export function drawClocks({ x, y, w }, data, { p, k }) {
  const step = w / 4;
  return [
    text(x, y + 18, w < 280 ? "A clock for each pair" : "A clock for each pair of columns", "dd-head"),
    text(x, y + 37, w < 280 ? "positions for a turn; turned by k" : "below it: positions for a turn; turned by k", "dd-tick"),
    hands(k, data.thetas).map(([theta, period, degrees], i) => {
      const cx = x + ((i % 4) + 0.5) * step, cy = y + 79 + 109 * Math.trunc(i / 4), r = 29;
      const [here, next] = [p, p + k].map((place) => {
        const end = tip(cx, cy, 23, place * theta);
        return { cx: end[0], cy: end[1] };
      });
      return [
        svg("circle", { cx, cy, r, class: "sn-dial" }),
        line(cx, cy - r, cx, cy - r + 5, "sn-noon"),
        turn(cx, cy, 14, p * theta, k * theta),
        line(cx, cy, here.cx, here.cy, "sn-hand"), svg("circle", { ...here, r: 4, class: "sn-tip" }),
        line(cx, cy, next.cx, next.cy, "sn-hand sn-next"), svg("circle", { ...next, r: 5.5, class: "sn-ring" }),
        text(cx, cy + r + 17, plain(period), "sn-number", "middle"),
        text(cx, cy + r + 34, `+${plain(degrees)}°`, "sn-number sn-next", "middle"),
      ];
    }),
  ];
}

export function drawProducts({ x, y, w, h: tall }, data, { p, k }) {
  const rows = products(p, data.steps, data.thetas);
  const most = data.thetas.length;
  const at = (i, v) => [x + (i * w) / data.steps, y + tall * (1 - v / most)];
  const end = k > data.steps - 4;
  const [cx, cy] = at(k, rows[k][0]);
  const rises = rows[k + (end ? -3 : 3)][0] > rows[k][0]; // then its number stands below
  const level = rises ? Math.min(cy + 21, y + tall - 3) : Math.max(cy - 6, y - 1);
  return [
    text(x - 24, y - 41, w < 300 ? "Dot product, for every p" : "Dot product: the same for every p", "dd-head"),
    text(x - 24, y - 22, "PE(p) · PE(p + k) against k", "dd-tick"),
    [0, most / 2, most].map((tick) => {
      const grid = at(0, tick)[1];
      return [line(x, grid, x + w, grid, "sn-grid"), text(x - 11, grid + 5, String(tick), "dd-tick", "end")];
    }),
    svg("polyline", { points: rows.map((row, i) => at(i, row[1]).join()).join(" "), class: "sn-law" }),
    rows.map((row, i) => {
      const [px, py] = at(i, row[0]);
      return svg("circle", { cx: px, cy: py, r: 2.6, class: "sn-tip" });
    }),
    svg("circle", { cx, cy, r: 7, class: "sn-ring" }),
    text(cx + (end ? -11 : 11), level, fmt(rows[k][0], 2), "sn-value sn-next", end ? "end" : "start"),
    [0, 8, 16, 24, 32].map((tick) => text(at(tick, 0)[0], y + tall + 19, String(tick), "dd-tick", "middle")),
    text(x + w / 2, y + tall + 38, "steps k", "sn-name", "middle"),
  ];
}

// --------------------------------------------------------------------- three words, shuffled

// The order as given, and the shuffled one; bare or with positions.
function pairOf(data, { order, placed }) {
  return [0, order].map((o) => data.words[o][placed ? "placed" : "bare"]);
}

export function drawWords(width, data, state) {
  const wide = width >= 560;
  const pair = pairOf(data, state);
  const found = again(pair[1].output, pair[0].output);
  const n = found.filter((i) => i >= 0).length;
  const label = wide ? 58 : 54, tall = wide ? 38 : 32;
  const cell = Math.floor(Math.min(64, wide ? (width - 2 * label - 44) / 8 : (width - label - 24) / 4));
  const block = label + 4 * cell;
  const parts = [["input", `in: word’s vector${state.placed ? " + PE(position)" : ""}`],
    ["output", "out of attention"]];
  const place = (side, part) => (wide ? [side * (width - block), 74 + part * 156]
    : [0, 90 + (2 * part + side) * (3 * tall + 34)]);
  const title = [`${state.placed ? "With" : "Without"} positions: ${n} of 3`, "output rows are found again"];
  const head = width >= 480 ? [title.join(" ")] : title;
  const blocks = pair.flatMap((one, side) => parts.map(([part, words], index) => {
    const [x, y] = place(side, index);
    return [
      text(x, y - 12, wide ? words : `${one.words.join(" ")}: ${index ? "out of" : "into"} attention`, "dd-tick"),
      one[part].map((row, t) => {
        const top = y + t * tall, level = top + tall / 2 + 4;
        return [
          text(x, level, one.words[t], "sn-word"),
          row.map((v, j) => [
            svg("rect", { x: x + label + j * cell, y: top, width: cell - 3, height: tall - 3, rx: 2, class: "sn-cell" }),
            text(x + label + (j + 0.5) * cell - 1.5, level, fmt(v), "sn-entry", "middle"),
          ]),
          !wide && side === 1 && index === 1 &&
            text(x + block + 12, level + 1, found[t] < 0 ? "≠" : "=", "sn-mark", "middle"),
        ];
      }),
    ];
  }));
  const links = wide && found.map((i, j) => {
    const y = (t) => place(0, 1)[1] + t * tall + tall / 2 - 1;
    return i < 0 ? text(width / 2, y(j) + 7, "≠", "sn-mark", "middle")
      : line(block + 3, y(i), width - block - 6, y(j), "sn-link");
  });
  const bottom = place(1, 1)[1] + 3 * tall + 8;
  return { height: bottom, nodes: [head.map((words, i) => text(0, 18 + 22 * i, words, "dd-head")), blocks, links] };
}

// ----------------------------------------------------------------------------------- words

function sayCode(data, { p, k }) {
  const rows = products(p, data.steps, data.thetas);
  const value = rows[k][0];
  const least = rows.slice(0, k + 1).reduce((best, row, i, all) => (row[0] < all[best][0] ? i : best), 0);
  const nearer = value - rows[least][0] > 0.005 ? least : 0;
  const odd = nearer > 0
    ? ` ${nearer} step${nearer > 1 ? "s" : ""} away it is ${fmt(rows[nearer][0], 2)}: nearer, yet smaller.` : "";
  return `p = ${p}, p + k = ${p + k}: from every p, ${k} step${k === 1 ? "" : "s"} turn${k === 1 ? "s" : ""} ` +
    `the hands by the same angles, and the dot product is ${fmt(value, 2)}.${odd}`;
}

function sayWords(data, state) {
  const [first, other] = pairOf(data, state);
  const n = again(other.output, first.output).filter((i) => i >= 0).length;
  const names = [first, other].map((one) => `“${one.words.join(" ")}”`);
  if (state.order === 0) return `${names[0]}, not shuffled: the same rows in the same places.`;
  const end = n === 3 ? "give the same set of rows: attention cannot tell the two orders apart."
    : `share ${n} of 3 rows: the order has become part of what attention reads.`;
  return `${state.placed ? "With" : "Without"} positions, ${names[0]} and ${names[1]} ${end}`;
}

// What the picture shows, in two sentences: those of the first frame.
export function altOf(data, state) {
  if (state.view === "words") {
    const [first, other] = pairOf(data, state);
    const n = again(other.output, first.output).filter((i) => i >= 0).length;
    return `Attention’s output for “${first.words.join(" ")}” and for “${other.words.join(" ")}”, ` +
      `${state.placed ? "with" : "without"} positions. ${n} of 3 rows of the first are found again in the second.`;
  }
  const { p, k } = state;
  const at = (steps) => fmt(products(p, steps, data.thetas)[steps][0], 1);
  return "Heat map of PE, 64 positions by 16 dimensions, eight clocks with a hand for " +
    `p = ${p} and one for p + k = ${p + k}, and the dot product of the two against k. ` +
    `It falls from ${at(0)} at k = 0 to ${at(3)} at 3, rises to ${at(6)} at 6, and is the same for every p.`;
}

function tablesOf(data, state) {
  if (state.view === "words") {
    const pair = pairOf(data, state);
    const cols = [1, 2, 3, 4].map((j) => `column ${j}`);
    return [["output", "Out of attention"], ["input", "Into attention"]].flatMap(([part, words]) =>
      pair.map((one, i) => matrixTable({ name: `${part}.${i}`, rowName: "word", cols, rows: one.words,
        caption: `${words}: ${one.words.join(" ")}`, values: one[part] })));
  }
  const { p, k } = state;
  const [here, next] = [code(p, data.thetas), code(p + k, data.thetas)];
  return [
    matrixTable({ name: "hands", caption: `Hands, turned by k = ${k}`, rowName: "pair i",
      cols: ["θ per position", "positions for a turn", "degrees turned"],
      rows: data.thetas.map((_, i) => i), values: hands(k, data.thetas) }),
    matrixTable({ name: "products", caption: `Dot products from p = ${p}`, rowName: "k",
      cols: ["PE(p) · PE(p + k)", "Σ cos(k · θ)"],
      rows: Array.from({ length: data.steps + 1 }, (_, i) => i),
      values: products(p, data.steps, data.thetas) }),
    matrixTable({ name: "code", caption: "The two codes", rowName: "dimension",
      cols: [`PE(${p})`, `PE(${p + k})`], rows: here.map((_, j) => j),
      values: here.map((v, j) => [v, next[j]]) }),
  ];
}

const TITLES = { code: "Sinusoidal positions", words: "Three words, shuffled" };

export default {
  render({ model, el }) {
    const data = model.get("data");
    const s = store(model, {}, (state) => cleanState(state, data));
    const picture = svg("svg", { role: "img" });
    const box = h("div", {}, picture);
    // A first guess, until the page has measured it.
    let width = Math.min(Math.max(el.clientWidth || window.innerWidth - 64, 280), 690);

    const say = () => (s.get().view === "words" ? sayWords : sayCode)(data, s.get());
    const draw = () => {
      const state = s.get();
      const place = layout(width);
      const shown = state.view === "words" ? drawWords(width, data, state) : {
        height: place.height,
        nodes: [drawMap(place.map, data, state), drawClocks(place.clocks, data, state),
          drawProducts(place.dots, data, state)],
      };
      picture.setAttribute("viewBox", `0 0 ${width} ${shown.height}`);
      picture.setAttribute("width", width);
      picture.setAttribute("height", shown.height);
      picture.setAttribute("aria-label", altOf(data, state));
      picture.replaceChildren(...shown.nodes.flat(Infinity).filter(Boolean));
    };

    // Each view has two controls of its own.
    const own = {
      code: [
        slider({ label: "Position p", min: 0, max: data.first, store: s, key: "p" }),
        slider({ label: "Steps k", min: 0, max: data.steps, store: s, key: "k" }),
      ],
      words: [
        button("Shuffle the words", () =>
          s.set({ order: (s.get().order % (data.words.length - 1)) + 1 })),
        toggle({ label: "Add the positions", store: s, key: "placed" }),
      ],
    };
    const arm = () => {
      const { view } = s.get();
      Object.entries(own).forEach(([name, controls]) =>
        controls.forEach((c) => { (c.el ?? c).hidden = name !== view; }));
      ui.root.setAttribute("aria-label", TITLES[view]);
      ui.root.querySelector(".dd-title").textContent = TITLES[view];
    };
    const ui = shell(el, {
      model, store: s, title: TITLES.code, figure: box, summary: say,
      table: () => tablesOf(data, s.get()),
      paper: () => tablesOf(data, s.get()).slice(0, s.get().view === "words" ? 2 : 1),
      controls: [...own.code, ...own.words],
      more: [choice({ label: "Show", store: s, key: "view", options: [
        { value: "code", label: "the code of a position" },
        { value: "words", label: "no positions: three words, shuffled" },
      ] })],
    });
    ui.root.classList.add("sn-widget");
    s.subscribe(() => { arm(); draw(); });
    arm();
    draw(); // at once, so that nothing below it has to move later
    const stop = onResize(box, (w) => { width = w; draw(); });
    return () => { stop(); ui.destroy(); };
  },
};
