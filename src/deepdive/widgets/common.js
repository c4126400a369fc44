// SPDX-License-Identifier: MIT
// What every widget of the book shares: elements, state, controls, table view, colours.
// A widget imports from here; Python joins both files into one module (base.py).

const SVG_NS = "http://www.w3.org/2000/svg";
let serial = 0;

function build(node, attrs, children) {
  for (const [key, value] of Object.entries(attrs ?? {})) {
    if (value === null || value === undefined) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2).toLowerCase(), value);
    else if (key === "text") node.textContent = value;
    else if (key.startsWith("aria-")) node.setAttribute(key, String(value));
    else if (value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

// h("button", { class: "x", onClick: f, text: "Go" }, ...children): an HTML element.
// null, undefined and false leave an attribute or child out; aria-* keep false.
export function h(tag, attrs = {}, ...children) {
  return build(document.createElement(tag), attrs, children);
}

// The same for SVG.
export function svg(tag, attrs = {}, ...children) {
  return build(document.createElementNS(SVG_NS, tag), attrs, children);
}

// "d_k" becomes d with a lowered k, so that authors write plain words everywhere. Code
// names such as head_dim stay. rich() is for HTML, svgRich() for an SVG text of `size` px.
const LOWERED = /\b([A-Za-z])_(model|head|ff|[A-Za-z0-9])\b/;
export function rich(text) {
  const [before, letter, low] = String(text).split(LOWERED);
  if (letter === undefined) return [before];
  const after = String(text).slice(before.length + letter.length + low.length + 1);
  return [before, letter, h("sub", {}, low), ...rich(after)];
}
export function svgRich(text, size) {
  const [before, letter, low] = String(text).split(LOWERED);
  if (letter === undefined) return [before];
  const after = String(text).slice(before.length + letter.length + low.length + 1);
  return [before, letter, svg("tspan", { dy: size * 0.22, "font-size": size * 0.75 }, low),
    svg("tspan", { dy: -size * 0.22 }, ...svgRich(after || "\u200b", size))];
}

// A name for the tree of a screen reader, where lowered letters would run together.
const spoken = (label, hint) => (LOWERED.test(label) ? `${label}${hint ? ` ${hint}` : ""}` : null);

// An id that is unique on the page, for labels and headers.
export function uid(word = "dd") {
  serial += 1;
  return `${word}-${serial}-${Math.random().toString(36).slice(2, 7)}`;
}

// ---------------------------------------------------------------- numbers and colours

// fmt(-1.25, 1) = "−1.3": a true minus sign, never "−0.000", halves away from zero.
export function fmt(x, digits = 3) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  const text = Math.abs(x).toFixed(digits);
  return (x < 0 && Number(text) !== 0 ? "−" : "") + text;
}

// count(16384) = "16 384", with a narrow space that does not break.
export function count(n) {
  return String(Math.trunc(n)).replace("-", "−").replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

const CIVIDIS = ("00224e 002e6a 1a386f 32436d 434e6c 535a6d 61656f 6f7073 7d7c78 " +
  "8b8778 9a9376 aaa073 bbad6d ccba64 ddc858 efd748 fee838").split(" ");

// Colour of a weight between 0 and 1, as #rrggbb (svg.py has the same list).
export function cividis(x) {
  const place = Math.min(Math.max(x, 0), 1) * (CIVIDIS.length - 1);
  const low = Math.min(Math.trunc(place), CIVIDIS.length - 2);
  const part = place - low;
  const mixed = [0, 2, 4].map((i) => Math.floor(
    parseInt(CIVIDIS[low].slice(i, i + 2), 16) * (1 - part) +
    parseInt(CIVIDIS[low + 1].slice(i, i + 2), 16) * part + 0.5));
  return "#" + mixed.map((c) => c.toString(16).padStart(2, "0")).join("");
}

export function luminance(colour) {
  const [r, g, b] = [1, 3, 5].map((i) => {
    const c = parseInt(colour.slice(i, i + 2), 16) / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// Black or white, whichever reads better on #rrggbb (always at least 4.5:1).
export function inkOn(colour) {
  return (luminance(colour) + 0.05) ** 2 > 0.05 * 1.05 ? "#000000" : "#ffffff";
}

// softmax of a list, the largest score subtracted first; −∞ and null are blocked.
export function softmax(scores) {
  const top = Math.max(...scores.map((s) => s ?? -Infinity));
  if (top === -Infinity) return scores.map(() => 0);
  const powers = scores.map((s) => Math.exp((s ?? -Infinity) - top));
  const total = powers.reduce((a, b) => a + b, 0);
  return powers.map((p) => p / total);
}

// decode24(base64, n): n numbers of [0, 1] in 3 bytes each (base.encode24).
export function decode24(b64, n) {
  const bytes = atob(b64);
  if (bytes.length !== 3 * n) throw new Error(`expected ${3 * n} bytes, got ${bytes.length}`);
  const out = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    const at = 3 * i;
    out[i] = (bytes.charCodeAt(at) + bytes.charCodeAt(at + 1) * 256 +
      bytes.charCodeAt(at + 2) * 65536) / 0xffffff;
  }
  return out;
}

export function reducedMotion() {
  return globalThis.matchMedia?.("(prefers-reduced-motion: reduce)").matches ?? false;
}

// ------------------------------------------------------------------------------ state

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

function hashParts() {
  return location.hash.slice(1).split("&").filter((part) => part.includes("="));
}

// The state that "#name={…}" asks for, or null. Whatever can't be read asks for nothing.
function fromHash(name) {
  const part = hashParts().find((p) => p.startsWith(`${name}=`));
  if (!part) return null;
  try {
    const asked = JSON.parse(decodeURIComponent(part.slice(name.length + 1)));
    return asked && typeof asked === "object" && !Array.isArray(asked) ? asked : null;
  } catch {
    return null;
  }
}

function toHash(name, changed) {
  const parts = hashParts().filter((p) => !p.startsWith(`${name}=`));
  if (Object.keys(changed).length) {
    parts.push(`${name}=${encodeURIComponent(JSON.stringify(changed))}`);
  }
  return parts.length ? `#${parts.join("&")}` : "";
}

// store(model, defaults, clean): the one state object of a widget.
//   get() → the whole state · set({key: value}) · subscribe(f) → stop · reset() · link()
//   reread(): the model's state once more, for when new data allow more states
// Python's first state (data.start) wins over `defaults`; keys that aren't in it, and
// values of another type, are ignored; clean(state) may then clamp what is left. On the
// static page the address remembers the state, unless { hash: false } is passed.
export function store(model, defaults = {}, clean = (state) => state, { hash = true } = {}) {
  const name = model.get("name");
  const linked = model.static && hash;
  const start = { ...defaults, ...(model.get("data")?.start ?? {}) };
  const listeners = new Set();
  let timer;
  const merged = (...layers) => {
    const state = { ...start };
    for (const [key, value] of layers.flatMap((layer) => Object.entries(layer ?? {}))) {
      const known = key in start && typeof value === typeof start[key] &&
        Array.isArray(value) === Array.isArray(start[key]);
      if (known || (key in start && (start[key] === null || value === null))) state[key] = value;
    }
    return clean(state);
  };
  let state = merged(model.get("state"), linked ? fromHash(name) : null);
  const tell = () => [...listeners].forEach((f) => f(state));
  const changed = () => Object.fromEntries(
    Object.entries(state).filter(([key, value]) => !same(value, start[key])));

  const writeHash = () => {
    if (!linked) return;
    clearTimeout(timer);
    timer = setTimeout(() => {
      try {
        const bare = location.href.split("#")[0];
        history.replaceState(history.state, "", bare + toHash(name, changed()));
      } catch { /* a page that may not write its address still works */ }
    }, 200);
  };
  const adopt = (next) => {
    if (same(next, state)) return false;
    state = next;
    tell();
    return true;
  };
  const commit = (next) => {
    if (!adopt(next)) return;
    model.set("state", state);
    model.save_changes();
    writeHash();
  };
  const onModel = () => { if (adopt(merged(model.get("state")))) writeHash(); };
  // What Python asked for may have been clamped because its data came later: ask again.
  const reread = () => onModel();
  const onHash = () => {
    const asked = fromHash(name);
    if (asked) commit(merged(asked));
  };
  model.on("change:state", onModel);
  if (linked) globalThis.addEventListener("hashchange", onHash);
  return {
    get: () => state,
    set: (patch) => commit(merged(state, patch)),
    reset: () => commit(merged()),
    reread,
    subscribe(f) { listeners.add(f); return () => listeners.delete(f); },
    linked,
    link: () => location.href.split("#")[0] +
      (toHash(name, changed()) || `#${name}=${encodeURIComponent("{}")}`),
    destroy() {
      clearTimeout(timer);
      listeners.clear();
      model.off("change:state", onModel);
      globalThis.removeEventListener?.("hashchange", onHash);
    },
  };
}

// --------------------------------------------------------------------------- controls
// Each returns { el, set(value) }. With { store, key } it reads and writes that key
// itself; without, pass value and onChange.

function bind(options, show) {
  const { store: s, key, value, onChange } = options;
  const send = (v) => (s ? s.set({ [key]: v }) : onChange?.(v));
  show(s ? s.get()[key] : value);
  if (s) s.subscribe((state) => show(state[key]));
  return send;
}

// A range input with a number box. `values` (ascending) makes the slider walk a list,
// such as the powers of two; the box then takes the nearest entry. `label` names it in
// plain words; `show` (nodes) may write it otherwise.
export function slider(options) {
  const { label, show: shown = rich(label), min = 0, max = 1, step = 1, values = null, unit = "",
    hint = "", say = (v) => `${v}${unit && ` ${unit}`}` } = options; // say: for a screen reader
  const id = uid("slider");
  const last = values ? values.length - 1 : max;
  const nearest = (x) => values.reduce(
    (best, v, i) => (Math.abs(v - x) < Math.abs(values[best] - x) ? i : best), 0);
  let typing = false;
  const range = h("input", {
    type: "range", id, class: "dd-range", "aria-label": label, min: values ? 0 : min, max: last,
    step: values ? 1 : step,
  });
  const box = h("input", {
    type: "number", class: "dd-box", "aria-label": `${label}, number`, inputmode: "decimal",
    min: values ? values[0] : min, max: values ? values[last] : max, step: values ? "any" : step,
  });
  const show = (v) => {
    range.value = String(values ? nearest(v) : v);
    range.setAttribute("aria-valuetext", say(v));
    if (!typing) box.value = String(v); // a number half typed stays
  };
  const send = bind(options, show);
  range.addEventListener("input", () => {
    const v = Number(range.value);
    send(values ? values[v] : v);
  });
  box.addEventListener("input", () => { typing = true; });
  box.addEventListener("blur", () => { typing = false; });
  const commit = () => {
    typing = false;
    const asked = Number(box.value);
    const ok = box.value.trim() !== "" && Number.isFinite(asked);
    const now = values ? values[Number(range.value)] : Number(range.value);
    const v = !ok ? now : values ? values[nearest(asked)] : Math.min(Math.max(asked, min), max);
    box.value = String(v);
    send(v);
  };
  box.addEventListener("change", commit);
  // JupyterLab swallows the change that Enter would make.
  box.addEventListener("keydown", (e) => e.key === "Enter" && commit());
  const el = h("div", { class: "dd-control dd-slider" },
    h("label", { for: id, class: "dd-label" }, shown,
      hint && h("span", { class: "dd-hint" }, rich(hint))),
    h("span", { class: "dd-row" }, range, box, unit && h("span", { class: "dd-unit" }, unit)));
  return { el, set: show, range, box };
}

// One of a few: radio buttons, or a select with kind "select". Options are
// { value, label, hint? } or plain strings.
export function choice(options) {
  const { label, kind = "radio" } = options;
  const items = options.options.map((o) => (typeof o === "object" ? o : { value: o, label: String(o) }));
  if (kind === "select") {
    const id = uid("select");
    const select = h("select", { id, class: "dd-select", "aria-label": spoken(label) },
      items.map((o, i) => h("option", { value: String(i) }, o.label)));
    const show = (v) => { select.selectedIndex = items.findIndex((o) => o.value === v); };
    const send = bind(options, show);
    select.addEventListener("change", () => send(items[select.selectedIndex].value));
    const el = h("div", { class: "dd-control" },
      h("label", { for: id, class: "dd-label" }, rich(label)), select);
    return { el, set: show, select };
  }
  const group = uid("radio");
  const radios = items.map((o, i) => h("input", { type: "radio", name: group, value: String(i),
    "aria-label": spoken(o.label, o.hint) }));
  const show = (v) => radios.forEach((r, i) => { r.checked = items[i].value === v; });
  const send = bind(options, show);
  radios.forEach((r, i) => r.addEventListener("change", () => r.checked && send(items[i].value)));
  const el = h("fieldset", { class: "dd-control dd-choice" },
    h("legend", { class: "dd-label" }, rich(label)),
    h("div", { class: "dd-row" }, items.map((o, i) =>
      h("label", { class: "dd-option" }, radios[i],
        h("span", {}, rich(o.label), o.hint && h("span", { class: "dd-hint" }, rich(o.hint)))))));
  return { el, set: show, radios };
}

// Yes or no: a checkbox.
export function toggle(options) {
  const box = h("input", { type: "checkbox", "aria-label": spoken(options.label, options.hint) });
  const show = (v) => { box.checked = Boolean(v); };
  const send = bind(options, show);
  box.addEventListener("change", () => send(box.checked));
  const el = h("div", { class: "dd-control" },
    h("label", { class: "dd-option" }, box,
      h("span", {}, options.show ?? rich(options.label),
        options.hint && h("span", { class: "dd-hint" }, rich(options.hint)))));
  return { el, set: show, box };
}

export function button(label, onClick, attrs = {}) {
  return h("button", { type: "button", class: "dd-button", onClick, ...attrs }, label);
}

// ------------------------------------------------------------------------- table view

// A real table. `values[i][j]` is a number, a string or null (written as `blocked`);
// numbers carry their full precision in data-value. `name` lets tests and readers' own
// scripts find it; `rowName`/`colName` say what the headers are (query, key).
export function matrixTable({
  caption, name = "", rows, cols, values, digits = 6, rowName = "", colName = "",
  blocked = "blocked",
}) {
  const cell = (v) => {
    if (typeof v !== "number") return h("td", {}, v ?? blocked);
    return h("td", { "data-value": String(v) }, Number.isInteger(v) && digits === 0 ? count(v) : fmt(v, digits));
  };
  const corner = rowName && colName ? `${rowName} \\ ${colName}` : rowName || colName;
  return scrolling(caption, { class: "dd-scroll" },
    h("table", { class: "dd-table", "data-table": name },
      h("caption", {}, rich(caption)),
      h("thead", {}, h("tr", {},
        corner ? h("th", { scope: "col", class: "dd-corner" }, rich(corner)) : h("td", {}),
        cols.map((c) => h("th", { scope: "col" }, rich(c))))),
      h("tbody", {}, values.map((row, i) => h("tr", {},
        h("th", { scope: "row" }, rich(rows[i])), row.map(cell))))));
}

// ------------------------------------------------------------------------------ shell

// Calls draw(width) now and whenever the width of `el` changes. Returns stop().
export function onResize(el, draw) {
  let last = 0;
  const look = () => {
    const width = Math.round(el.clientWidth);
    if (width && width !== last) { last = width; draw(width); }
  };
  const watcher = new ResizeObserver(look);
  watcher.observe(el);
  look();
  return () => watcher.disconnect();
}

// Redraws without losing the reader's place: after draw(), focus returns to the element
// of `box` with the same data-key.
export function keepFocus(box, draw) {
  const held = box.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  draw();
  if (held) box.querySelector(`[data-key="${CSS.escape(held)}"]`)?.focus({ preventScroll: true });
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { class: "dd-hidden", readonly: true });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

// A box that may scroll sideways: in the order of Tab only while it does. Its name is that
// of a group: a page of landmarks is a page without any.
export function scrolling(name, attrs = {}, ...children) {
  const box = h("div", { role: "group", "aria-label": name, ...attrs }, ...children);
  const look = () => {
    if (box.scrollWidth > box.clientWidth + 1) box.tabIndex = 0;
    else if (box !== document.activeElement) box.removeAttribute("tabindex");
  };
  if (globalThis.ResizeObserver) {
    const watcher = new ResizeObserver(look);
    const watch = () => [box, ...box.children].forEach((node) => watcher.observe(node));
    new MutationObserver(() => { watch(); look(); }).observe(box, { childList: true });
    watch();
  }
  return box;
}

// Lays a widget out in `el`: at most two controls, the figure below them, summary, the
// rest of the controls under More, then Reset, Copy link (static page) and the table view.
//   figure: a node · controls, more: nodes or things with .el
//   top: a node before the controls, such as a stepper · below: less used controls
//   summary(): one line, read aloud half a second after the last change
//   table(): a node, or a list of nodes (matrixTable), built when asked for
//   paper(): what of it is printed; the first table unless given
//   bar: a row of buttons in the figure that takes in Reset and the others
// It follows the store by itself; call refresh() after a change of data.
// Returns { root, refresh(), announce(text), destroy() }.
export function shell(el, {
  model, store: s, title, figure, top = null, controls = [], below = [], more = [],
  summary = null, table = null, paper = () => [table()].flat()[0], bar = null,
}) {
  const node = (c) => c?.el ?? c;
  const line = h("p", { class: "dd-summary", "aria-hidden": true });
  const live = h("p", { class: "dd-hidden", "aria-live": "polite" });
  const note = h("p", { class: "dd-hidden", role: "status" }); // leaves the summary alone
  const tableId = uid("table");
  const tableBox = h("div", { class: "dd-tables", id: tableId, hidden: true });
  let timer;

  const fill = () => tableBox.replaceChildren(...[table()].flat());
  const announce = (text, wait = 0) => {
    clearTimeout(timer);
    timer = setTimeout(() => { if (live.textContent !== text) live.textContent = text; }, wait);
  };
  const refresh = () => {
    if (summary) {
      const text = summary();
      line.replaceChildren(...rich(text));
      if (live.textContent) announce(text, 500);
      else live.textContent = text; // there from the start: nothing to interrupt with
    }
    if (table && !tableBox.hidden) keepFocus(tableBox, fill);
  };

  const showTable = table && button("Show as table", () => {
    tableBox.hidden = !tableBox.hidden;
    showTable.setAttribute("aria-expanded", String(!tableBox.hidden));
    if (!tableBox.hidden) fill();
  }, { "aria-expanded": false, "aria-controls": tableId });
  const reset = s && button("Reset", () => s.reset());
  const link = s?.linked && button("Copy link", async () => {
    const url = s.link();
    note.textContent = await copyText(url) ? "Link to this state copied."
      : `Link to this state: ${url}`;
    link.textContent = "Copied";
    setTimeout(() => { link.textContent = "Copy link"; }, 1500);
  });
  // Paper gets the picture as it stands and one compact table.
  const paperBox = h("div", { class: "dd-paper" });
  const beforePrint = () => { if (table) paperBox.replaceChildren(...[paper()].flat()); };
  const afterPrint = () => paperBox.replaceChildren();
  globalThis.addEventListener("beforeprint", beforePrint);
  globalThis.addEventListener("afterprint", afterPrint);
  const buttons = bar ?? h("div", { class: "dd-buttons" });
  buttons.append(...[reset, link, showTable].filter(Boolean));
  const row = (list) => list.length > 0 && h("div", { class: "dd-controls" }, list.map(node));

  const caption = model.get("caption"); // hidden by CSS where a figcaption says it
  const root = h("div", {
    class: "dd-widget", role: "group", "aria-label": title, "data-name": model.get("name"),
    "data-jp-suppress-context-menu": "",
    // JupyterLab would take arrows and letters for its own; it looks at the target alone.
    onFocusin: (e) => !model.static && e.target.setAttribute("data-lm-suppress-shortcuts", "true"),
  },
    h("p", { class: "dd-title" }, rich(title)),
    top, row(controls),
    h("div", { class: "dd-picture" }, node(figure)),
    summary && line, summary && live, link && note, row(below),
    more.length > 0 && h("details", { class: "dd-more" }, h("summary", {}, "More"), row(more)),
    !bar && buttons,
    table && tableBox, paperBox,
    caption && h("p", { class: "dd-caption" }, caption));
  el.replaceChildren(root);
  const stop = s?.subscribe(refresh);
  refresh();
  return {
    root, refresh, announce,
    destroy() {
      clearTimeout(timer);
      stop?.();
      globalThis.removeEventListener("beforeprint", beforePrint);
      globalThis.removeEventListener("afterprint", afterPrint);
      s?.destroy();
    },
  };
}

// What Python computes anew (a live kernel) arrives here. Returns stop().
export function onData(model, redraw) {
  const heard = () => redraw(model.get("data"));
  model.on("change:data", heard);
  return () => model.off("change:data", heard);
}
