// SPDX-License-Identifier: MIT
// What is left of each word in a state: three readers, and one number to a power.
import {
  h, svg, fmt, store, shell, slider, choice, toggle, matrixTable, onResize, onData,
} from "./common.js";

// Each size as a share of their sum.
export function shares(sizes) {
  const total = sizes.reduce((a, b) => a + b, 0);
  return sizes.map((size) => size / total);
}

// What is left after n words, each of which multiplies by rho.
export function gain(rho, n) {
  return rho ** n;
}

// After how many words rho to the power n is a half, or two; null for rho = 1.
export function halving(rho) {
  return rho === 1 ? null : Math.log(2) / Math.abs(Math.log(rho));
}

// 0.0341 → "3.4 %"
export function percent(share) {
  return share < 0.0005 ? "< 0.1 %" : `${fmt(100 * share, 1)} %`;
}

// 0.1216 → "0.12", 131.5 → "131.5", 2.66e−5 → "2.7 · 10⁻⁵"
export function written(x) {
  if (x >= 100) return x >= 1e4 ? scientific(x) : fmt(x, 1);
  if (x >= 0.01) return fmt(x, x >= 0.1 ? 2 : 3);
  return scientific(x);
}

function scientific(x) {
  const [digits, power] = x.toExponential(1).split("e");
  return `${digits} · 10${raised(Number(power))}`;
}

// −6 → "10⁻⁶", 0 → "1"
export function ten(power) {
  return power === 0 ? "1" : `10${raised(power)}`;
}

export function raised(n) {
  return [...String(n)].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(c)])).join("");
}

// A state that can be drawn, whatever the address said.
export function cleanState(state, data) {
  const whole = (x, low, high) => Math.min(Math.max(low, Math.trunc(x) || 0), high);
  const sentence = whole(state.sentence, 0, data.sentences.length - 1);
  const [low, high] = data.rho;
  const rho = Math.round(100 * Math.min(Math.max(low, Number(state.rho) || 1), high)) / 100;
  return {
    ...state, sentence, rho, t: whole(state.t, 1, data.sentences[sentence].words.length),
    n: whole(state.n, 0, data.steps), view: state.view === "gain" ? "gain" : "readers",
  };
}

// The first full stop stands for a beginning.
export function name(words, k) {
  return words[k] !== "." ? words[k] : k ? "(full stop)" : "(start)";
}

// What the picture shows, for who cannot see it; the summary line has it in short.
export function describe(state, data) {
  const { view, rho, n, t, sentence, log } = state;
  if (view === "gain") {
    return `A straight line on an axis of powers of ten: ${rho} to the power of the distance. ` +
      `After ${n} words ${written(gain(rho, n))} is left.`;
  }
  const { words, noun, sizes } = data.sentences[sentence];
  const at = `“${name(words, t - 1)}”`;
  const axis = log ? ", on an axis of powers of ten" : "";
  if (noun >= t) {
    return `Bars for the words up to ${at}: how much each moves the state there, in a plain RNN, ` +
      `an LSTM and an attention model${axis}.`;
  }
  const told = data.readers.map((reader, i) => {
    const [before, after] = ["start", "trained"].map((when) => percent(shares(sizes[i][when][t - 1])[noun]));
    return `${after} in the ${reader} model (before training ${before})`;
  });
  return `Bars: the share of each word in what moves the state at ${at}, in three readers${axis}. ` +
    `“${words[noun]}”, ${t - 1 - noun} words back, has ${told.join(", ")}.`;
}

const FLOOR = 6; // the lowest power of ten on the axis of shares is −6

// How high a share stands on its axis, from 0 to 1: what is below 10⁻⁶ stands at 0.
export function up(share, high, log) {
  return log ? Math.max(0, 1 + Math.log10(Math.max(share, 1e-300)) / FLOOR) : share / high;
}

// The lines of that axis: [share, label].
export function ticks(high, log) {
  if (log) return [-6, -4, -2, 0].map((p) => [10 ** p, ten(p)]);
  const part = high > 0.5 ? 0.5 : 0.25;
  return Array.from({ length: Math.floor(high / part) + 1 }, (_, j) => [j * part, `${100 * j * part} %`]);
}

// The shares after word t for each reader: bars for after training, a line for before it.
export function drawn(one, t) {
  return one.sizes.map((sizes) => ({ bars: shares(sizes.trained[t - 1]), line: shares(sizes.start[t - 1]) }));
}

// One axis for all three, up to the next quarter above the highest share.
export function highest(found) {
  return Math.ceil(4 * Math.max(...found.flatMap(({ bars, line }) => [...bars, ...line]))) / 4;
}

// One reader in the box x, y, w, tall.
export function plot(i, { x, y, w, tall }, state, data, narrow) {
  const { log, t, sentence } = state;
  const { words, noun } = data.sentences[sentence];
  const found = drawn(data.sentences[sentence], t);
  const { bars, line } = found[i];
  const high = highest(found);
  const step = w / words.length;
  const level = (v) => y + tall * (1 - up(v, high, log));
  const at = (k, v) => [x + (k + 0.5) * step, level(v)];
  return [
    svg("text", { x, y: y - 14, class: "dd-head" }, data.readers[i]),
    noun < t && svg("text", { x: x + w, y: y - 14, class: "dd-status", "text-anchor": "end" },
      `before${narrow ? "" : " training"}: ${percent(line[noun])}`),
    ticks(high, log).map(([v, label]) => [
      svg("line", { x1: x, x2: x + w, y1: level(v), y2: level(v), class: "fm-grid" }),
      svg("text", { x: x - 6, y: level(v) + 5, class: "dd-tick", "text-anchor": "end" }, label),
    ]),
    bars.map((v, k) => svg("rect", {
      x: x + (k + 0.14) * step, width: 0.72 * step, rx: 2,
      y: level(v), height: tall * up(v, high, log), class: k === noun ? "fm-bar fm-mark" : "fm-bar",
    })),
    noun < t && svg("path", { class: "fm-here-mark",
      d: `M${at(noun, Math.max(bars[noun], line[noun])).join(" ")}m-6 -15h12l-6 10z` }),
    svg("polyline", { points: line.map((v, k) => at(k, v).join(",")).join(" "), class: "fm-before" }),
    line.length === 1 && svg("circle", { cx: at(0, line[0])[0], cy: at(0, line[0])[1], r: 4, class: "fm-dot" }),
    // The number stands where the bar does: some bars are hardly higher than a line.
    noun < t && svg("text", { x: at(noun, 0)[0] + 10, y: Math.max(at(noun, Math.max(bars[noun], line[noun]))[1] - 5, y + 8),
      class: "fm-share" }, `${words[noun]} ${percent(bars[noun])}`),
  ];
}

// The three readers above each other: [height, nodes].
export function drawReaders(width, state, data) {
  const { t, sentence } = state;
  const { words, noun } = data.sentences[sentence];
  const [x, tall, gap, top] = [50, 70, 36, 34]; // all three fit on a projector
  const w = width - x - 6;
  const step = w / words.length;
  const low = top + data.readers.length * (tall + gap) - gap;
  return [low + 88, [
    data.readers.map((_, i) => plot(i, { x, y: top + i * (tall + gap), w, tall }, state, data, width < 420)),
    words.map((word, k) => svg("text", { "text-anchor": "end", transform:
      `translate(${x + (k + 0.5) * step + 5} ${low + 16}) rotate(-60)`,
      class: `fm-word${k === noun ? " fm-noun" : k === t - 1 ? " fm-here" : k >= t ? " fm-later" : ""}` }, word)),
    svg("text", { x: 0, y: low + 84, class: "dd-status" },
      `${width < 480 ? "bars: trained · dashes: before · ▼ noun"
        : "bars: after training · dashed line: before it · ▼ the noun that decides the verb"}`),
  ]];
}

// One factor to the power of the distance: [height, nodes].
export function drawGain(width, { rho, n }, data) {
  const [x, y, tall] = [58, 48, 300];
  const w = width - x - 14;
  const [low, high] = data.tens;
  const at = (steps, v) => [x + (w * steps) / data.steps,
    y + tall * (1 - (Math.log10(v) - low) / (high - low))];
  const [cx, cy] = at(n, gain(rho, n));
  const label = `n = ${n}: ${written(gain(rho, n))}`;
  const right = cx < x + w * 0.55;
  const level = right === rho > 1 ? cy + 26 : cy - 14; // beside the line, not on it
  const tens = Array.from({ length: (high - low) / 5 + 1 }, (_, i) => low + 5 * i);
  return [y + tall + 50, [
    svg("text", { x: 4, y: 22, class: "dd-head" }, `${rho} to the power of n`),
    tens.map((p) => {
      const grid = at(0, 10 ** p)[1];
      return [svg("line", { x1: x, x2: x + w, y1: grid, y2: grid, class: "fm-grid" }),
        svg("text", { x: x - 7, y: grid + 5, class: "dd-tick", "text-anchor": "end" }, ten(p))];
    }),
    Array.from({ length: 6 }, (_, i) => (data.steps / 5) * i).map((steps) => svg("text", {
      x: at(steps, 1)[0], y: y + tall + 19, class: "dd-tick", "text-anchor": "middle" }, String(steps))),
    svg("text", { x: x + w / 2, y: y + tall + 42, class: "dd-axis", "text-anchor": "middle" }, "words n"),
    svg("polyline", { points: [at(0, 1), at(data.steps, gain(rho, data.steps))].join(" "), class: "fm-line" }),
    svg("line", { x1: cx, x2: cx, y1: y, y2: y + tall, class: "fm-now" }),
    svg("circle", { cx, cy, r: 6, class: "fm-point" }),
    svg("text", { x: cx + (right ? 12 : -12), y: Math.min(Math.max(level, y + 18), y + tall - 8), class: "fm-value",
      "text-anchor": right ? "start" : "end" }, label),
  ]];
}

// The line under the picture.
export function summaryOf(state, data) {
  const { view, rho, n, t, sentence } = state;
  if (view === "gain") {
    const half = halving(rho);
    const way = half === null ? "nothing is lost or added"
      : `it ${rho < 1 ? "halves" : "doubles"} every ${fmt(half, 1)} words`;
    return `A factor of ${rho} a word: after ${n} words ${written(gain(rho, n))} is left; ${way}.`;
  }
  const one = data.sentences[sentence];
  const { words, noun } = one;
  const at = `State after “${name(words, t - 1)}”, T = ${t}`;
  if (noun >= t) return `${at}: the noun that decides the verb is yet to come.`;
  const told = drawn(one, t).map(({ bars, line }, i) =>
    `${data.readers[i]} ${percent(bars[noun])}, before training ${percent(line[noun])}`);
  const back = t - 1 - noun;
  const where = back === 0 ? "this word" : `${back} word${back > 1 ? "s" : ""} back`;
  return `${at}. Share of “${words[noun]}”, ${where}: ${told.join("; ")}.`;
}

export default {
  render({ model, el }) {
    let data = model.get("data");
    const s = store(model, {}, (state) => cleanState(state, data));
    const one = () => data.sentences[s.get().sentence];
    const picture = svg("svg", { role: "img" });
    const box = h("div", {}, picture);
    let width = 0;

    const draw = () => {
      if (!width) return;
      const [height, parts] = (s.get().view === "gain" ? drawGain : drawReaders)(width, s.get(), data);
      picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
      picture.setAttribute("width", width);
      picture.setAttribute("height", height);
      picture.setAttribute("aria-label", describe(s.get(), data));
      picture.replaceChildren(...parts.flat(Infinity).filter(Boolean));
    };

    const summary = () => summaryOf(s.get(), data);

    const table = () => {
      const { rho, n, t } = s.get();
      const { words, sizes } = one();
      const columns = sizes.flatMap((reader) => ["start", "trained"].flatMap((when) => {
        const row = reader[when][t - 1];
        return [row, shares(row)];
      }));
      const steps = [...new Set([...Array.from({ length: data.steps / 10 + 1 }, (_, i) => 10 * i), n])]
        .sort((a, b) => a - b);
      return [
        matrixTable({ name: "influence", caption: `State after word ${t}: size and share of each word`,
          rowName: "word", digits: 4,
          cols: data.readers.flatMap((reader) => ["before", "trained"].flatMap((when) =>
            [`${reader}, ${when}: size`, `${reader}, ${when}: share`])),
          rows: words.slice(0, t).map((_, k) => `${k + 1} ${name(words, k)}`),
          values: columns[0].map((_, k) => columns.map((column) => column[k])) }),
        matrixTable({ name: "gain", caption: `${rho} to the power of n`, rowName: "n", cols: ["left"],
          rows: steps, values: steps.map((k) => [gain(rho, k)]) }),
      ];
    };

    const longest = Math.max(...data.sentences.map(({ words }) => words.length));
    const tSlider = slider({ label: "Word T", min: 1, max: longest, store: s, key: "t",
      say: (t) => `${t}, ${name(one().words, t - 1)}` });
    const rhoSlider = slider({ label: "Factor ρ", min: data.rho[0], max: data.rho[1], step: 0.01, store: s, key: "rho" });
    const nSlider = slider({ label: "Distance n", min: 0, max: data.steps, store: s, key: "n" });
    const pick = choice({ label: "Sentence", kind: "select", store: s, key: "sentence",
      options: data.sentences.map(({ words }, i) => ({ value: i, label: words.slice(1).join(" ") })) });
    const logs = toggle({ label: "Axis in powers of ten", store: s, key: "log" });
    const arm = () => {
      const gains = s.get().view === "gain";
      for (const c of [tSlider, pick, logs]) c.el.hidden = gains;
      details.hidden = gains;
      ui.root.classList.toggle("fm-gain", gains);
      for (const c of [rhoSlider, nSlider]) c.el.hidden = !gains;
      const length = one().words.length;
      for (const input of [tSlider.range, tSlider.box]) input.max = String(length);
    };
    const ui = shell(el, {
      model, store: s, title: "What is left of each word", figure: box, summary, table,
      paper: () => table()[s.get().view === "gain" ? 1 : 0],
      controls: [
        choice({ label: "Show", store: s, key: "view", options: [
          { value: "readers", label: "three readers" }, { value: "gain", label: "one factor" }] }),
        tSlider, rhoSlider, nSlider,
      ],
      more: [pick, logs],
    });
    ui.root.classList.add("fm-widget");
    const details = ui.root.querySelector(".dd-more");
    s.subscribe(() => { arm(); draw(); });
    arm();
    const stops = [
      onResize(box, (w) => { width = w; draw(); }),
      onData(model, (next) => { data = next; s.reread(); draw(); ui.refresh(); }),
      ui.destroy,
    ];
    return () => stops.forEach((stop) => stop());
  },
};
