// SPDX-License-Identifier: MIT
// Queries against keys: what a rule allows, what an appended word changes, what leaks.
import {
  h, svg, store, shell, slider, choice, toggle, button, matrixTable, onResize,
} from "./common.js";

// The rule of deepdive.masks: may query t look at key s?
export function may(rule, t, s, prefix, window) {
  if (rule === "bidirectional") return true;
  if (s <= t && s > t - window) return true;
  return rule === "prefix" && t < prefix && s < prefix;
}

export function allowed(rule, n, prefix, window) {
  return Array.from({ length: n }, (_, t) =>
    Array.from({ length: n }, (_, s) => Number(may(rule, t, s, prefix, window))));
}

// Older rows whose allowed set changed when the last word came.
export function changedRows(rule, n, prefix, window) {
  const now = allowed(rule, n, prefix, window);
  const before = allowed(rule, n - 1, prefix, window);
  return before.map((row, t) => [...row, 0].some((v, s) => v !== now[t][s]));
}

export function counts(rule, n, prefix, window) {
  const now = allowed(rule, n, prefix, window);
  const changed = changedRows(rule, n, prefix, window).filter(Boolean).length;
  return {
    allowed: now.flat().reduce((a, b) => a + b, 0),
    cells: n * n,
    kept: n - 1 - changed,
    changed,
    leaks: now.slice(0, -1).filter((row, t) => row[t + 1]).length,
  };
}

const args = ({ rule, n, prefix, window }) => [rule, n, prefix, window];

// Slanted lines of a blocked cell, drawn as Python draws them.
function hatch(x, y, size) {
  let path = "";
  for (let shift = 8; shift < 2 * size; shift += 8) {
    path += `M${x + Math.max(0, shift - size)} ${y + Math.min(shift, size)}` +
      `L${x + Math.min(shift, size)} ${y + Math.max(0, shift - size)}`;
  }
  return [
    svg("rect", { x, y, width: size, height: size, rx: 4, class: "dd-blocked" }),
    svg("path", { d: path, class: "dd-hatching" }),
  ];
}

export default {
  render({ model, el }) {
    const words = model.get("data").words;
    const most = words.length;
    const clamp = (x, low) => Math.min(Math.max(low, Math.trunc(x)), most);
    const s = store(model, {}, (state) => ({
      ...state,
      rule: ["causal", "bidirectional", "prefix"].includes(state.rule) ? state.rule : "causal",
      n: clamp(state.n, 1), prefix: clamp(state.prefix, 0), window: clamp(state.window, 1),
    }));
    const picture = svg("svg", { role: "img" });
    const box = h("div", {}, picture);
    let width = 0;

    const cell = (x, y, size, state, mask, t, j) => {
      const { n, targets } = state;
      const target = targets && j === t + 1;
      const middle = { cx: x + size / 2, cy: y + size / 2 };
      const ring = target && svg("circle", { ...middle, r: size * 0.34,
        class: mask[t][j] ? "mg-ring mg-leak" : "mg-ring" });
      if (!mask[t][j]) return [hatch(x, y, size), ring];
      const fresh = n > 1 && (t === n - 1 || j === n - 1);
      const arm = size * 0.16;
      return [
        svg("rect", { x, y, width: size, height: size, rx: 4, class: fresh ? "mg-fresh" : "mg-may" }),
        fresh ? svg("path", { class: "mg-plus",
          d: `M${middle.cx - arm} ${middle.cy}h${2 * arm}M${middle.cx} ${middle.cy - arm}v${2 * arm}` })
          : svg("circle", { ...middle, r: Math.max(2.5, size * 0.1), class: "mg-pip" }),
        ring,
      ];
    };

    const draw = () => {
      if (!width) return;
      const state = s.get();
      const { n, targets } = state;
      const mask = allowed(...args(state));
      const changed = changedRows(...args(state));
      const found = counts(...args(state));
      const wide = width >= 560;
      const narrow = width < 420;
      const gap = narrow ? 2 : 3;
      const longest = Math.max(...words.map((w) => w.length)) * 9.6;
      const names = Math.max(narrow ? 58 : 82, longest + 12);
      const status = narrow ? 58 : 74;
      const side = wide ? 142 : 0;
      const size = Math.min(wide ? 36 : 44, Math.floor((width - names - status - side) / most) - gap);
      const turned = size + gap < longest;
      const top = turned ? 80 : 58;
      const grid = most * (size + gap);
      const height = top + grid + (wide ? 6 : narrow ? 112 : 96);
      const at = (i) => i * (size + gap);
      const facts = [
        [`${found.allowed} of ${found.cells}`, "cells allowed"],
        [`${found.changed} of ${n - 1}`, "older rows changed"],
        [`${found.leaks} of ${n - 1}`, "rows that peek at", targets ? "their target" : "the next word"],
      ];
      picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
      picture.setAttribute("width", width);
      picture.setAttribute("height", height);
      picture.setAttribute("aria-label", `Grid of ${n} queries by ${n} keys; the line below it says what it shows.`);
      picture.replaceChildren(...[
        svg("text", { x: names, y: 18, class: "dd-axis dd-k" }, "key →"),
        svg("text", { x: names - 10, y: top - 12, class: "dd-axis dd-q", "text-anchor": "end" },
          narrow ? "query" : "query ↓"),
        words.map((word, j) => {
          const [x, y] = [names + at(j) + size / 2, top - 10];
          const place = turned ? { transform: `translate(${x + 5} ${y}) rotate(-55)` }
            : { x, y, "text-anchor": "middle" };
          return svg("text", { ...place, class: `mg-word ${j < n ? "dd-k" : "mg-ghost"}` }, word);
        }),
        words.map((word, t) => {
          const y = top + at(t);
          const older = t < n - 1;
          const said = t >= n ? "" : !older ? (n > 1 ? "new" : "") : changed[t] ? "changed" : "same";
          const leak = targets && older && mask[t][t + 1];
          return [
            svg("text", { x: names - 10, y: y + size / 2 + 5, "text-anchor": "end",
              class: `mg-word ${t < n ? "dd-q" : "mg-ghost"}` }, word),
            words.map((_, j) => (t < n && j < n ? cell(names + at(j), y, size, state, mask, t, j)
              : svg("rect", { x: names + at(j), y, width: size, height: size, rx: 4, class: "mg-empty" }))),
            svg("text", { x: names + grid + 6, y: y + size / 2 + 5,
              class: `dd-status${changed[t] || leak ? " mg-strong" : ""}` }, leak ? "leak" : said),
          ];
        }),
        facts.map(([big, ...small], i) => {
          const [x, y] = wide ? [width - side + 2, top + 28 + i * 84]
            : [Math.max(names + 40, 110), top + grid + 30 + i * 28];
          return [
            svg("text", { x, y, class: "dd-big", "text-anchor": wide ? "start" : "end" }, big),
            (wide || narrow ? small : [small.join(" ")]).map((words, line) => svg("text", {
              x: wide ? x : x + 10, y: (wide ? y + 22 : y - 1) + 18 * line, class: "dd-status" }, words)),
          ];
        }),
      ].flat(Infinity).filter(Boolean));
    };

    const summary = () => {
      const state = s.get();
      const found = counts(...args(state));
      const { n, rule, prefix, window } = state;
      const formula = rule === "bidirectional" ? " = n²"
        : found.allowed === (n * (n + 1)) / 2 ? " = n(n + 1)/2" : "";
      const how = rule === "prefix" ? `prefix of ${prefix}` : rule;
      const last = words[n - 1];
      const older = n === 1 ? "" : found.changed
        ? ` Appending “${last}” changed ${found.changed} of ${n - 1} older rows, so the next layer’s K and V change too.`
        : ` Appending “${last}” left all older rows as they were: the next layer’s K and V stay, and can be kept.`;
      const leak = state.targets && n > 1 ? (found.leaks
        ? ` ${found.leaks} of ${n - 1} rows can read the word they should predict: a leak.`
        : " No row can read the word it should predict.") : "";
      return `${how}${rule !== "bidirectional" && window < n ? `, window ${window}` : ""}, n = ${n}: ` +
        `${found.allowed} of ${found.cells} cells allowed${formula}.${older}${leak}`;
    };
    const table = () => {
      const state = s.get();
      const own = words.slice(0, state.n);
      const found = counts(...args(state));
      return [
        matrixTable({ name: "mask", caption: "1 = may attend, 0 = blocked", rowName: "query",
          colName: "key", rows: own, cols: own, values: allowed(...args(state)), digits: 0 }),
        matrixTable({ name: "counts", caption: "Counts", cols: ["number"], digits: 0,
          rows: ["cells allowed", "cells in all", "older rows kept", "older rows changed",
            "rows that peek at the next word"],
          values: Object.values(found).map((v) => [v]) }),
      ];
    };

    const prefix = slider({ label: "Prefix length", show: "Prefix", min: 0, max: most, store: s, key: "prefix" });
    const append = button("Append a word", () => s.set({ n: s.get().n + 1 }));
    const remove = button("Remove the last", () => s.set({ n: s.get().n - 1 }));
    const arm = () => {
      const { n, rule } = s.get();
      // aria-disabled keeps the keyboard's place; the clamp makes a further press harmless.
      append.setAttribute("aria-disabled", String(n === most));
      remove.setAttribute("aria-disabled", String(n === 1));
      // Its place is kept, so that choosing the rule moves nothing.
      prefix.el.style.visibility = rule === "prefix" ? "" : "hidden";
    };
    const ui = shell(el, {
      model, store: s, title: "Who may attend to whom", figure: box, summary, table,
      paper: () => table()[1],
      controls: [
        choice({ label: "Rule", store: s, key: "rule", options: [
          { value: "causal", label: "causal" },
          { value: "bidirectional", label: "bidirectional" },
          { value: "prefix", label: "prefix" },
        ] }),
        h("div", { class: "dd-row" }, append, remove),
        prefix,
      ],
      more: [
        slider({ label: "Window (causal and prefix)", min: 1, max: most, store: s, key: "window" }),
        toggle({ label: "Ring each row's target: the next word", store: s, key: "targets" }),
      ],
    });
    ui.root.classList.add("mg-widget");
    s.subscribe(() => { arm(); draw(); });
    arm();
    const stop = onResize(box, (w) => { width = w; draw(); });
    return () => { stop(); ui.destroy(); };
  },
};
