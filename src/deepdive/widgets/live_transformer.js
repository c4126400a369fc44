// SPDX-License-Identifier: MIT
// A small GPT reads a text piece by piece: next pieces, attention, one head taken out.
import {
  button, choice, cividis, fmt, h, matrixTable, onData, shell, slider, store, uid,
} from "./common.js";

// ------------------------------------------------------------------- pure functions

const bytesOf = (b64) => Uint8Array.from(atob(b64), (c) => c.charCodeAt(0));

// Numbers of `size` bytes each, little-endian, from base64.
function unpack(b64, size, read) {
  const bytes = bytesOf(b64);
  const view = new DataView(bytes.buffer);
  return Float64Array.from({ length: bytes.length / size }, (_, i) => read(view, i * size));
}
const whole16 = (b64) => unpack(b64, 2, (view, at) => view.getUint16(at, true));
const float32 = (b64) => unpack(b64, 4, (view, at) => view.getFloat32(at, true));
const share24 = (b64) => unpack(b64, 3, (view, at) =>
  (view.getUint16(at, true) + 65536 * view.getUint8(at + 2)) / 0xffffff);

// Where the numbers of one text come from. All that follows asks this object alone:
//   ids, opening, and after n pieces have been read:
//   logits(n) → { ids, logits, rest }: falling, relative to the largest; rest stands for
//     the pieces that are not in the list: how many, log Σ e^(logit / t), and what a
//     nucleus of share p takes: [pieces, their share], those of the list included
//   maps(layer, head) → rows of weights, row i with i + 1 of them
//   without(layer, head) → { logits(n) } with that head removed, at temperature 1
// Here Python has computed them; a model in the page would have the same methods.
export function stored(text, data) {
  const { vocabulary, listed, heads, shown } = data;
  const warm = data.temperatures.filter((t) => t > 0);
  const cuts = data.ps.filter((p) => p < 1);
  const T = text.ids.length;
  const parts = {
    next: whole16(text.next), gaps: float32(text.gaps), rest: float32(text.rest),
    nuclei: whole16(text.nuclei), masses: float32(text.masses),
    maps: whole16(text.maps), gone: share24(text.gone), new: whole16(text.new),
  };
  const row = (x, i, n) => Array.from(x.subarray(i * n, (i + 1) * n));
  const logits = (n) => ({
    ids: row(parts.next, n - 1, listed),
    logits: row(parts.gaps, n - 1, listed),
    rest: {
      pieces: vocabulary - listed,
      logSum: (t) => parts.rest[(n - 1) * warm.length + warm.indexOf(t)],
      nucleus(t, p) {
        const at = ((n - 1) * warm.length + warm.indexOf(t)) * cuts.length + cuts.indexOf(p);
        return [parts.nuclei[at], parts.masses[at]];
      },
    },
  });
  return {
    ids: text.ids,
    opening: text.opening,
    logits,
    maps(layer, head) {
      let at = (layer * heads + head) * (T * (T + 1)) / 2;
      return Array.from({ length: T }, (_, i) =>
        Array.from({ length: i + 1 }, () => parts.maps[at++] / 0xffff));
    },
    without: (layer, head) => ({
      logits(n) {
        const at = (layer * heads + head) * T + n - 1;
        const shares = row(parts.gone, at, shown + 1);
        const ids = [...logits(n).ids.slice(0, shown), parts.new[at]];
        const found = ids.map((id, i) => ({ id, share: shares[i] }))
          .filter(({ id }, i) => ids.indexOf(id) === i) // the first one may be an old one
          .sort((a, b) => b.share - a.share);
        const left = 1 - found.reduce((sum, { share }) => sum + share, 0);
        return {
          ids: found.map(({ id }) => id),
          logits: found.map(({ share }) => Math.log(share)),
          rest: { pieces: vocabulary - found.length, logSum: () => Math.log(Math.max(left, 0)) - Math.log(found[0].share) },
        };
      },
    }),
  };
}

const SLACK = 10 * 2 ** -52; // a sum short of p by rounding alone has reached it

// What the next piece is drawn from, as decoding.probabilities computes it with
// [temperature(t), top_k(k), top_p(p)]: a share for each listed piece, and for the others
// together, with their number.
export function probabilities({ logits, rest }, { temperature: t, k, p }) {
  if (t === 0) return { shares: logits.map((_, i) => (i ? 0 : 1)), others: { pieces: 0, share: 0 } };
  let weights = logits.map((x) => Math.exp((x - logits[0]) / t));
  let { pieces } = rest;
  let left = pieces ? Math.exp(rest.logSum(t)) : 0;
  if (k <= weights.length) {
    weights = weights.map((w, i) => (i < k ? w : 0));
    [pieces, left] = [0, 0];
  }
  const total = weights.reduce((sum, w) => sum + w, left);
  let shares = weights.map((w) => w / total);
  let other = left / total;
  if (p < 1) {
    let before = 0;
    const inside = shares.map((share) => {
      const stays = before < p - SLACK;
      before += share;
      return stays;
    });
    let taken = shares.reduce((sum, share, i) => (inside[i] ? sum + share : sum), 0);
    if (pieces && before < p - SLACK) { // the nucleus goes on among the others
      const [count, mass] = rest.nucleus(t, p);
      [pieces, other, taken] = [count - shares.length, mass - taken, mass];
    } else [pieces, other] = [0, 0];
    shares = shares.map((share, i) => (inside[i] ? share / taken : 0));
    other /= taken;
  }
  return { shares, others: { pieces, share: other } };
}

export const PLAIN = { temperature: 1, p: 1, k: Infinity };

// A list of `count` numbers of [0, 1), the same every time for the same seed.
// Source: Park and Miller 1988: x ← 48271 x modulo 2³¹ − 1.
export function uniforms(seed, count) {
  const modulus = 2 ** 31 - 1;
  let x = (seed * 7919 + 2017) % modulus || 1;
  const next = () => { x = (x * 48271) % modulus; return (x - 1) / (modulus - 1); };
  for (let i = 0; i < 3; i++) next();
  return Array.from({ length: count }, next);
}

// The place in the list where the running sum of the shares passes u; −1 for the others.
export function pick({ shares }, u) {
  let sum = 0;
  return shares.findIndex((share) => { sum += share; return share > 0 && u < sum; });
}

// For how many pieces a layer computed key and value: with a cache, and without one.
export function cacheCounts(opening, read) {
  let again = 0;
  for (let j = Math.min(opening, read); j <= read; j++) again += j;
  return [read, again];
}

// A state that can be drawn, whatever the address said.
export function cleanState(state, data) {
  const within = (x, low, high) => Math.min(Math.max(Math.trunc(x) || 0, low), high);
  const near = (x, list) => list.reduce((best, v) => (Math.abs(v - x) < Math.abs(best - x) ? v : best));
  const all = textsOf(data);
  const text = all[state.text] ? state.text : 0; // the reader’s own may be gone
  return {
    ...state, text, n: within(state.n, 1, all[text].ids.length),
    layer: within(state.layer, 0, data.layers - 1), head: within(state.head, 0, data.heads - 1),
    temperature: near(state.temperature, data.temperatures), k: near(state.k, data.ks), p: near(state.p, data.ps),
    draws: within(state.draws, 0, 999),
  };
}

// Python's texts, and the reader's own where there is one.
export function textsOf(data) {
  return data.own?.ids ? [...data.texts, data.own] : data.texts;
}

// The name that readers see, counted from 1.
export function short(layer, head) {
  return `L${layer + 1}·H${head + 1}`;
}

// 0.0341 → "3.4 %", with a space at which no line ends.
export function percent(share) {
  return share > 0 && share < 0.0005 ? "< 0.1\u00a0%" : `${fmt(100 * share, 1)}\u00a0%`;
}

// How the next piece is chosen, in words.
export function manner({ temperature, k, p }, data) {
  const cut = [k < data.vocabulary && `top-k ${k}`, p < 1 && `top-p ${p}`].filter(Boolean);
  return `temperature ${temperature}, ${cut.length ? cut.join(", ") : "nothing cut"}`;
}

// The bars: [{ id, share, before }], `before` being what the model as it is gives; and
// the others' share. With a head removed, its new favourite is put behind the old ones.
export function barsOf(source, state, data) {
  const { n, layer, head, removed } = state;
  const row = source.logits(n);
  const own = probabilities(row, PLAIN);
  const ids = row.ids.slice(0, data.shown);
  let share;
  if (removed) {
    const gone = source.without(layer, head).logits(n);
    const { shares } = probabilities(gone, PLAIN);
    share = (id) => shares[gone.ids.indexOf(id)];
    if (!ids.includes(gone.ids[0])) ids.push(gone.ids[0]);
  } else {
    const { shares } = probabilities(row, state);
    share = (id) => shares[row.ids.indexOf(id)];
  }
  const bars = ids.map((id) => ({ id, share: share(id), before: own.shares[row.ids.indexOf(id)] ?? null }));
  return { bars, others: Math.max(0, 1 - bars.reduce((sum, bar) => sum + bar.share, 0)) };
}

// --------------------------------------------------------------------------- drawing

// All heads' maps, down to the last piece read. Arrow keys walk the grid; the head in
// focus is the one shown.
function headGrid(data, s) {
  const cells = [];
  const rows = Array.from({ length: data.layers }, (_, layer) => h("div", { role: "row", class: "lt-row" },
    h("span", { role: "rowheader" }, `L${layer + 1}`),
    Array.from({ length: data.heads }, (__, head) => {
      const canvas = h("canvas", { "aria-hidden": true });
      const knob = h("button", {
        type: "button", tabindex: -1, "aria-label": `Layer ${layer + 1}, head ${head + 1}`,
        onClick: () => s.set({ layer, head }),
      }, canvas);
      const el = h("div", { role: "gridcell" }, knob);
      cells.push({ layer, head, canvas, knob, el });
      return el;
    })));
  const move = (event) => {
    const { layer, head } = s.get();
    const to = {
      ArrowLeft: [layer, head - 1], ArrowRight: [layer, head + 1],
      ArrowUp: [layer - 1, head], ArrowDown: [layer + 1, head],
      Home: [layer, 0], End: [layer, data.heads - 1],
    }[event.key];
    if (!to || event.altKey || event.shiftKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const l = Math.min(Math.max(to[0], 0), data.layers - 1);
    const k = Math.min(Math.max(to[1], 0), data.heads - 1);
    s.set({ layer: l, head: k });
    cells[l * data.heads + k].knob.focus();
  };
  const grid = h("div", {
    role: "grid", class: "lt-heads", style: `--lt-n: ${data.heads}`, onKeydown: move,
    "aria-label": `${cells.length} heads: ${data.layers} layers of ${data.heads}. Arrow keys choose one.`,
  },
  h("div", { role: "row", class: "lt-row" },
    h("span", { role: "columnheader" }, h("span", { class: "dd-hidden" }, "layer")),
    Array.from({ length: data.heads }, (_, k) => h("span", { role: "columnheader" }, `H${k + 1}`))),
  rows);
  return {
    el: grid,
    show(source, { n, layer, head }) {
      const T = source.ids.length;
      for (const c of cells) {
        const mine = c.layer === layer && c.head === head;
        c.el.setAttribute("aria-selected", String(mine));
        c.knob.tabIndex = mine ? 0 : -1;
        c.canvas.width = T;
        c.canvas.height = T;
        const pen = c.canvas.getContext("2d");
        source.maps(c.layer, c.head).slice(0, n).forEach((row, i) => row.forEach((w, j) => {
          pen.fillStyle = cividis(w);
          pen.fillRect(j, i, 1, 1);
        }));
      }
    },
  };
}

// The text: over each piece read a bar and under it the weight that it gets.
function strip(source, weights, { n }, name) {
  return source.ids.map((id, i) => h("span", {
    class: `lt-piece${i < n ? "" : " lt-unread"}${i === n - 1 ? " lt-here" : ""}${i >= source.opening ? " lt-own" : ""}`,
  },
  h("span", { class: "lt-bar" }, i < n && h("span", { style: `height: ${(100 * weights[i]).toFixed(1)}%` })),
  h("span", { class: "lt-word" }, name(id)),
  h("span", { class: "lt-weight" }, i < n ? fmt(weights[i], 2) : "")));
}

// The bars of the next pieces, with a mark where the model as it is would end.
function nextList({ bars, others }, full, name, marked) {
  return [bars.map(({ id, share, before }) => h("li", {},
    h("span", { class: "lt-name" }, name(id)),
    h("span", { class: "lt-track", "aria-hidden": true },
      h("span", { class: "lt-fill", style: `width: ${(100 * share / full).toFixed(1)}%` }),
      marked && before !== null && h("span", { class: "lt-mark", style: `left: ${Math.min(100 * before / full, 100).toFixed(1)}%` })),
    h("span", { class: "lt-share" }, percent(share),
      marked && h("span", { class: "dd-hidden" }, `, as it is ${before === null ? "less" : percent(before)}`)))),
  h("li", { class: "lt-others" }, h("span", { class: "lt-name" }, "all others"), h("span", {}),
    h("span", { class: "lt-share" }, percent(others)))];
}

// The reader's own text: a text box where Python is there, one sentence elsewhere.
function ownText(model, s, again) {
  const note = h("p", { class: "lt-note", role: "status" });
  if (model.static) {
    return { el: h("p", { class: "lt-quiet" }, "To give the model a text of your own, open this chapter as a " +
      "notebook: a text box stands here then, and the real model reads it.") };
  }
  const id = uid("own");
  const input = h("input", { id, type: "text", maxlength: 400, autocomplete: "off" });
  let timer;
  const send = () => {
    const asked = input.value.trim();
    clearTimeout(timer);
    if (!asked) { note.textContent = "Type how a text begins first."; input.focus(); return; }
    if (asked === s.get().ask && model.get("data").own?.text === asked) { again(); return; }
    note.textContent = "Asking the model …";
    timer = setTimeout(() => {
      note.textContent = "No answer from Python. Is the notebook’s kernel running? Run the cell above once more.";
    }, 20_000);
    if (asked === s.get().ask) s.set({ ask: "" });
    s.set({ ask: asked });
  };
  input.addEventListener("keydown", (event) => { if (event.key === "Enter") send(); });
  return {
    el: h("div", { class: "lt-ask" },
      h("div", {}, h("label", { for: id, class: "dd-label" }, "A text of your own"), input),
      button("Let the model go on", send), note),
    answered(words) { clearTimeout(timer); note.textContent = words; },
  };
}

// ---------------------------------------------------------------------------- widget

export default {
  render({ model, el }) {
    let data = model.get("data");
    const s = store(model, {}, (state) => cleanState(state, data));
    const kept = new Map();
    const source = () => {
      const text = textsOf(data)[s.get().text];
      if (!kept.has(text)) kept.set(text, stored(text, data));
      return kept.get(text);
    };
    const name = (id) => data.names[id];
    const weightsNow = () => source().maps(s.get().layer, s.get().head)[s.get().n - 1];
    const plain = () => {
      const { temperature, k, p } = s.get();
      return temperature === 1 && k === data.vocabulary && p === 1;
    };

    const head = h("p", { class: "lt-heading" });
    const words = h("div", { class: "lt-text", role: "img" });
    const grid = headGrid(data, s);
    const remove = button("", () => s.set({ removed: !s.get().removed, draws: 0 }));
    const nextHead = h("p", { class: "lt-heading" });
    const how = h("p", { class: "lt-quiet" });
    const list = h("ul", { class: "lt-next" });
    const goes = h("p", { class: "lt-goes" });
    const draw = button("Draw a piece", () => s.set({ draws: s.get().draws + 1 }));
    const drawn = h("p", { class: "lt-drawn" });
    const cacheLine = h("p", { class: "lt-cache" });

    const figure = h("div", { class: "lt-figure" },
      head, words,
      h("p", { class: "lt-legend" }, "Bar and number: how much the framed piece, the last one read, takes from each. " +
        "· is a space, ↵ a new line. Underlined: the model’s own most probable pieces."),
      h("div", { class: "lt-main" },
        h("div", { class: "lt-after" }, nextHead, how, list, goes, h("div", { class: "lt-draw" }, draw, drawn)),
        h("div", { class: "lt-all" }, h("p", { class: "lt-heading" }, "Every head’s map so far"), grid.el,
          h("p", { class: "lt-legend" }, "Rows ask, columns are read, bright is much. Reading on adds a row and changes none."),
          remove)),
      cacheLine);

    const menu = h("select", { class: "dd-select", id: uid("text") });
    const fillMenu = () => {
      menu.replaceChildren(...textsOf(data).map((x, i) => h("option", { value: i },
        i < data.texts.length ? `${x.text} …` : `yours: ${x.text} …`)));
      menu.value = String(s.get().text);
    };
    const show = (i) => s.set({ text: i, n: textsOf(data)[i].opening, draws: 0 });
    menu.addEventListener("change", () => show(Number(menu.value)));
    const textMenu = h("div", { class: "dd-control lt-menu" }, h("label", { class: "dd-label", for: menu.id }, "Text"), menu);
    const reading = slider({ label: "Pieces read", min: 1, max: data.longest, store: s, key: "n",
      say: (n) => `${n}, after ${name(source().ids[n - 1] ?? 0) ?? ""}` });
    const warm = slider({ label: "Temperature", values: data.temperatures, store: s, key: "temperature" });
    const cutK = slider({ label: "Top-k", values: data.ks, store: s, key: "k",
      say: (k) => (k === data.vocabulary ? `${k}, all pieces` : String(k)) });
    const cutP = slider({ label: "Top-p", values: data.ps, store: s, key: "p" });
    const own = ownText(model, s, () => show(data.texts.length));

    function goesOn() {
      const { n } = s.get();
      const to = source().ids[n];
      if (to === undefined) return "Here the stored text ends.";
      const row = source().logits(n);
      const place = row.ids.indexOf(to);
      return place < 0 ? `The text goes on with “${name(to)}”, which is not among the first ${row.ids.length}.`
        : `The text goes on with “${name(to)}”: number ${place + 1}, ` +
          `${percent(probabilities(row, PLAIN).shares[place])}.`;
    }

    function drawings() {
      const { draws, n } = s.get();
      if (!draws || s.get().removed) return "";
      const row = source().logits(n);
      const shares = probabilities(row, s.get());
      const found = uniforms(n, draws).map((u) => row.ids[pick(shares, u)]);
      const names = found.slice(-10).map((id) => (id === undefined ? `(one of ${shares.others.pieces} not listed)` : `“${name(id)}”`));
      const last = found[found.length - 1];
      const astray = source().ids[n] !== undefined && last !== source().ids[n]
        ? " The text keeps to its path: only that one was computed." : "";
      return `${draws > 10 ? `Draws ${draws - 9}–${draws}` : draws > 1 ? `${draws} draws` : "Drawn"}: ${names.join(" ")}.${astray}`;
    }

    function refreshNext() {
      const { n, layer, head: k, removed } = s.get();
      const found = barsOf(source(), s.get(), data);
      const most = Math.max(...found.bars.flatMap(({ share, before }) => [share, before ?? 0]));
      const full = [0.02, 0.05, 0.1, 0.25, 0.5, 1].find((x) => x >= most) ?? 1;
      nextHead.textContent = removed ? `Next piece without ${short(layer, k)}` : "Next piece";
      how.textContent = `${removed ? "temperature 1, nothing cut" : manner(s.get(), data)}; full width ${100 * full}\u00a0%` +
        (removed ? "; line: with the head" : plain() ? "" : "; line: temperature 1, nothing cut");
      list.replaceChildren(...nextList(found, full, name, removed || !plain()).flat());
      list.setAttribute("aria-label", `Most probable pieces after ${n}`);
      goes.textContent = goesOn();
      draw.hidden = removed;
      drawn.textContent = removed ? `Put ${short(layer, k)} back to draw, or to turn the knobs.` : drawings();
      remove.textContent = removed ? `Put ${short(layer, k)} back` : `Take ${short(layer, k)} out`;
    }

    function redraw() {
      const { n, layer, head: k } = s.get();
      const weights = weightsNow();
      const here = name(source().ids[n - 1]);
      head.textContent = `${short(layer, k)} at “${here}”, piece ${n}`;
      words.replaceChildren(...strip(source(), weights, s.get(), name));
      const top = weights.map((w, i) => [w, i]).sort((a, b) => b[0] - a[0]).slice(0, 3);
      words.setAttribute("aria-label", `Text read so far: ${source().ids.slice(0, n).map(name).join("").replaceAll("·", " ")}. ` +
        `${short(layer, k)} takes most from ${top.map(([w, i]) => `“${name(source().ids[i])}” (${fmt(w, 2)})`).join(", ")}.`);
      grid.show(source(), s.get());
      menu.value = String(s.get().text);
      for (const input of [reading.range, reading.box]) input.max = String(source().ids.length);
      reading.range.value = String(n); // the old maximum may have held it back
      refreshNext();
      const { opening, ids } = source();
      const [[cached, again], [most, mostAgain]] = [n, ids.length].map((read) => cacheCounts(opening, read));
      cacheLine.textContent = `Keys and values computed so far, in each layer: for ${cached} pieces with a cache, ` +
        `for ${again} without${n < ids.length ? `; at the last piece ${most} and ${mostAgain}` : ""}. ` +
        `The opening’s ${opening} are read at once, the others one by one.`;
      for (const c of [warm, cutK, cutP]) c.el.hidden = s.get().removed;
    }

    function summary() {
      const { n, layer, head: k, removed } = s.get();
      const { bars } = barsOf(source(), s.get(), data);
      const first = [...bars].sort((a, b) => b.share - a.share).slice(0, 3)
        .map(({ id, share }) => `“${name(id)}” ${percent(share)}`).join(", ");
      const weights = weightsNow();
      const j = weights.indexOf(Math.max(...weights));
      return `${n} pieces read, the last “${name(source().ids[n - 1])}”. Most probable next${removed ? ` without ${short(layer, k)}` : ""}: ` +
        `${first}. ${short(layer, k)} takes most from “${name(source().ids[j])}” (${fmt(weights[j], 2)}).` +
        (drawings() && ` ${drawings()}`);
    }

    function table() {
      const { n, layer, head: k } = s.get();
      const row = source().logits(n);
      const [own_, cut] = [probabilities(row, PLAIN), probabilities(row, s.get())];
      const gone = source().without(layer, k).logits(n);
      const goneShares = probabilities(gone, PLAIN).shares;
      const m = data.tabled;
      const sum = (list_) => list_.slice(0, m).reduce((a, b) => a + b, 0);
      const heads = Array.from({ length: data.layers * data.heads }, (_, i) => [Math.trunc(i / data.heads), i % data.heads]);
      const maps = heads.map(([l, x]) => source().maps(l, x)[n - 1]);
      return [
        matrixTable({ name: "next", caption: `Next piece after ${n}; drawn from: ${manner(s.get(), data)}`, rowName: "piece",
          cols: ["the model’s own", "drawn from", `own, without ${short(layer, k)}`], blocked: "–",
          rows: [...row.ids.slice(0, m).map(name), "all others"],
          values: [...row.ids.slice(0, m).map((id, i) => [own_.shares[i], cut.shares[i],
            i < data.shown ? goneShares[gone.ids.indexOf(id)] : null]), [1 - sum(own_.shares), 1 - sum(cut.shares), null]] }),
        matrixTable({ name: "attention", caption: `What piece ${n} takes from each, in every head`, rowName: "key", colName: "head",
          cols: heads.map(([l, x]) => short(l, x)), rows: source().ids.slice(0, n).map((id, i) => `${i + 1} ${name(id)}`),
          values: maps[0].map((_, i) => maps.map((map) => map[i])) }),
        matrixTable({ name: "cache", caption: "Pieces whose key and value each layer computed", digits: 0,
          cols: ["with a cache", "without"], rows: [`${n} read`], values: [cacheCounts(source().opening, n)] }),
      ];
    }

    fillMenu();
    const ui = shell(el, {
      model, store: s, title: "A small GPT, piece by piece", figure, summary, table,
      controls: [textMenu, reading], more: [warm, cutK, cutP, own],
    });
    ui.root.classList.add("lt-widget");
    const stop = s.subscribe(redraw);
    redraw();
    const stopData = onData(model, (next) => {
      const before = data.own;
      data = next;
      s.reread(); // a text that came after the state that asked for it
      fillMenu();
      const answer = data.own;
      if (own.answered && answer && JSON.stringify(answer) !== JSON.stringify(before)) {
        if (answer.error) own.answered(`Python says: ${answer.error}.`);
        else {
          own.answered("Shown above.");
          show(data.texts.length);
        }
      }
      redraw();
      ui.refresh();
    });
    return () => { stop(); stopData(); ui.destroy(); };
  },
};
