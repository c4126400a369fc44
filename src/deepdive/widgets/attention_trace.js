// SPDX-License-Identifier: MIT
// Attention on a few words, one step at a time; every printed number can be opened.
// Python's deepdive.trace computes the same matrices; the tests compare the two.
import { button, choice, cividis, fmt, h, inkOn, keepFocus, matrixTable, onData, shell, softmax, store, toggle } from "./common.js";

// ---------------------------------------------------------------- the calculation

const multiply = (a, b) =>
  a.map((row) => b[0].map((_, j) => row.reduce((sum, x, k) => sum + x * b[k][j], 0)));
const columnsOf = (m, h, width) => m.map((row) => row.slice(h * width, (h + 1) * width));
const transposed = (m) => m[0].map((_, j) => m.map((row) => row[j]));

// The same keys as Python's trace.to_json, so that the picture takes either.
export function attend(input, nHeads = 1, { causal = false, reversed = false } = {}) {
  const { W_Q, W_K, W_V, W_O } = input;
  const [words, X] = [input.words, input.X].map((list) => (reversed ? [...list].reverse() : list));
  const width = W_Q[0].length / nHeads;
  if (!(nHeads >= 1 && Number.isInteger(width)))
    throw new RangeError(`width ${W_Q[0].length} cannot be cut into ${nHeads} heads`);
  const [Q, K, V] = [W_Q, W_K, W_V].map((w) => multiply(X, w));
  const heads = Array.from({ length: nHeads }, (_, h) => {
    const [q, k, v] = [Q, K, V].map((m) => columnsOf(m, h, width));
    const raw = multiply(q, transposed(k));
    const scaled = raw.map((row) => row.map((x) => x / Math.sqrt(width)));
    const weights = scaled.map((row, i) =>
      softmax(row.map((x, j) => (causal && j > i ? null : x))));
    return { raw, scaled, weights, out: multiply(weights, v) };
  });
  const concat = X.map((_, i) => heads.flatMap((head) => head.out[i]));
  return {
    words, n_heads: nHeads, X, W_Q, W_K, W_V, W_O, Q, K, V,
    raw_scores: heads.map((head) => head.raw),
    scaled_scores: heads.map((head) => head.scaled),
    weights: heads.map((head) => head.weights),
    head_outputs: heads.map((head) => head.out),
    concat, output: multiply(concat, W_O),
  };
}

// Whether two weights are equal is asked of the exact scores: entries are read as the
// decimals that they print as and multiplied as whole numbers, so rounding neither makes
// a tie nor hides one (in binary, 0.1 + 0.2 is not 0.3).
function wholes(matrix) {
  const parts = matrix.map((row) => row.map((x) => {
    const [digits, power = "0"] = String(x).split("e");
    const [whole, places = ""] = digits.split(".");
    return [BigInt(whole + places), Number(power) - places.length];
  }));
  const lowest = Math.min(...parts.flat().map(([, power]) => power));
  return parts.map((row) => row.map(([n, power]) => n * 10n ** BigInt(power - lowest)));
}

// For each head and row: `groups` of columns with exactly equal scores, and whether the
// query itself is zero (then every score is 0 and the shares are even).
export function exactTies(result, causal = false) {
  const dot = (a, b) => a.reduce((sum, x, k) => sum + x * b[k], 0n);
  const x = wholes(result.X);
  const [Q, K] = [result.W_Q, result.W_K].map((w) => {
    const columns = transposed(wholes(w));
    return x.map((row) => columns.map((column) => dot(row, column)));
  });
  const width = Q[0].length / result.n_heads;
  return Array.from({ length: result.n_heads }, (_, h) => {
    const [q, k] = [Q, K].map((m) => columnsOf(m, h, width));
    return q.map((query, i) => {
      const seen = new Map();
      k.slice(0, causal ? i + 1 : k.length).forEach((key, j) => {
        const score = dot(query, key);
        seen.set(score, [...(seen.get(score) ?? []), j]);
      });
      return {
        groups: [...seen.values()].filter((group) => group.length > 1),
        zero: query.every((n) => n === 0n),
      };
    });
  });
}

// The example with the reader's entries; keys such as "W_Q.2.0".
export function applyEdits(input, edits) {
  const changed = { ...input };
  for (const [key, value] of Object.entries(edits)) {
    const [name, i, j] = key.split(".");
    changed[name] = changed[name].map((row, r) =>
      (r === Number(i) ? row.map((x, c) => (c === Number(j) ? value : x)) : row));
  }
  return changed;
}

// ------------------------------------------------------------------- what is said

// Text is a list of parts: a string, or [string, role]. The role is what the text stands
// for (q, k, v: one colour and one underline wherever it appears), or sub, sup, strong.
const SIGN = { sub: "_", sup: "^" };
export const plainText = (parts) =>
  parts.map((p) => (typeof p === "string" ? p : (SIGN[p[1]] ?? "") + p[0])).join("");

const short = (x) => {
  const text = fmt(x, 3);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
};
const inSum = (x) => (short(x).startsWith("−") ? `(${short(x)})` : short(x));
const listed = (items) =>
  (items.length < 2 ? items.join("") : `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`);

const SHARES = "halves thirds quarters fifths sixths sevenths eighths".split(" ");

// One sentence for each exact tie and each zero query; Python's `notices` says the same.
export function tieNotices(result, ties) {
  const { words } = result;
  return ties.flatMap((rows, h) => rows.flatMap(({ groups, zero }, i) => {
    const where = ties.length === 1 ? "" : `head ${h + 1}, `;
    if (zero && groups.length)
      return [`${where}zero query: ${words[i]} gives even ${SHARES[groups[0].length - 2]}`];
    return groups.map((group) => `${where}exact tie: ${words[i]} gives ` +
      `${listed(group.map((j) => words[j]))} ${fmt(result.weights[h][i][group[0]])} each`);
  }));
}

const ROLE = { Q: "q", K: "k", V: "v" };
const W = (letter) => [["W", ROLE[letter] ?? ""], [letter, "sub"]];
const SUBSCRIPT = (h, result) => (result.n_heads === 1 ? [] : [[String(h + 1), "sub"]]);

// The steps in order. `opens` names the matrices whose numbers can be opened; the cell
// `first` of the first one is open before the reader has touched anything.
export const STEPS = [
  { key: "overview", title: "The whole path", opens: ["weights", "raw_scores", "head_outputs", "output"], first: [0, 1] },
  { key: "X", title: "Words as rows of numbers", opens: [] },
  { key: "Q", title: "Queries", opens: ["Q"], first: [0, 0] },
  { key: "K", title: "Keys", opens: ["K"], first: [0, 1] },
  { key: "V", title: "Values", opens: ["V"], first: [1, 0] },
  { key: "raw_scores", title: "Raw scores", opens: ["raw_scores"], first: [0, 1] },
  { key: "scaled_scores", title: "Divided by √d", opens: ["scaled_scores"], first: [0, 1] },
  { key: "weights", title: "Softmax: the weights", opens: ["weights"], first: [0, 1] },
  { key: "head_outputs", title: "Output: values, mixed", opens: ["head_outputs"], first: [0, 0] },
  { key: "output", title: "Join and project", opens: ["output"], first: [0, 0] },
];
const FIXED = new Set(["weights", "head_outputs", "concat", "output"]);
const PER_HEAD = new Set(["raw_scores", "scaled_scores", "weights", "head_outputs"]);

export function formulaOf(key, result) {
  const n = result.n_heads, d = result.Q[0].length / n;
  const i = n === 1 ? [] : [["i", "sub"]];
  const q = [["Q", "q"], ...i], k = [["K", "k"], ...i], v = [["V", "v"], ...i];
  const scores = [...q, " ", ...k, "ᵀ"];
  return {
    overview: ["softmax( ", ...scores, ` / √${d} ) `, ...v],
    X: [`X: ${result.words.length} words × ${result.X[0].length} numbers`],
    Q: [["Q", "q"], " = X ", ...W("Q")],
    K: [["K", "k"], " = X ", ...W("K")],
    V: [["V", "v"], " = X ", ...W("V")],
    raw_scores: ["scores = ", ...scores],
    scaled_scores: ["scores / √", String(d)],
    weights: ["weights = softmax( scores / √", String(d), " )"],
    head_outputs: ["output", ...i, " = weights", ...i, " ", ...v],
    output: ["result = ", ...(n === 1 ? ["output "] : ["[ output", ["1", "sub"], n > 2 ? " … output" : " output", [String(n), "sub"], " ] "]), ...W("O")],
  }[key];
}

export function sentenceOf(key, result, causal) {
  const n = result.n_heads, d = result.Q[0].length / n, width = result.Q[0].length;
  const many = n > 1;
  const bands = many ? ` The ${n} heads share out its ${width} columns; nothing is copied.` : "";
  const sums = result.weights.map((w) =>
    listed(w[0].map((_, j) => fmt(w.reduce((sum, row) => sum + row[j], 0)))));
  const identity = result.W_O.every((row, i) => row.every((x, j) => x === Number(i === j)));
  return {
    overview: many
      ? `Each of the ${n} heads does this on ${d} of the ${width} columns; their outputs are set side by side.`
      : "Each word compares its query with every key, turns the scores into shares, and mixes the values by them.",
    X: "Each word starts as a row of numbers, here chosen by hand. A word’s row is the same wherever it stands.",
    Q: `The query says what a word looks for: its row of X times the matrix for queries.${bands}`,
    K: `The key says what a word can be found by.${bands}`,
    V: `The value is what a word hands over when another word looks at it.${bands}`,
    raw_scores: "How well does each query fit each key? Multiply number by number and add.",
    scaled_scores: `Sums over more columns grow larger, so scores over ${d} columns are divided by √${d}.`,
    weights: `e to the score, then divided by the row’s total: each row sums to 1. The columns need not: ${sums.map((s, h) => (many ? `head ${h + 1}: ${s}` : s)).join("; ")}.` +
      (causal ? " Blocked keys are left out and get exactly 0." : ""),
    head_outputs: many
      ? "In each head, every word’s row is a mix of that head’s values, in the shares of its weights."
      : "Each word’s new row is a mix of the values, in the shares of its weights.",
    output: (many ? "The heads’ rows, set side by side, are multiplied by one more matrix, which mixes the heads."
      : "With one head there is nothing to join; one more matrix is multiplied on.") +
      (identity ? " Here it is the identity: nothing changes." : ""),
  }[key];
}

const sumOf = (left, right, roles, result) => [
  ...left.flatMap((x, n) => [n ? " + " : "", [inSum(x), roles[0]], "·", [inSum(right[n]), roles[1]]]),
  " = ", [short(result), "strong"]];

// explain(result, "weights.0.1.2"): how this number comes about: `title`, `parts`, and
// what it `uses` (the rows, columns and cells to mark in the picture).
export function explain(result, pick, causal = false) {
  const [key, ...place] = pick.split(".");
  const [head, i, j] = place.map(Number);
  const { words, n_heads: n } = result;
  const part = result.Q[0].length / n;
  const m = PER_HEAD.has(key) ? result[key][head] : result[key];
  const column = (matrix, c) => matrix.map((row) => row[c]);
  const of = (name) => columnsOf(result[name], head, part);
  const inHead = n > 1 && PER_HEAD.has(key) ? `head ${head + 1}: ` : "";
  const cell = { key, head, row: i, column: j, role: "cell" };
  if (key in ROLE) {
    const role = ROLE[key], w = `W_${key}`;
    return {
      title: [`${words[i]}, column ${j + 1} of ${key}: row `, [words[i], ""], ` of X times column ${j + 1} of `, ...W(key)],
      parts: sumOf(result.X[i], column(result[w], j), ["", role], m[i][j]),
      uses: [cell, { key: "X", head: 0, row: i, role: "ink" }, { key: w, head: 0, column: j, role }],
    };
  }
  if (key === "raw_scores") return {
    title: [`${inHead}query of `, [words[i], "q"], " times key of ", [words[j], "k"]],
    parts: sumOf(of("Q")[i], of("K")[j], ["q", "k"], m[i][j]),
    uses: [cell, { key: "Q", head, row: i, role: "q" }, { key: "K", head, column: j, role: "k" }],
  };
  const blocked = causal && j > i && (key === "scaled_scores" || key === "weights");
  if (blocked) return {
    title: [`${inHead}query of `, [words[i], "q"], ", key of ", [words[j], "k"]],
    parts: [`blocked: ${words[j]} comes later, so the weight is 0`],
    uses: [cell],
  };
  if (key === "scaled_scores") {
    const raw = result.raw_scores[head][i][j], root = Math.sqrt(part);
    const steps = Number.isInteger(root) ? "" : ` = ${short(raw)} ÷ ${short(root)}…`;
    return {
      title: [`${inHead}score of `, [words[i], "q"], " with ", [words[j], "k"], ` over ${part} columns`],
      parts: [`${short(raw)} ÷ √${part}`, Number.isInteger(root) ? ` = ${short(raw)} ÷ ${root}` : steps, " = ", [short(m[i][j]), "strong"]],
      uses: [cell, { key: "raw_scores", head, row: i, column: j, role: "ink" }],
    };
  }
  if (key === "weights") {
    const seen = result.scaled_scores[head][i].filter((_, c) => !(causal && c > i));
    const power = (x) => ["e", [short(x), "sup"]];
    const e = (x) => short(Math.exp(x));
    const total = seen.reduce((sum, x) => sum + Math.exp(x), 0);
    const mine = result.scaled_scores[head][i][j];
    const written = Number.isFinite(total) && total < 1e6 && Math.exp(mine) >= 0.0005;
    return {
      title: [`${inHead}weight that `, [words[i], "q"], " gives ", [words[j], "k"]],
      parts: [...power(mine), " / (", ...seen.flatMap((x, c) => [c ? " + " : "", ...power(x)]), ")",
        ...(written ? [` = ${e(mine)} / ${short(total)}`] : []), " = ", [fmt(m[i][j]), "strong"]],
      uses: [cell, { key: "scaled_scores", head, row: i, role: "ink" }, { key: "raw_scores", head, row: i, role: "ink" }],
    };
  }
  if (key === "head_outputs") return {
    title: [`${inHead}`, [words[i], "q"], `’s mix of column ${head * part + j + 1} of `, ["V", "v"]],
    parts: sumOf(result.weights[head][i], column(of("V"), j), ["", "v"], m[i][j]),
    uses: [cell, { key: "weights", head, row: i, role: "ink" }, { key: "V", head, column: j, role: "v" },
      { key: "V", head: 0, whole: true, column: head * part + j, role: "v" }],
  };
  return {
    title: [`${words[i]}, column ${j + 1} of the result: row ${words[i]} times column ${j + 1} of `, ...W("O")],
    parts: sumOf(result.concat[i], column(result.W_O, j), ["", ""], m[i][j]),
    uses: [cell, { key: "concat", head: 0, row: i, role: "ink" }, { key: "W_O", head: 0, column: j, role: "ink" }],
  };
}

// ------------------------------------------------------------------------ the picture

const written = (parts) => parts.map((p) => {
  if (typeof p === "string") return p;
  const [text, role] = p;
  if (role === "sub") return h("sub", {}, h("span", { class: "dd-hidden", text: "_" }), text);
  if (role === "sup") return h("sup", {}, h("span", { class: "dd-hidden", text: "^" }), text);
  if (role === "strong") return h("strong", {}, text);
  return h("span", { class: role ? `at-${role}` : null }, text);
});

// Which sides of the frame around a used row or column a cell carries.
function frameOf(uses, key, head, i, j, last) {
  const classes = [];
  for (const use of uses) {
    if (use.key !== key || use.head !== head || use.role === "cell") continue;
    if (use.row !== undefined && use.row !== i) continue;
    if (use.column !== undefined && use.column !== j) continue;
    classes.push("at-used", `at-used-${use.role}`);
    const one = use.row !== undefined && use.column !== undefined;
    if (one || use.column !== undefined || j === 0) classes.push("at-l");
    if (one || use.column !== undefined || j === last[1]) classes.push("at-r");
    if (one || use.row !== undefined || i === 0) classes.push("at-t");
    if (one || use.row !== undefined || i === last[0]) classes.push("at-b");
  }
  return classes;
}

// One matrix as a real table. `open` makes its numbers buttons.
function board(context, spec) {
  const { key, head = 0, values, rows, cols, title, role = "", rowRole = "", colRole = "", open = false,
    shade = false, names = "", bands = 0, blocked = () => false, ties = [], sums = false, foot = false } = spec;
  const { pick, uses } = context;
  const last = [values.length - 1, values[0].length - 1];
  const inside = pick.startsWith(`${key}.${head}.`);
  const cellOf = (x, i, j) => {
    const id = `${key}.${head}.${i}.${j}`, off = blocked(i, j);
    const tied = (ties[i]?.groups ?? []).findIndex((group) => group.includes(j));
    const ground = shade && !off ? cividis(x) : null;
    const text = off ? "blocked" : FIXED.has(key) ? fmt(x) : short(x);
    const badge = tied >= 0 && h("span", { class: "at-tie", "aria-hidden": true },
      "=", ties[i].groups.length > 1 && h("sub", {}, String(tied + 1)));
    const said = `${rows[i]}, ${cols[j]}: ${text}${tied >= 0 ? ", exact tie" : ""}`;
    const style = ground && `background:${ground};color:${inkOn(ground)}`;
    const shown = off ? h("span", { class: "dd-hidden" }, "blocked") : text;
    const classes = ["at-cell", off && "at-blocked", pick === id && "at-picked", shade && !off && "at-shade"];
    return h("td", { class: [bands && j % bands === 0 && j > 0 && "at-band", ...frameOf(uses, key, head, i, j, last)].filter(Boolean).join(" ") || null },
      open
        ? h("button", {
          type: "button", class: classes.filter(Boolean).join(" "), style, "data-key": id, "aria-label": said,
          "aria-pressed": pick === id, tabindex: (inside ? pick === id : i + j === 0) ? "0" : "-1",
        }, shown, badge)
        : h("span", { class: classes.filter(Boolean).join(" "), style }, shown, badge));
  };
  const used = (i, j) => uses.some((u) => u.key === key && u.head === head && u.role !== "cell" &&
    ((i !== null && u.row === i) || (j !== null && u.column === j)));
  const sumRow = values[0].map((_, j) => values.reduce((total, row) => total + row[j], 0));
  return h("table", { class: `at-board ${names}`, "data-board": `${key}.${head}` },
    h("caption", { class: role && `at-${role}` }, written(title)),
    h("thead", {},
      bands > 0 && h("tr", {}, h("td", {}), Array.from({ length: values[0].length / bands }, (_, n) =>
        h("th", { scope: "colgroup", colspan: bands, class: `at-head${n ? " at-band" : ""}` }, `head ${n + 1}`))),
      h("tr", {}, h("td", {}), cols.map((c, j) =>
        h("th", { scope: "col", class: [colRole && `at-${colRole}`, bands && j % bands === 0 && j > 0 && "at-band", used(null, j) && "at-on"].filter(Boolean).join(" ") || null }, c)),
      sums && h("th", { scope: "col", class: "at-sum" }, "sum"))),
    h("tbody", {},
      values.map((row, i) => h("tr", {},
        h("th", { scope: "row", class: [rowRole && `at-${rowRole}`, used(i, null) && "at-on"].filter(Boolean).join(" ") || null }, h("span", {}, rows[i])),
        row.map((x, j) => cellOf(x, i, j)),
        sums && h("td", { class: "at-sum" }, fmt(row.reduce((a, b) => a + b, 0))))),
      foot && h("tr", {}, h("th", { scope: "row", class: "at-sum" }, h("span", {}, "sum")),
        sumRow.map((x) => h("td", { class: "at-sum" }, fmt(x))), sums && h("td", {}))));
}

const numbered = (n, from = 0) => Array.from({ length: n }, (_, j) => String(from + j + 1));
const arrow = (...lines) => h("div", { class: "at-arrow" },
  lines.map((line) => h("span", {}, line)), h("span", { class: "at-line", "aria-hidden": true }));
const row = (...children) =>
  h("div", { class: `at-flow${children.length > 3 ? " at-mid" : ""}` }, children);

// A product: left factor, right factor above, result where row and column meet.
const crossed = (said, left, top, result, tight = false) =>
  h("div", { class: `at-cross${tight ? " at-tight" : ""}` }, said && h("div", { class: "at-corner" }, said),
    h("div", { class: "at-left" }, left), h("div", { class: "at-top" }, top), h("div", { class: "at-result" }, result));

function boards(context) {
  const { result, ties, causal } = context;
  const { words, n_heads: n } = result;
  const width = result.Q[0].length, part = width / n;
  const blocked = (i, j) => causal && j > i;
  const bands = n > 1 ? part : 0;
  const sub = (head) => SUBSCRIPT(head, result);
  const size = (m) => [` ${m.length} × ${m[0].length}`, "size"];
  const titled = (name, role, head, m) => [[name, role], ...(head === null ? [] : sub(head)), size(m)];
  const make = (spec) => board(context, spec);
  const cut = (name, head) => columnsOf(result[name], head, part);
  const names = (head) => numbered(part, head * part);
  return {
    X: (more = {}) => make({ key: "X", values: result.X, rows: words, cols: numbered(result.X[0].length), title: titled("X", "", null, result.X), ...more }),
    W: (name, more = {}) => make({ key: `W_${name}`, values: result[`W_${name}`], rows: numbered(width), cols: numbered(width), title: [...W(name), size(result[`W_${name}`])], role: ROLE[name], names: "at-out", bands: name === "O" ? 0 : bands, ...more }),
    whole: (name, more = {}) => make({ key: name, values: result[name], rows: words, cols: numbered(width), title: titled(name, ROLE[name], null, result[name]), role: ROLE[name], rowRole: ROLE[name], bands, ...more }),
    Q: (head) => make({ key: "Q", head, values: cut("Q", head), rows: words, cols: names(head), title: titled("Q", "q", head, cut("Q", head)), role: "q", rowRole: "q" }),
    KT: (head) => { const m = transposed(cut("K", head)); return make({ key: "K", head, values: m, rows: names(head), cols: words, title: [["K", "k"], ...sub(head), ["ᵀ", "k"], size(m)], role: "k", colRole: "k", names: "at-out" }); },
    V: (head) => make({ key: "V", head, values: cut("V", head), rows: words, cols: names(head), title: titled("V", "v", head, cut("V", head)), role: "v", rowRole: "k", names: "at-out" }),
    raw: (head, more = {}) => make({ key: "raw_scores", head, values: result.raw_scores[head], rows: words, cols: words, title: ["raw scores", ...sub(head)], rowRole: "q", colRole: "k", ...more }),
    scaled: (head, more = {}) => make({ key: "scaled_scores", head, values: result.scaled_scores[head], rows: words, cols: words, title: ["scaled", ...sub(head)], rowRole: "q", colRole: "k", blocked, ...more }),
    weights: (head, more = {}) => make({ key: "weights", head, values: result.weights[head], rows: words, cols: words, title: ["weights", ...sub(head)], rowRole: "q", colRole: "k", shade: true, blocked, ties: ties[head], ...more }),
    mixed: (head, more = {}) => make({ key: "head_outputs", head, values: result.head_outputs[head], rows: words, cols: names(head), title: ["output", ...sub(head)], rowRole: "q", ...more }),
    concat: () => make({ key: "concat", values: result.concat, rows: words, cols: numbered(width), title: [n === 1 ? "output" : "outputs, joined", size(result.concat)], rowRole: "q", bands }),
    output: (more = {}) => make({ key: "output", values: result.output, rows: words, cols: numbered(result.output[0].length), title: ["result", size(result.output)], rowRole: "q", open: true, ...more }),
  };
}

function picture(step, context, said) {
  const { result } = context;
  const n = result.n_heads, d = result.Q[0].length / n, one = n === 1;
  const b = boards(context);
  const heads = numbered(n).map(Number).map((x) => x - 1);
  const open = { open: true }, bare = { open: true, names: "at-norows" };
  const each = (draw, tight) => h("div", { class: "at-heads" }, heads.map((head) => draw(head, tight)));
  const label = (head) => h("p", { class: "at-headname" }, `head ${head + 1}`);
  const pictures = {
    overview: () => (one
      ? [row(b.raw(0, open), arrow(`÷ √${d}`, "softmax"), b.weights(0, { ...bare, sums: true })),
        row(b.whole("V", { rowRole: "k" }), arrow("weights", "mix rows"), b.mixed(0, open), null)]
      : [...heads.map((head) => row(b.raw(head, open), arrow(`÷ √${d}`, "softmax"), b.weights(head, bare), arrow(written(["· ", ["V", "v"], [String(head + 1), "sub"]])), b.mixed(head, bare))),
        row(b.output(), h("p", { class: "at-aside" }, "the outputs side by side, times W", h("sub", {}, "O")))]),
    X: () => row(b.X()),
    Q: () => crossed(said, b.X(), b.W("Q"), b.whole("Q", bare)),
    K: () => crossed(said, b.X(), b.W("K"), b.whole("K", bare)),
    V: () => crossed(said, b.X(), b.W("V"), b.whole("V", bare)),
    raw_scores: () => (one ? crossed(said, b.Q(0), b.KT(0), b.raw(0, bare))
      : each((head) => crossed(label(head), b.Q(head), b.KT(head), b.raw(head, bare), true))),
    scaled_scores: () => heads.map((head) => row(b.raw(head), arrow(`÷ √${d}`), b.scaled(head, bare))),
    weights: () => heads.map((head) => row(b.scaled(head), arrow("softmax", "of each row"), b.weights(head, { ...bare, sums: true, foot: true }))),
    head_outputs: () => (one ? crossed(said, b.weights(0), b.V(0), b.mixed(0, bare))
      : each((head) => crossed(label(head), b.weights(head), b.V(head), b.mixed(head, bare), true))),
    output: () => crossed(said, b.concat(), b.W("O"), b.output({ names: "at-norows" })),
  };
  const crossedText = step.key === "output" || step.key in ROLE || (one && ["raw_scores", "head_outputs"].includes(step.key));
  return [!crossedText && said, pictures[step.key]()];
}

// ------------------------------------------------------------------------- the widget

const TITLE = "Attention, step by step";
const LIMIT = 100;
const NAMES = ["X", "W_Q", "W_K", "W_V", "W_O"];

export function cleanState(state, data) {
  const input = data.traces["1"];
  const step = Math.min(Math.max(Math.trunc(state.step) || 0, 0), STEPS.length - 1);
  const heads = data.heads.includes(state.heads) ? state.heads : data.heads[0];
  const edits = Object.fromEntries(Object.entries(data.editable ? state.edits : {}).filter(([key, value]) => {
    const [name, i, j, ...rest] = key.split(".");
    return NAMES.includes(name) && !rest.length && input[name][i]?.[j] !== undefined &&
      typeof value === "number" && Math.abs(value) <= LIMIT && value !== input[name][i][j];
  }));
  return { ...state, step, heads, edits };
}

// What Python computed, where the reader has changed nothing; else computed here.
export function current(data, { heads, edits, reversed, causal }) {
  if (!reversed && !causal && !Object.keys(edits).length) return data.traces[String(heads)];
  return attend(applyEdits(data.traces["1"], edits), heads, { causal, reversed });
}

// The cell that is open: the reader's, if this step shows it, else the step's first.
export function pickOf(state, result) {
  const step = STEPS[state.step];
  const [key, ...place] = String(state.pick).split(".");
  const [head, i, j] = place.map(Number);
  const opens = step.key === "overview" && result.n_heads === 1 ? step.opens.slice(0, 3) : step.opens;
  const m = PER_HEAD.has(key) ? result[key][head] : head === 0 ? result[key] : null;
  if (place.length === 3 && opens.includes(key) && m?.[i]?.[j] !== undefined) return state.pick;
  if (!step.first) return "";
  const first = step.opens[0], matrix = PER_HEAD.has(first) ? result[first][0] : result[first];
  const [r, c] = step.first;
  return `${first}.0.${Math.min(r, matrix.length - 1)}.${Math.min(c, matrix[0].length - 1)}`;
}

function tablesOf(result) {
  const { words, n_heads: n } = result;
  const width = result.Q[0].length, part = width / n;
  const one = (name, rows = words, text = name) => matrixTable({
    caption: text, name, rows, cols: numbered(result[name][0].length), values: result[name], rowName: "row", colName: "column" });
  const each = (name, text, square) => result[name].map((m, head) => matrixTable({
    caption: n === 1 ? text : `head ${head + 1}: ${text}`, name: `${name}.${head}`, rows: words,
    cols: square ? words : numbered(part, head * part), values: m,
    rowName: square ? "query" : "row", colName: square ? "key" : "column" }));
  return [
    one("X"), ...["W_Q", "W_K", "W_V"].map((name) => one(name, numbered(result.X[0].length))),
    one("Q"), one("K"), one("V"), each("raw_scores", "raw scores", true),
    each("scaled_scores", `scores divided by √${part}`, true), each("weights", "weights", true),
    each("head_outputs", "output", false), one("concat", words, "outputs side by side"),
    one("W_O", numbered(width)), one("output", words, "result"),
  ].flat();
}

// The panel under "Edit the numbers": one matrix at a time, plain number boxes.
function editor(s, data) {
  const input = () => data().traces["1"];
  const said = h("p", { class: "at-said", role: "status" });
  const box = h("div", { class: "dd-scroll", tabindex: "0", role: "region", "aria-label": "entries" });
  const title = h("summary", {}, "Edit the numbers");
  let name = "X", fields = [];
  const valueOf = (i, j) => s.get().edits[`${name}.${i}.${j}`] ?? input()[name][i][j];
  const show = () => {
    fields.forEach(({ field, i, j }) => {
      const text = String(valueOf(i, j));
      if (document.activeElement !== field) field.value = text;
      field.classList.toggle("at-edited", `${name}.${i}.${j}` in s.get().edits);
    });
    const n = Object.keys(s.get().edits).length;
    title.textContent = n ? `Edit the numbers (${n} changed)` : "Edit the numbers";
  };
  const change = (field, i, j, where) => {
    const asked = field.value.trim() === "" ? NaN : Number(field.value);
    if (!(Math.abs(asked) <= LIMIT)) {
      said.textContent = Number.isNaN(asked)
        ? `That is not a number: ${where} stays ${valueOf(i, j)}.`
        : `Only numbers from −${LIMIT} to ${LIMIT}: ${where} stays ${valueOf(i, j)}.`;
      field.value = String(valueOf(i, j));
      return;
    }
    said.textContent = "";
    const { [`${name}.${i}.${j}`]: _, ...edits } = s.get().edits;
    s.set({ edits: asked === input()[name][i][j] ? edits : { ...edits, [`${name}.${i}.${j}`]: asked } });
    field.value = String(asked);
  };
  const draw = () => {
    const m = input()[name], rows = name === "X" ? input().words : numbered(m.length);
    fields = [];
    box.replaceChildren(h("table", { class: "at-edit" },
      h("thead", {}, h("tr", {}, h("td", {}), numbered(m[0].length).map((c) => h("th", { scope: "col" }, c)))),
      h("tbody", {}, m.map((cells, i) => h("tr", {}, h("th", { scope: "row" }, rows[i]), cells.map((_, j) => {
        const where = `${name}, ${name === "X" ? rows[i] : `row ${rows[i]}`}, column ${j + 1}`;
        const field = h("input", { type: "number", class: "dd-box", step: "0.1", "aria-label": where });
        field.addEventListener("change", () => change(field, i, j, where));
        fields.push({ field, i, j });
        return h("td", {}, field);
      }))))));
    show();
  };
  const matrix = choice({
    label: "Matrix", kind: "select", value: name, onChange: (value) => { name = value; said.textContent = ""; draw(); },
    options: NAMES,
  });
  draw();
  const stop = s.subscribe(show);
  const el = h("details", { class: "at-editor" }, title, matrix.el, box, said);
  return { el, draw, stop };
}

function notesOf(context, state) {
  const { result, ties } = context;
  const step = STEPS[state.step].key;
  const notes = ["overview", "raw_scores", "scaled_scores", "weights"].includes(step)
    ? tieNotices(result, ties).map((text) => ["=", text]) : [];
  if (state.reversed) notes.push(["↔", `Now read as “${result.words.join(" ")}”. ` + (state.causal
    ? "With the causal mask the order matters: each word sees only itself and the words before it."
    : "The same rows in another order: without positions, a word’s place changes nothing else.")]);
  return notes;
}

function render({ model, el }) {
  let data = model.get("data");
  const s = store(model, { step: 0, heads: 1, pick: "", edits: {}, reversed: false, causal: false },
    (state) => cleanState(state, data));
  const box = h("div", { class: "at-box" });
  const back = button("Back", () => go(-1), { "data-key": "back" });
  const next = button("Next", () => go(1), { "data-key": "next" });
  const title = h("p", { class: "at-step" });
  const figure = h("div", { class: "at-figure" }, h("div", { class: "at-stepper" }, back, title, next), box);
  const go = (by) => {
    const step = s.get().step + by;
    if (step >= 0 && step < STEPS.length) s.set({ step, pick: "" });
  };
  const headline = ({ step }) =>
    (step ? `Step ${step} of ${STEPS.length - 1}: ` : "Overview: ") + STEPS[step].title;
  const look = () => {
    const state = s.get(), result = current(data, state), pick = pickOf(state, result);
    const told = pick ? explain(result, pick, state.causal) : null;
    return { result, pick, told, uses: told?.uses ?? [], causal: state.causal, ties: exactTies(result, state.causal) };
  };

  const draw = () => keepFocus(box, () => {
    const state = s.get(), step = STEPS[state.step], context = look();
    const { result, told } = context;
    title.replaceChildren(h("span", { class: "at-count" }, TITLE, state.step ? `: ${state.step} of ${STEPS.length - 1}` : ""), step.title);
    back.setAttribute("aria-disabled", String(state.step === 0));
    next.setAttribute("aria-disabled", String(state.step === STEPS.length - 1));
    const said = h("div", { class: "at-words" },
      h("p", { class: "at-formula" }, written(formulaOf(step.key, result))),
      h("p", {}, sentenceOf(step.key, result, state.causal)));
    const notes = notesOf(context, state);
    box.replaceChildren(
      h("div", { class: "at-scene", tabindex: "0", role: "region", "aria-label": `Matrices: ${step.title}` }, picture(step, context, said)),
      told ? h("div", { class: "at-calc" },
        h("p", { class: "at-of" }, written(told.title)), h("p", { class: "at-sum-line" }, written(told.parts))) : "",
      notes.length ? h("ul", { class: "at-notes" }, notes.map(([sign, text]) =>
        h("li", {}, h("span", { class: "at-tie", "aria-hidden": true }, sign), text))) : "");
  });

  const openCell = (target) => {
    const cell = target.closest?.("button.at-cell");
    if (cell) s.set({ pick: cell.dataset.key });
  };
  box.addEventListener("click", (event) => openCell(event.target));
  box.addEventListener("keydown", (event) => {
    const cell = event.target.closest?.("button.at-cell");
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!cell || !by || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const [key, head, i, j] = cell.dataset.key.split(".");
    const id = [key, head, Number(i) + by[0], Number(j) + by[1]].join(".");
    if (!box.querySelector(`[data-key="${id}"]`)) return;
    s.set({ pick: id });
    box.querySelector(`[data-key="${id}"]`)?.focus();
  });

  const edit = data.editable ? editor(s, () => data) : null;
  const reversedWords = [...data.traces["1"].words].reverse().join(" ");
  const view = shell(el, {
    model, store: s, title: TITLE, figure,
    controls: [
      data.heads.length > 1 && choice({
        label: "Heads", store: s, key: "heads",
        options: data.heads.map((n) => ({ value: n, label: n === 1 ? "one" : n === 2 ? "two" : String(n) })),
      }),
      edit,
    ].filter(Boolean),
    more: [
      toggle({ label: "Causal mask", hint: "no word sees a later one", store: s, key: "causal" }),
      toggle({ label: `Read “${reversedWords}”`, hint: "the same words in reverse order", store: s, key: "reversed" }),
      choice({
        label: "Go to step", kind: "select", value: s.get().step, store: s, key: "step",
        options: STEPS.map((step, value) => ({ value, label: value ? `${value} ${step.title}` : step.title })),
      }),
    ],
    summary: () => {
      const state = s.get(), { told } = look();
      return `${headline(state)}, ${state.heads === 1 ? "one head" : `${state.heads} heads`}.` +
        (told ? ` ${plainText(told.title)}: ${plainText(told.parts)}.` : "");
    },
    table: () => tablesOf(look().result),
  });
  view.root.classList.add("at-widget");
  const stop = [s.subscribe(draw), onData(model, (fresh) => { data = fresh; edit?.draw(); draw(); view.refresh(); })];
  draw();
  return () => { stop.forEach((f) => f()); edit?.stop(); view.destroy(); };
}

export default { render };
