// SPDX-License-Identifier: MIT
// One draw of 16 weights as bars, and what happens to the largest of them on average.
import {
  h, svg, svgRich, fmt, count, softmax, store, shell, slider, toggle, button, matrixTable, onResize, onData,
} from "./common.js";

// What the scores are divided by before the softmax.
export function divisor(d, scaled, t) {
  return (scaled ? Math.sqrt(d) : 1) * t;
}

// softmax(q·k / (√d · T)), or without √d.
export function weights(scores, d, scaled, t = 1) {
  return softmax(scores.map((s) => s / divisor(d, scaled, t)));
}

// 0.76325 → "76 %"
const percent = (share) => `${Math.round(100 * share)} %`;

// The largest weight p, where it stands, and its slope p(1 − p).
export function largest(shares) {
  const p = Math.max(...shares);
  return { p, at: shares.indexOf(p), slope: p * (1 - p) };
}

const WAYS = [
  { key: "raw", scaled: false, words: "unscaled", dash: "7 4" },
  { key: "scaled", scaled: true, words: "÷ √d_k", dash: null },
];

// Room for the names of the lines, which stand at their right ends.
const NAMES = 82;

// Where everything stands for a given width of the picture.
function layout(width) {
  const wide = width >= 600;
  const bars = { x: 40, y: width >= 400 ? 44 : 66, w: wide ? width * 0.5 - 50 : width - 44, h: wide ? 268 : 170 };
  const x = wide ? width * 0.5 + 46 : 44;
  const w = width - x - NAMES;
  const first = wide ? 48 : bars.y + bars.h + 96;
  const plotH = wide ? 84 : 96;
  const under = width < 330 ? ["by the number that", "enters the softmax"]
    : ["by the number that enters the softmax"];
  const second = first + plotH + 88 + 17 * under.length;
  return {
    bars, height: second + plotH + 40,
    plots: [
      { what: "largest", words: "mean largest weight", high: 1, x, y: first, w, h: plotH },
      { what: "slope", words: "mean slope p(1 − p)", under,
        high: 0.25, x, y: second, w, h: plotH },
    ],
  };
}

function axis(box, high, ticks) {
  return ticks.map((tick) => {
    const y = box.y + box.h * (1 - tick / high);
    return [
      svg("line", { x1: box.x, x2: box.x + box.w, y1: y, y2: y, class: "ss-gridline" }),
      svg("text", { x: box.x - 7, y: y + 5, "text-anchor": "end", class: "dd-tick" }, String(tick)),
    ];
  });
}

function plot(box, data, state) {
  const t = data.temperatures.indexOf(state.t);
  const at = data.widths.indexOf(state.d);
  const step = box.w / (data.widths.length - 1);
  const place = (i, v) => [box.x + i * step, box.y + box.h * (1 - v / box.high)];
  const rows = WAYS.map((way) => data[`${way.key}_${box.what}`][t]);
  // The names stand beyond the ends, where no marker goes, and never on each other.
  const ends = rows.map((row) => place(row.length - 1, row.at(-1))[1] + 5);
  const lower = ends[0] >= ends[1] ? 0 : 1, lack = 17 - Math.abs(ends[0] - ends[1]);
  if (lack > 0) { ends[lower] += lack / 2; ends[1 - lower] -= lack / 2; }
  return [
    svg("text", { x: box.x - 32, y: box.y - 22 - 18 * (box.under ?? []).length, class: "dd-head" }, box.words),
    (box.under ?? []).map((line, i, all) => svg("text", {
      x: box.x - 32, y: box.y - 20 - 17 * (all.length - 1 - i), class: "dd-tick" }, line)),
    axis(box, box.high, [0, box.high / 2, box.high]),
    svg("line", { x1: box.x + at * step, x2: box.x + at * step, y1: box.y - 8, y2: box.y + box.h,
      class: "ss-now" }),
    WAYS.map((way, n) => {
      const points = rows[n].map((v, i) => place(i, v));
      const [x, y] = points[at];
      const name = { x: box.x + box.w + 13, y: ends[n], class: `ss-name ss-${way.key}` };
      return [
        svg("polyline", { points: points.map((p) => p.join(",")).join(" "), fill: "none",
          class: `ss-curve ss-${way.key}`, "stroke-dasharray": way.dash }),
        way.scaled ? svg("circle", { cx: x, cy: y, r: 6, class: `ss-dot ss-${way.key}` })
          : svg("rect", { x: x - 5.5, y: y - 5.5, width: 11, height: 11, class: `ss-dot ss-${way.key}` }),
        svg("text", name, svgRich(way.words, 15)),
      ];
    }),
    data.widths.map((d, i) => i % 2 === 0 && svg("text", { x: box.x + i * step,
      y: box.y + box.h + 18, "text-anchor": "middle", class: "dd-tick" }, String(d))),
    svg("text", { x: box.x + box.w / 2, y: box.y + box.h + 37, "text-anchor": "middle",
      class: "dd-axis" }, svgRich("d_k", 16)),
  ];
}

export default {
  render({ model, el }) {
    let data = model.get("data");
    const nearest = (list, x) => list.reduce((a, b) => (Math.abs(b - x) < Math.abs(a - x) ? b : a));
    const s = store(model, {}, (state) => ({
      ...state,
      d: nearest(data.widths, state.d),
      t: nearest(data.temperatures, state.t),
      draw: Math.min(Math.max(0, Math.trunc(state.draw)), data.scores.length - 1),
    }));
    const scores = () => data.scores[s.get().draw][data.widths.indexOf(s.get().d)];
    const shares = () => weights(scores(), s.get().d, s.get().scaled, s.get().t);

    // The bars stay the same elements, so that they can glide from state to state.
    const bars = data.scores[0][0].map(() => svg("rect", { class: "ss-bar", rx: 2 }));
    const ground = svg("g");
    const value = svg("text", { class: "ss-value", "text-anchor": "middle" });
    const picture = svg("svg", { role: "img" }, ground, bars, value);
    const box = h("div", {}, picture);
    let width = 0;

    const draw = () => {
      if (!width) return;
      const state = s.get();
      const now = shares();
      const { p, at, slope } = largest(now);
      const { bars: b, plots, height } = layout(width);
      const step = b.w / now.length;
      picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
      picture.setAttribute("width", width);
      picture.setAttribute("height", height);
      picture.setAttribute("aria-label", `Bars of ${now.length} weights, the largest ` +
        `${fmt(p)} with slope ${fmt(slope)}; and two plots against d_k: ${trend()}`);
      now.forEach((v, i) => {
        bars[i].setAttribute("x", b.x + i * step + step * 0.14);
        bars[i].setAttribute("width", step * 0.72);
        bars[i].setAttribute("y", b.y + b.h * (1 - v));
        bars[i].setAttribute("height", b.h * v);
        bars[i].setAttribute("class", `ss-bar ss-${state.scaled ? "scaled" : "raw"}`);
      });
      value.setAttribute("x", b.x + (at + 0.5) * step);
      value.setAttribute("y", b.y + b.h * (1 - p) - 8);
      value.textContent = fmt(p);
      const under = [state.scaled && `√${state.d}`, state.t !== 1 && `${state.t}`].filter(Boolean);
      const marked = [0, 3, 7, 11, 15].filter((i) => i < now.length);
      ground.replaceChildren(
        svg("text", { x: b.x - 32, y: 22, class: "dd-head" }, "softmax(",
          svg("tspan", { class: "dd-q" }, "q"), "·", svg("tspan", { class: "dd-k" }, "k"),
          under.length ? ` ⁄ ${under.length > 1 ? `(${under.join(" · ")})` : under[0]})` : ")",
          svg("tspan", b.y > 44 ? { x: b.x - 32, dy: 24 } : { dx: 22 }, svgRich(`d_k = ${state.d}`, 17))),
        ...axis(b, 1, [0, 0.25, 0.5, 0.75, 1]).flat(),
        ...marked.map((i) => svg("text", { x: b.x + (i + 0.5) * step, y: b.y + b.h + 18,
          "text-anchor": "middle", class: "dd-tick" }, String(i + 1))),
        svg("text", { x: b.x + b.w / 2, y: b.y + b.h + 37, "text-anchor": "middle",
          class: "dd-axis dd-k" }, "key"),
        ...plots.flatMap((one) => plot(one, data, state)).flat(3).filter(Boolean),
      );
    };

    // Where the lines go, for who can't see them.
    const trend = () => {
      const at = data.temperatures.indexOf(s.get().t);
      return ["largest weight", "slope"].map((words, i) => WAYS.map((way) => {
        const row = data[`${way.key}_${["largest", "slope"][i]}`][at].map((x) => fmt(x, i + 2));
        return `mean ${words} ${way.words}: ${row[0]} at d_k = ` +
          `${data.widths[0]}, ${row.at(-1)} at ${data.widths.at(-1)}`;
      }).join("; ")).join("; ") + ".";
    };

    const summary = () => {
      const { d, scaled, t, draw: n } = s.get();
      const { p } = largest(shares());
      const way = scaled ? "scaled" : "raw";
      const [at, i] = [data.temperatures.indexOf(t), data.widths.indexOf(d)];
      return `d_k = ${d}${t === 1 ? "" : `, T = ${t}`}, ${scaled ? "divided by √d_k" : "not scaled"}: ` +
        `largest weight ${fmt(p)} in draw ${n + 1}; on average ${fmt(data[`${way}_largest`][at][i], 2)}, ` +
        `with slope ${fmt(data[`${way}_slope`][at][i])}. Slope below 0.01: ` +
        `${percent(data.raw_dead[at][i])} of the draws unscaled, ` +
        `${percent(data.scaled_dead[at][i])} divided by √d_k.`;
    };
    const table = () => {
      const { d, scaled, t } = s.get();
      const at = data.temperatures.indexOf(t);
      const now = shares();
      return [
        matrixTable({ name: "weights", caption: "This draw", rowName: "key",
          cols: ["q·k", "into softmax", "weight"], rows: now.map((_, i) => i + 1),
          values: scores().map((x, i) => [x, x / divisor(d, scaled, t), now[i]]) }),
        matrixTable({ name: "means", caption: `Means over ${count(data.draws)} draws`, rowName: "d_k",
          cols: WAYS.flatMap(({ words }) =>
            [`largest, ${words}`, `slope, ${words}`, `slope < 0.01, ${words}`]),
          rows: data.widths, values: data.widths.map((_, i) => WAYS.flatMap(({ key }) =>
            ["largest", "slope", "dead"].map((what) => data[`${key}_${what}`][at][i]))) }),
      ];
    };
    const ui = shell(el, {
      model, store: s, title: "What ÷ √d_k does to softmax", figure: box, summary, table,
      paper: () => table()[1],
      controls: [
        slider({ label: "Width d_k", values: data.widths, store: s, key: "d" }),
        toggle({ label: "Divide by √d_k", store: s, key: "scaled" }),
      ],
      more: [
        slider({ label: "Temperature T", values: data.temperatures, store: s, key: "t" }),
        button("Another draw", () => s.set({ draw: (s.get().draw + 1) % data.scores.length })),
      ],
    });
    s.subscribe(draw);
    const stops = [
      onResize(box, (w) => { width = w; draw(); }),
      onData(model, (next) => { data = next; s.reread(); draw(); ui.refresh(); }),
      ui.destroy,
    ];
    return () => stops.forEach((stop) => stop());
  },
};
