// SPDX-License-Identifier: MIT
// Attention on a few words, one step at a time; every computed number can be opened.
// Python's deepdive.trace computes the same matrices; the tests compare the two.
import { button, choice, cividis, fmt, h, inkOn, keepFocus, matrixTable, onData, onResize, scrolling,
  shell, softmax, store, toggle } from "./common.js";

// ---------------------------------------------------------------- the calculation

const multiply = (a, b) =>
  a.map((row) => b[0].map((_, j) => row.reduce((sum, x, k) => sum + x * b[k][j], 0)));
const columnsOf = (m, head, width) => m.map((row) => row.slice(head * width, (head + 1) * width));
const columnAt = (m, j) => m.map((row) => row[j]);
const transposed = (m) => m[0].map((_, j) => columnAt(m, j));
const range = (n) => Array.from({ length: n }, (_, i) => i);
const total = (list) => list.reduce((a, b) => a + b, 0);

// The same keys as Python's trace.to_json, so that the picture takes either.
export function attend(input, nHeads = 1, { causal = false, reversed = false } = {}) {
  const { W_Q, W_K, W_V, W_O } = input;
  const [words, X] = [input.words, input.X].map((list) => (reversed ? [...list].reverse() : list));
  const width = W_Q[0].length / nHeads;
  if (!(nHeads >= 1 && Number.isInteger(width)))
    throw new RangeError(`width ${W_Q[0].length} cannot be cut into ${nHeads} heads`);
  const [Q, K, V] = [W_Q, W_K, W_V].map((w) => multiply(X, w));
  const heads = range(nHeads).map((head) => {
    const [q, k, v] = [Q, K, V].map((m) => columnsOf(m, head, width));
    const raw = multiply(q, transposed(k));
    const scaled = raw.map((row) => row.map((x) => x / Math.sqrt(width)));
    const visible = (row, i) => row.map((x, j) => (causal && j > i ? null : x));
    const weights = scaled.map((row, i) => softmax(visible(row, i)));
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
  return range(result.n_heads).map((head) => {
    const [q, k] = [Q, K].map((m) => columnsOf(m, head, width));
    return q.map((query, i) => {
      const seen = new Map();
      k.slice(0, causal ? i + 1 : k.length).forEach((key, j) => {
        const score = dot(query, key);
        seen.set(score, [...(seen.get(score) ?? []), j]);
      });
      const groups = [...seen.values()].filter((group) => group.length > 1);
      return { groups, zero: query.every((n) => n === 0n) };
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

const short = (x, digits = 3) => {
  const text = fmt(x, digits);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
};
const inSum = (x, digits) => (x < 0 && short(x, digits) !== "0" ? `(${short(x, digits)})` : short(x, digits));

// So many digits that a reader who redoes the sum from what is printed gets what is
// printed; Python's `enough` is the same.
const rounded = (x, digits) => Number(x.toFixed(digits));
function enough(least, same) {
  let digits = least;
  while (digits < 9 && !same((x) => rounded(x, digits))) digits += 1;
  return digits;
}
const listed = (items) =>
  (items.length < 2 ? items.join("") : `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`);

const SHARES = "halves thirds quarters fifths sixths sevenths eighths".split(" ");

// One sentence for each exact tie and each zero query; Python's `notices` says the same.
export function tieNotices({ words, weights }, ties) {
  return ties.flatMap((rows, head) => rows.flatMap(({ groups, zero }, i) => {
    const where = ties.length === 1 ? "" : `head ${head + 1}, `;
    if (zero && groups.length)
      return [`${where}zero query: ${words[i]} gives even ${SHARES[groups[0].length - 2]}`];
    return groups.map((group) => `${where}exact tie: ${words[i]} gives ` +
      `${listed(group.map((j) => words[j]))} ${fmt(weights[head][i][group[0]])} each`);
  }));
}

const ROLE = { Q: "q", K: "k", V: "v" };
const W = (letter) => [["W", ROLE[letter] ?? ""], [letter, "sub"]];
const FIXED = new Set(["weights", "head_outputs", "concat", "output"]); // always 3 decimals
const PER_HEAD = new Set(["raw_scores", "scaled_scores", "weights", "head_outputs"]);

// The steps in order. `opens` names the matrices whose numbers can be opened; the cell
// `first` of the first one is open before the reader has touched anything.
const step = (key, title, first = [0, 0], opens = [key]) => ({ key, title, first, opens });
export const STEPS = [
  step("overview", "The whole path", [1, 0], ["weights", "raw_scores", "head_outputs", "output"]),
  step("X", "Words as rows of numbers", null, []),
  step("Q", "Queries", [1, 1]),
  step("K", "Keys", [0, 1]),
  step("V", "Values", [1, 0]),
  step("raw_scores", "Raw scores", [1, 0]),
  step("scaled_scores", "Divided by √d", [1, 0]),
  step("weights", "Softmax: the weights", [1, 0]),
  step("head_outputs", "Output: values, mixed", [1, 0]),
  step("output", "Join and project", [1, 0]),
];

export function formulaOf(key, result) {
  const n = result.n_heads, d = result.Q[0].length / n;
  const i = n === 1 ? [] : [["i", "sub"]];
  const q = [["Q", "q"], ...i], k = [["K", "k"], ...i], v = [["V", "v"], ...i];
  const scores = [...q, " ", ...k, "ᵀ"];
  const all = ["[ output", ["1", "sub"], n > 2 ? " … output" : " output", [String(n), "sub"], " ] "];
  return {
    overview: ["softmax( ", ...scores, ` / √${d} ) `, ...v],
    X: [`X: ${result.words.length} words × ${result.X[0].length} numbers`],
    Q: [["Q", "q"], " = X ", ...W("Q")],
    K: [["K", "k"], " = X ", ...W("K")],
    V: [["V", "v"], " = X ", ...W("V")],
    raw_scores: ["scores = ", ...scores],
    scaled_scores: [`scores / √${d}`],
    weights: [`weights = softmax( scores / √${d} )`],
    head_outputs: ["output", ...i, " = weights", ...i, " ", ...v],
    output: ["result = ", ...(n === 1 ? ["output "] : all), ...W("O")],
  }[key];
}

// One or two sentences on a step, for one head and for several.
export function sentenceOf(key, result, causal) {
  const n = result.n_heads, width = result.Q[0].length, d = width / n;
  const [one, many] = {
    overview: [
      "Each word compares its query with every key, turns the scores into shares, and mixes " +
        "the values by them.",
      `Each of the ${n} heads does this on ${d} of the ${width} columns; their outputs are set ` +
        "side by side."],
    X: ["Each word starts as a row of numbers, here chosen by hand. A word’s row is the same " +
      "wherever it stands."],
    Q: ["The query says what a word looks for: its row of X times the matrix for queries."],
    K: ["The key says what a word can be found by."],
    V: ["The value is what a word hands over when another word looks at it."],
    raw_scores: ["How well does each query fit each key? Multiply number by number and add."],
    scaled_scores: [`Sums over more columns grow larger, so scores over ${d} columns are ` +
      `divided by √${d}.`],
    weights: [`e to the score, then divided by the row’s total: each row sums to 1. The columns ` +
      `need not: ${columnSums(result)}.`],
    head_outputs: [
      "Each word’s new row is a mix of the values, in the shares of its weights.",
      "In each head, every word’s row is a mix of that head’s values, in the shares of its " +
        "weights."],
    output: [
      "With one head there is nothing to join; one more matrix is multiplied on.",
      "The heads’ rows, set side by side, are multiplied by one more matrix, which mixes the " +
        "heads."],
  }[key];
  const text = n > 1 ? many ?? one : one;
  if (n > 1 && key in ROLE)
    return `${text} The ${n} heads share out its ${width} columns; nothing is copied.`;
  if (causal && key === "weights") return `${text} Blocked keys are left out and get exactly 0.`;
  if (key === "output" && result.W_O.every((row, i) => row.every((x, j) => x === Number(i === j))))
    return `${text} Here it is the identity: nothing changes.`;
  return text;
}

function columnSums({ weights }) {
  const sums = weights.map((w) => listed(transposed(w).map((column) => fmt(total(column)))));
  return sums.map((s, head) => (sums.length > 1 ? `head ${head + 1}: ${s}` : s)).join("; ");
}

function sumOf(left, right, roles, value) {
  const digits = enough(3, (r) =>
    short(total(left.map((x, n) => r(x) * r(right[n])))) === short(value));
  return [
    ...left.flatMap((x, n) =>
      [n ? " + " : "", [inSum(x, digits), roles[0]], "·", [inSum(right[n], digits), roles[1]]]),
    " = ", [short(value), "strong"]];
}

// How one number comes about, by the matrix it stands in: a `title`, the calculation in
// `parts`, and what it `uses`, the rows and columns to frame in the picture.
const projected = (letter) => ({ result, i, j, word, value }) => ({
  title: [`${word}, column ${j + 1} of ${letter}: row ${word} of X times column ${j + 1} of `,
    ...W(letter)],
  parts: sumOf(result.X[i], columnAt(result[`W_${letter}`], j), ["", ROLE[letter]], value),
  uses: [{ key: "X", row: i, role: "ink" }, { key: `W_${letter}`, column: j, role: ROLE[letter] }],
});
const HOW = {
  Q: projected("Q"),
  K: projected("K"),
  V: projected("V"),
  raw_scores: ({ q, k, head, i, j, value, where, asks, answers }) => ({
    title: [`${where}query of `, asks, " times key of ", answers],
    parts: sumOf(q[i], k[j], ["q", "k"], value),
    uses: [{ key: "Q", head, row: i, role: "q" }, { key: "K", head, column: j, role: "k" }],
  }),
  scaled_scores: ({ result, part, head, i, j, value, where, asks, answers }) => {
    const x = result.raw_scores[head][i][j], root = Math.sqrt(part);
    const digits = enough(3, (r) => short(r(x) / r(root)) === short(value));
    const raw = short(x, digits), dots = Number.isInteger(root) ? "" : "…";
    return {
      title: [`${where}score of `, asks, " with ", answers, ` over ${part} columns`],
      parts: [`${raw} ÷ √${part} = ${raw} ÷ ${short(root, digits)}${dots} = `, [short(value), "strong"]],
      uses: [{ key: "raw_scores", head, row: i, column: j, role: "ink" }],
    };
  },
  weights: ({ result, causal, head, i, j, value, where, asks, answers }) => {
    const scores = result.scaled_scores[head][i];
    const seen = causal ? scores.slice(0, i + 1) : scores;
    const mine = Math.exp(scores[j]), sum = total(seen.map(Math.exp));
    const legible = sum < 1e6 && mine >= 0.0005; // else it is too long, or prints as 0
    const places = enough(3, (r) => fmt(r(mine) / r(sum)) === fmt(value));
    const digits = legible ? enough(4, (r) =>
      short(Math.exp(r(scores[j])), places) === short(mine, places) &&
      short(total(seen.map((x) => Math.exp(r(x)))), places) === short(sum, places)) : 4;
    const power = (x) => ["e", [short(x, digits), "sup"]];
    return {
      title: [`${where}weight that `, asks, " gives ", answers],
      parts: [...power(scores[j]), " / (",
        ...seen.flatMap((x, c) => [c ? " + " : "", ...power(x)]), ")",
        legible ? ` = ${short(mine, places)} / ${short(sum, places)} = ` : " = ", [fmt(value), "strong"]],
      uses: ["scaled_scores", "raw_scores"].map((key) => ({ key, head, row: i, role: "ink" })),
    };
  },
  head_outputs: ({ result, v, part, head, i, j, value, where, asks }) => ({
    title: [where, asks, `’s mix of column ${head * part + j + 1} of `, ["V", "v"]],
    parts: sumOf(result.weights[head][i], columnAt(v, j), ["", "v"], value),
    uses: [{ key: "weights", head, row: i, role: "ink" },
      { key: "V", head, column: j, role: "v" }],
  }),
  output: ({ result, i, j, word, value }) => ({
    title: [`${word}, column ${j + 1} of the result: row ${word} times column ${j + 1} of `,
      ...W("O")],
    parts: sumOf(result.concat[i], columnAt(result.W_O, j), ["", ""], value),
    uses: [{ key: "concat", row: i, role: "ink" }, { key: "W_O", column: j, role: "ink" }],
  }),
};
const blockedHow = ({ where, asks, answers }) => ({
  title: [`${where}query of `, asks, ", key of ", answers],
  parts: [`blocked: ${answers[0]} comes later, so the weight is 0`],
  uses: [],
});

// explain(result, "weights.0.1.2"): the calculation behind row 1, column 2 of head 0.
export function explain(result, pick, causal = false) {
  const [key, ...place] = pick.split(".");
  const [head, i, j] = place.map(Number);
  const { words, n_heads: n } = result;
  const part = result.Q[0].length / n;
  const [q, k, v] = ["Q", "K", "V"].map((name) => columnsOf(result[name], head, part));
  const masked = causal && j > i && ["scaled_scores", "weights"].includes(key);
  return (masked ? blockedHow : HOW[key])({
    result, causal, part, head, i, j, q, k, v, word: words[i],
    value: (PER_HEAD.has(key) ? result[key][head] : result[key])[i][j],
    where: n > 1 ? `head ${head + 1}: ` : "",
    asks: [words[i], "q"], answers: [words[j], "k"],
  });
}

// ------------------------------------------------------------------------ the picture

const hidden = (text) => h("span", { class: "dd-hidden" }, text);
const classes = (...names) => names.filter(Boolean).join(" ") || null;
const numbered = (n, from = 0) => range(n).map((j) => String(from + j + 1));

const written = (parts) => parts.map((p) => {
  if (typeof p === "string") return p;
  const [text, role] = p;
  if (role === "sub" || role === "sup") return h(role, {}, hidden(SIGN[role]), text);
  return role === "strong" ? h("strong", {}, text) : h("span", { class: role && `at-${role}` }, text);
});

// Which sides of the frame around a used row, column or cell the cell (i, j) carries.
function frameOf(uses, { key, head = 0, values }, i, j) {
  return uses.filter((use) => use.key === key && (use.head ?? 0) === head &&
    (use.row ?? i) === i && (use.column ?? j) === j).flatMap(({ row, column, role }) => {
    const across = row !== undefined, down = column !== undefined;
    return ["at-used", `at-used-${role}`,
      (down || j === 0) && "at-l", (down || j === values[0].length - 1) && "at-r",
      (across || i === 0) && "at-t", (across || i === values.length - 1) && "at-b"];
  });
}

// One number: a button where it can be opened, plain text where it can't.
function cellOf({ pick, uses }, spec, i, j) {
  const { key, head = 0, values, rows, cols, open, shade, bands, ties, blocked } = spec;
  const x = values[i][j], id = `${key}.${head}.${i}.${j}`;
  const off = blocked?.(i, j), dyed = shade && !off && cividis(x);
  const groups = ties?.[i].groups ?? [], group = groups.findIndex((g) => g.includes(j));
  const text = off ? "blocked" : FIXED.has(key) ? fmt(x) : short(x);
  const inside = [off ? hidden(text) : text,
    group >= 0 && h("span", { class: "at-tie", "aria-hidden": true }, "=",
      groups.length > 1 && h("sub", {}, String(group + 1)))];
  const looks = {
    class: classes("at-cell", off && "at-blocked", dyed && "at-shade", pick === id && "at-picked"),
    style: dyed && `background:${dyed};color:${inkOn(dyed)}`,
  };
  // Tab reaches one number of each matrix, the arrow keys the others.
  const here = pick.startsWith(`${key}.${head}.`) ? pick === id : i + j === 0;
  return h("td", { class: classes(bands && j && j % bands === 0 && "at-band", ...frameOf(uses, spec, i, j)) },
    open ? h("button", {
      ...looks, type: "button", "data-key": id, tabindex: here ? "0" : "-1",
      "aria-pressed": pick === id,
      "aria-label": `${rows[i]}, ${cols[j]}: ${text}${group >= 0 ? ", exact tie" : ""}`,
    }, inside) : h("span", looks, inside));
}

function headRows(spec, used) {
  const { cols, colRole, bands, sums } = spec;
  const edge = (j) => bands && j > 0 && j % bands === 0 && "at-band";
  return h("thead", {},
    bands > 0 && h("tr", {}, h("td", {}), range(cols.length / bands).map((n) =>
      h("th", { scope: "colgroup", colspan: bands, class: classes("at-head", n && "at-band") },
        `head ${n + 1}`))),
    h("tr", {}, h("td", {}),
      cols.map((c, j) => h("th", {
        scope: "col", class: classes(colRole && `at-${colRole}`, edge(j), used("column", j) && "at-on"),
      }, c)),
      sums && h("th", { scope: "col", class: "at-sum" }, "sum")));
}

// One matrix as a real table. spec: `open` makes its numbers buttons, `shade` dyes them,
// `bands` is the width of a head, `sums` and `foot` add the sums of rows and columns,
// `names` says where the names of the rows hang (see the style sheet).
function board(context, spec) {
  const { key, head = 0, values, rows, title, role, rowRole, names, sums, foot } = spec;
  const used = (kind, n) => context.uses.some((use) =>
    use.key === key && (use.head ?? 0) === head && use[kind] === n);
  const small = (text) => h("td", { class: "at-sum" }, text);
  return h("table", { class: classes("at-board", names), "data-board": `${key}.${head}` },
    h("caption", { class: role && `at-${role}` }, written(title)),
    headRows(spec, used),
    h("tbody", {},
      values.map((row, i) => h("tr", {},
        h("th", {
          scope: "row", class: classes(rowRole && `at-${rowRole}`, used("row", i) && "at-on"),
        }, h("span", {}, rows[i])),
        row.map((_, j) => cellOf(context, spec, i, j)), sums && small(fmt(total(row))))),
      foot && h("tr", {}, h("th", { scope: "row", class: "at-sum" }, h("span", {}, "sum")),
        transposed(values).map((column) => small(fmt(total(column)))), sums && h("td", {}))));
}

// Every matrix that a step may show, with its names and colours.
function boards(context) {
  const { result, ties, causal } = context;
  const { words, n_heads: n } = result;
  const width = result.Q[0].length, part = width / n, bands = n > 1 ? part : 0;
  const own = (head) => (n === 1 ? [] : [[String(head + 1), "sub"]]);
  const size = (m) => [` ${m.length} × ${m[0].length}`, "size"];
  const blocked = (i, j) => causal && j > i;
  const make = (spec) => board(context, spec);
  const whole = (key, title, spec) => make({
    key, values: result[key], rows: words, cols: numbered(result[key][0].length),
    title: [...title, size(result[key])], ...spec });
  const cut = (key, head, spec) => {
    const values = columnsOf(result[key], head, part), role = ROLE[key];
    return make({ key, head, values, rows: words, cols: numbered(part, head * part),
      title: [[key, role], ...own(head), size(values)], role, rowRole: role, ...spec });
  };
  const square = (key, title, head, spec) => make({
    key, head, values: result[key][head], rows: words, cols: words, rowRole: "q", colRole: "k",
    title: [title, ...own(head)], ...spec });
  return {
    X: () => whole("X", ["X"]),
    W: (letter) => whole(`W_${letter}`, W(letter), {
      rows: numbered(width), role: ROLE[letter], names: "at-out", bands: letter === "O" ? 0 : bands }),
    projection: (letter, spec) => whole(letter, [[letter, ROLE[letter]]],
      { role: ROLE[letter], rowRole: ROLE[letter], bands, ...spec }),
    Q: (head) => cut("Q", head),
    KT: (head) => {
      const values = transposed(columnsOf(result.K, head, part));
      return cut("K", head, { values, rows: numbered(part, head * part), cols: words,
        title: [["K", "k"], ...own(head), ["ᵀ", "k"], size(values)],
        rowRole: "", colRole: "k", names: "at-out" });
    },
    V: (head) => cut("V", head, { rowRole: "k", names: "at-out" }),
    raw: (head, spec) => square("raw_scores", "raw scores", head, spec),
    scaled: (head, spec) => square("scaled_scores", "scaled", head, { blocked, ...spec }),
    weights: (head, spec) =>
      square("weights", "weights", head, { shade: true, blocked, ties: ties[head], ...spec }),
    mixed: (head, spec) => make({
      key: "head_outputs", head, values: result.head_outputs[head], rows: words, rowRole: "q",
      cols: numbered(part, head * part), title: ["output", ...own(head)], ...spec }),
    concat: () => whole("concat", [n === 1 ? "output" : "outputs, joined"], { rowRole: "q", bands }),
    output: (spec) => whole("output", ["result"], { rowRole: "q", open: true, ...spec }),
  };
}

const arrow = (...lines) => h("div", { class: "at-arrow" },
  lines.map((line) => line && h("span", {}, line)), h("span", { class: "at-line", "aria-hidden": true }));
const flow = (...children) => h("div", { class: "at-flow" }, children);
const denser = (...children) => h("div", { class: "at-flow at-mid" }, children);
const densest = (...children) => h("div", { class: "at-flow at-tight at-dense" }, children);
// Two heads stand side by side where there is room: the words are then named once.
const abreast = (n, drawOne) => h("div", { class: "at-heads" },
  range(n).map((head) => drawOne(head, n === 2 && head ? "at-second" : "")));

// A product: left factor, right factor above, result where row and column meet.
const crossed = (corner, left, top, result, tight) =>
  h("div", { class: classes("at-cross", tight && "at-tight") },
    h("div", { class: "at-corner" }, corner), h("div", { class: "at-left" }, left),
    h("div", { class: "at-top" }, top), h("div", { class: "at-result" }, result));

const OPEN = { open: true };
const BARE = { open: true, names: "at-norows" }; // the rows are named on its left already

function overview(b, { n_heads: n, Q }) {
  const scale = () => arrow(`÷ √${Q[0].length / n}`, "softmax");
  if (n === 1) return [
    flow(b.raw(0, OPEN), scale(), b.weights(0, { ...BARE, sums: true })),
    denser(b.projection("V", { rowRole: "k" }), arrow("weights", "mix rows"), b.mixed(0, OPEN))];
  return [
    abreast(n, (head, names) =>
      densest(b.raw(head, { ...OPEN, names }), scale(), b.weights(head, BARE))),
    densest(arrow("weights", written(["· ", ["V", "v"]])),
      range(n).map((head) => b.mixed(head, head ? BARE : OPEN)),
      arrow("joined", written(["· ", ...W("O")])), b.output(BARE))];
}

// The picture of a step; `said` stands in the free corner of a product, else above.
function picture(key, context, said) {
  const { result } = context, n = result.n_heads, d = result.Q[0].length / n;
  const b = boards(context), heads = range(n);
  const product = (draw) => (n === 1 ? crossed(said, ...draw(0))
    : [said, h("div", { class: "at-heads" }, heads.map((head) =>
      crossed(h("p", { class: "at-headname" }, `head ${head + 1}`), ...draw(head), true)))]);
  const rows = (draw) => (n === 1 ? flow(...draw(0, ""))
    : abreast(n, (head, names) => densest(...draw(head, names))));
  const project = (letter) => crossed(said, b.X(), b.W(letter), b.projection(letter, BARE));
  return {
    overview: () => [said, overview(b, result)],
    X: () => [said, flow(b.X())],
    Q: () => project("Q"),
    K: () => project("K"),
    V: () => project("V"),
    raw_scores: () => product((head) => [b.Q(head), b.KT(head), b.raw(head, BARE)]),
    scaled_scores: () => [said,
      rows((head, names) => [b.raw(head, { names }), arrow(`÷ √${d}`), b.scaled(head, BARE)])],
    weights: () => [said, rows((head, names) => [
      b.scaled(head, { names }), arrow("softmax", n === 1 && "of each row"),
      b.weights(head, { ...BARE, sums: n === 1, foot: true })])],
    head_outputs: () => product((head) => [b.weights(head), b.V(head), b.mixed(head, BARE)]),
    output: () => crossed(said, b.concat(), b.W("O"), b.output(BARE)),
  }[key]();
}

// ------------------------------------------------------------------------- the state

const LIMIT = 100;
const NAMES = ["X", "W_Q", "W_K", "W_V", "W_O"];

export function cleanState(state, data) {
  const input = data.traces["1"];
  const step = Math.min(Math.max(Math.trunc(state.step) || 0, 0), STEPS.length - 1);
  const heads = data.heads.includes(state.heads) ? state.heads : data.heads[0];
  const isEdit = ([key, value]) => {
    const [name, i, j] = /^(X|W_[QKVO])\.(\d+)\.(\d+)$/.exec(key)?.slice(1) ?? [];
    const now = input[name]?.[i]?.[j];
    return now !== undefined && value !== now && typeof value === "number" &&
      Math.abs(value) <= LIMIT;
  };
  const edits = data.editable ? Object.entries(state.edits).filter(isEdit) : [];
  return { ...state, step, heads, edits: Object.fromEntries(edits) };
}

// What Python computed, where the reader has changed nothing; else computed here.
export function current(data, { heads, edits, reversed, causal }) {
  if (!reversed && !causal && !Object.keys(edits).length) return data.traces[String(heads)];
  return attend(applyEdits(data.traces["1"], edits), heads, { causal, reversed });
}

// The cell that is open: the reader's, if this step shows it, else the step's first.
export function pickOf(state, result) {
  const { key: now, first, opens } = STEPS[state.step];
  const matrix = (key, head) => (PER_HEAD.has(key) ? result[key][head] : result[key]);
  const [key, ...place] = String(state.pick).split(".");
  const [head, i, j] = place.map(Number);
  const absent = now === "overview" && result.n_heads === 1 && key === "output";
  if (opens.includes(key) && !absent && (head === 0 || PER_HEAD.has(key)) &&
    place.length === 3 && matrix(key, head)?.[i]?.[j] !== undefined) return state.pick;
  if (!first) return "";
  const m = matrix(opens[0], 0);
  const [row, column] = [Math.min(first[0], m.length - 1), Math.min(first[1], m[0].length - 1)];
  return `${opens[0]}.0.${row}.${column}`;
}

// ------------------------------------------------------------------------- the widget

const TITLE = "Attention, step by step";

function tablesOf(result) {
  const { words, n_heads: n } = result;
  const width = result.Q[0].length, part = width / n;
  const one = (name, rows = words, caption = name) => matrixTable({
    caption, name, rows, cols: numbered(result[name][0].length), values: result[name],
    rowName: "row", colName: "column" });
  const each = (name, caption, names) => result[name].map((values, head) => matrixTable({
    caption: n === 1 ? caption : `head ${head + 1}: ${caption}`, name: `${name}.${head}`,
    rows: words, values, ...names(head) }));
  const square = () => ({ cols: words, rowName: "query", colName: "key" });
  const band = (head) =>
    ({ cols: numbered(part, head * part), rowName: "row", colName: "column" });
  return [
    one("X"), ["W_Q", "W_K", "W_V"].map((name) => one(name, numbered(width))),
    one("Q"), one("K"), one("V"),
    each("raw_scores", "raw scores", square),
    each("scaled_scores", `scores divided by √${part}`, square),
    each("weights", "weights", square), each("head_outputs", "output", band),
    one("concat", words, "outputs side by side"), one("W_O", numbered(width)),
    one("output", words, "result"),
  ].flat();
}

// The panel under "Edit the numbers": one matrix at a time, in plain number boxes.
function editor(s, data) {
  const title = h("summary", {}, "");
  const said = h("p", { class: "at-said", role: "status" });
  const box = scrolling("Entries", { class: "dd-scroll" });
  let name = "X", fields = [];
  const before = (i, j) => data().traces["1"][name][i][j];
  const now = (i, j) => s.get().edits[`${name}.${i}.${j}`] ?? before(i, j);

  const show = () => {
    const { edits } = s.get(), n = Object.keys(edits).length;
    fields.forEach(({ field, i, j }) => {
      if (document.activeElement !== field) field.value = String(now(i, j));
      field.classList.toggle("at-edited", `${name}.${i}.${j}` in edits);
    });
    title.textContent = n ? `Edit the numbers (${n} changed)` : "Edit the numbers";
  };
  const change = (field, i, j, where) => {
    const asked = field.value.trim() === "" ? NaN : Number(field.value);
    const fits = Math.abs(asked) <= LIMIT;
    const fault = Number.isNaN(asked) ? "That is not a number" : `Only numbers from −${LIMIT} to ${LIMIT}`;
    said.textContent = fits ? "" : `${fault}: ${where} stays ${now(i, j)}.`;
    if (fits) {
      const { [`${name}.${i}.${j}`]: _, ...others } = s.get().edits;
      s.set({ edits: asked === before(i, j) ? others : { ...others, [`${name}.${i}.${j}`]: asked } });
    }
    field.value = String(now(i, j));
  };
  const entry = (i, j, where) => {
    const field = h("input", { type: "number", class: "dd-box", step: "0.1", "aria-label": where });
    field.addEventListener("change", () => change(field, i, j, where));
    // JupyterLab keeps Enter to itself, so "change" would wait until the field is left.
    field.addEventListener("keydown", (e) => e.key === "Enter" && change(field, i, j, where));
    fields.push({ field, i, j });
    return h("td", {}, field);
  };
  const draw = () => {
    const { words, [name]: m } = data().traces["1"];
    const rows = name === "X" ? words : numbered(m.length);
    const where = (i, j) => `${name}, ${name === "X" ? "" : "row "}${rows[i]}, column ${j + 1}`;
    fields = [];
    box.replaceChildren(h("table", { class: "at-edit" },
      h("thead", {}, h("tr", {}, h("td", {}),
        numbered(m[0].length).map((c) => h("th", { scope: "col" }, c)))),
      h("tbody", {}, m.map((row, i) => h("tr", {}, h("th", { scope: "row" }, rows[i]),
        row.map((_, j) => entry(i, j, where(i, j))))))));
    show();
  };
  const matrix = choice({
    label: "Matrix", kind: "select", options: NAMES, value: name,
    onChange: (value) => { name = value; said.textContent = ""; draw(); },
  });
  draw();
  const stop = s.subscribe(show);
  return { el: h("details", { class: "at-editor" }, title, matrix.el, box, said), draw, stop };
}

function notesOf({ result, ties, causal }, { step, reversed }) {
  const tied = ["overview", "raw_scores", "scaled_scores", "weights"].includes(STEPS[step].key);
  const notes = tied ? tieNotices(result, ties).map((text) => ["=", text]) : [];
  const order = causal
    ? "With the causal mask the order matters: each word sees only itself and the words before it."
    : "The same numbers, reordered: without positions, a word’s place changes nothing else.";
  if (reversed) notes.push(["↔", `Now read as “${result.words.join(" ")}”. ${order}`]);
  return h("ul", { class: "at-notes" }, notes.map(([sign, text]) =>
    h("li", {}, h("span", { class: "at-tie", "aria-hidden": true }, sign), text)));
}

// Arrow keys move within one matrix and open what they reach; Enter and click open too.
function opening(box, s) {
  const BY = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  box.addEventListener("click", (event) => {
    const cell = event.target.closest("button.at-cell");
    if (cell) s.set({ pick: cell.dataset.key });
  });
  box.addEventListener("keydown", (event) => {
    const cell = event.target.closest("button.at-cell"), by = BY[event.key];
    if (!cell || !by || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const [key, head, i, j] = cell.dataset.key.split(".");
    const id = [key, head, Number(i) + by[0], Number(j) + by[1]].join(".");
    const found = () => box.querySelector(`[data-key="${id}"]`);
    if (!found()) return;
    s.set({ pick: id });
    found().focus();
  });
}

function controlsOf(s, data, edit) {
  const named = (n) => ({ value: n, label: ["", "one", "two"][n] ?? String(n) });
  const reversed = [...data.traces["1"].words].reverse().join(" ");
  const steps = STEPS.map(({ title }, i) => ({ value: i, label: i ? `${i} ${title}` : title }));
  return {
    below: [
      data.heads.length > 1 &&
        choice({ label: "Heads", store: s, key: "heads", options: data.heads.map(named) }),
      edit].filter(Boolean),
    more: [
      toggle({ label: "Causal mask", hint: "no word sees a later one", store: s, key: "causal" }),
      toggle({ label: `Read “${reversed}”`, hint: "the same words in reverse order", store: s,
        key: "reversed" }),
      choice({ label: "Go to step", kind: "select", store: s, key: "step", options: steps })],
  };
}

function render({ model, el }) {
  let data = model.get("data");
  const first = { step: 0, heads: 1, pick: "", edits: {}, reversed: false, causal: false };
  const s = store(model, first, (state) => cleanState(state, data));
  const last = STEPS.length - 1;
  const go = (by) => {
    const step = s.get().step + by;
    if (step >= 0 && step <= last) s.set({ step, pick: "" });
  };
  const back = button("Back", () => go(-1)), next = button("Next", () => go(1));
  const title = h("p", { class: "at-step" }), box = h("div", { class: "at-box" });
  const figure = h("div", { class: "at-figure" }, box);
  const top = h("div", { class: "at-figure" }, h("div", { class: "at-stepper" }, back, title, next));

  const look = (state = s.get()) => {
    const result = current(data, state), pick = pickOf(state, result);
    const told = pick ? explain(result, pick, state.causal) : null;
    return { state, result, pick, told, uses: told?.uses ?? [], causal: state.causal,
      ties: exactTies(result, state.causal) };
  };
  const contents = (context) => {
    const { state, result, told } = context, { key, title: name } = STEPS[state.step];
    const said = h("div", { class: "at-words" },
      h("p", { class: "at-formula" }, written(formulaOf(key, result))),
      h("p", {}, sentenceOf(key, result, state.causal)));
    return [
      h("div", { class: told ? "at-calc" : "at-calc at-empty" }, told && [
        h("p", { class: "at-of" }, written(told.title)),
        h("p", { class: "at-sum-line" }, written(told.parts))]),
      scrolling(`Matrices: ${name}`, { class: "at-scene" },
        picture(key, context, said)),
      notesOf(context, state)];
  };
  // Every step gets the room of the tallest one, so that Next moves nothing below; on a
  // phone, where the matrices stand in one column, each keeps its own height.
  let kept = "";
  const reserve = () => {
    const { heads, causal, reversed } = s.get(), wide = Math.round(figure.clientWidth);
    const now = [wide, heads, causal, reversed].join();
    if (!wide || now === kept) return;
    kept = now;
    const trial = h("div", { class: "at-box", "aria-hidden": true });
    let most = 0;
    if (wide > 544) {
      figure.append(trial);
      STEPS.forEach((_, step) => {
        trial.replaceChildren(...contents(look({ ...s.get(), step, pick: "" })));
        most = Math.max(most, trial.offsetHeight);
      });
      trial.remove();
    }
    box.style.minHeight = most ? `${most}px` : "";
  };
  const draw = () => keepFocus(box, () => {
    const context = look(), { state } = context, { title: name } = STEPS[state.step];
    title.replaceChildren(
      h("span", { class: "at-count" }, TITLE, state.step ? `: ${state.step} of ${last}` : ""), name);
    back.setAttribute("aria-disabled", String(state.step === 0));
    next.setAttribute("aria-disabled", String(state.step === last));
    box.replaceChildren(...contents(context));
    reserve();
  });

  opening(box, s);
  const edit = data.editable ? editor(s, () => data) : null;
  const view = shell(el, {
    model, store: s, title: TITLE, top, figure, ...controlsOf(s, data, edit),
    paper: () => {
      const { result } = look();
      return tablesOf(result).filter((t) => t.querySelector('[data-table^="weights"]'));
    },
    summary: () => {
      const { state, told } = look(), { title: name } = STEPS[state.step];
      const where = state.step ? `Step ${state.step} of ${last}` : "Overview";
      const heads = state.heads === 1 ? "one head" : `${state.heads} heads`;
      const how = told ? ` ${plainText(told.title)}: ${plainText(told.parts)}.` : "";
      return `${where}: ${name}, ${heads}.${how}`;
    },
    table: () => tablesOf(look().result),
  });
  view.root.classList.add("at-widget");
  const redraw = (fresh) => { data = fresh; kept = ""; s.reread(); edit?.draw(); draw(); view.refresh(); };
  const stop = [s.subscribe(draw), onData(model, redraw), onResize(figure, reserve), edit?.stop];
  draw();
  return () => { stop.forEach((f) => f?.()); view.destroy(); };
}

export default { render };
