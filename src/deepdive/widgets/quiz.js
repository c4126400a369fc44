// SPDX-License-Identifier: MIT
// Questions that explain every option; answers stay in the page, predictions come back.
import { h, rich, uid, store, shell, button } from "./common.js";

// A number as readers write it: "." or ",", either minus. null if it is none.
export function parseNumber(text) {
  const plain = String(text).trim().replaceAll("−", "-").replaceAll(",", ".").toLowerCase();
  return /^-?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?$/.test(plain) ? Number(plain) : null;
}

export function isRight(item, answer) {
  if (answer === null || answer === undefined) return false;
  if (item.kind !== "number") return Boolean(item.options[answer]?.correct);
  const value = parseNumber(answer);
  return value !== null && Math.abs(value - item.answer) <= (item.tolerance ?? 0) + 1e-9;
}

// [right, checked]; predictions aren't marked.
export function score(items, { answers, checked }) {
  const done = items.filter((item) => item.kind !== "predict" && checked[item.id]);
  return [done.filter((item) => isRight(item, answers[item.id])).length, done.length];
}

// Plain words with `code` and d_k.
function prose(text) {
  return text.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : rich(part)));
}

// Answers outlive the visit where the browser allows it (never with a kernel).
function memory(model) {
  const key = `deepdive:${model.get("name")}`;
  return {
    read() {
      try { return model.static ? JSON.parse(localStorage.getItem(key)) : null; } catch { return null; }
    },
    write(state) {
      try { if (model.static) localStorage.setItem(key, JSON.stringify(state)); } catch { /* kept for this visit */ }
    },
  };
}

function explain(item, answer) {
  const options = item.options.map((o, i) => ({ ...o, i })).sort((a, b) =>
    (b.i === answer) - (a.i === answer) || b.correct - a.correct);
  return h("ul", { class: "qz-whys" }, options.map((o) => h("li", {},
    h("span", { class: "qz-mark" }, o.correct ? "✓" : "✗"),
    h("span", {}, h("strong", {}, prose(o.text), o.i === answer && " (your answer)"), " ",
      h("span", { class: "qz-why" }, prose(o.why))))));
}

function verdict(item, answer) {
  const right = isRight(item, answer);
  if (item.kind === "number") {
    const kept = !right && item.hint; // a hint leaves something to try again for
    return [h("p", {}, h("strong", {}, right ? "✓ Right. " : "✗ Not yet. "),
      !right && !kept && `The answer is ${item.answer}. `, prose(kept || item.why))];
  }
  if (item.kind === "predict") {
    const said = item.options[answer];
    return [h("p", {}, said ? ["You predicted: ", h("strong", {}, prose(said.text))] : "You made no prediction."),
      explain(item, answer)];
  }
  return [h("p", {}, h("strong", {}, right ? "✓ Right." : "✗ Not yet.")), explain(item, answer)];
}

// One question: { el, show(state) }.
function question(item, number, s) {
  const result = h("div", { class: "qz-result", "aria-live": "polite" });
  const note = (text) => result.replaceChildren(h("p", {}, text));
  const patch = (key, value) => {
    const next = { ...s.get()[key] };
    if (value === undefined) delete next[item.id]; else next[item.id] = value;
    return next;
  };
  const answerNow = (value) => s.set({ answers: patch("answers", value) });
  const predict = item.kind === "predict";
  const group = uid("quiz");
  let inputs, field;
  if (item.kind === "number") {
    const box = h("input", { type: "text", inputmode: "decimal", class: "dd-box", autocomplete: "off",
      "aria-label": "Your answer, a number" });
    box.addEventListener("input", () => answerNow(box.value));
    box.addEventListener("keydown", (e) => e.key === "Enter" && act());
    inputs = [box];
    field = h("div", { class: "dd-row" }, box);
  } else {
    inputs = item.options.map((o, i) => {
      const radio = h("input", { type: "radio", name: group, value: String(i) });
      radio.addEventListener("change", () => radio.checked && answerNow(i));
      return radio;
    });
    field = h("div", { class: "qz-options" }, item.options.map((o, i) =>
      h("label", { class: "dd-option" }, inputs[i], h("span", {}, prose(o.text)))));
  }
  const act = () => {
    const { answers, checked } = s.get();
    const answer = answers[item.id];
    if (checked[item.id]) {
      s.set({ answers: predict ? answers : patch("answers"), checked: patch("checked") });
      inputs[0].focus();
    } else if (answer === undefined) {
      note(item.kind === "number" ? "Type a number first." : "Choose an answer first.");
    } else if (item.kind === "number" && parseNumber(answer) === null) {
      note("That is not a number; write it as 0.5 or 0,5.");
    } else {
      s.set({ checked: patch("checked", true) });
    }
  };
  const go = button("", act);
  const row = h("div", { class: "dd-buttons" }, go);
  const el = h("fieldset", { class: "qz-question", "data-id": item.id },
    h("legend", {}, h("span", { class: "dd-number" }, number && `${number}. `), h("span", {}, prose(item.prompt))),
    field, row, result);
  let shown = "";
  const show = ({ answers, checked }) => {
    const answer = answers[item.id];
    const open = Boolean(checked[item.id]);
    if (item.kind === "number") {
      if (inputs[0].value !== String(answer ?? "")) inputs[0].value = answer ?? "";
    } else inputs.forEach((radio, i) => { radio.checked = i === answer; });
    // A disabled field would drop the focus that Enter left in it.
    const lock = item.kind === "number" ? "readOnly" : "disabled";
    inputs.forEach((input) => { input[lock] = open; });
    go.textContent = predict ? (open ? "Close the answer" : "Open the answer") : open ? "Try again" : "Check";
    const key = open ? `open ${answer}` : `kept ${predict && answer !== undefined}`;
    if (key === shown && key !== "kept false") return;
    shown = key;
    if (open) result.replaceChildren(...verdict(item, answer));
    else if (predict && answer !== undefined) note("Your prediction is kept. Read on, then open the answer.");
    else result.replaceChildren();
  };
  return { el, row, show };
}

export default {
  render({ model, el }) {
    const { items, title } = model.get("data");
    const kept = memory(model);
    const s = store(model, { answers: {}, checked: {} }, (state) => state, { hash: false });
    const before = kept.read();
    if (before) s.set(before);
    const questions = items.map((item, i) => question(item, items.length > 1 && i + 1, s));
    const marked = items.some((item) => item.kind !== "predict");
    const ui = shell(el, {
      model, store: s, title, bar: questions.length === 1 ? questions[0].row : null,
      figure: h("div", { class: "qz-quiz" }, questions.map((q) => q.el)),
      summary: marked ? () => {
        const [right, done] = score(items, s.get());
        const all = items.filter((item) => item.kind !== "predict").length;
        return done ? `${right} of ${done} right, ${all - done} still to check.` : `${all} to check.`;
      } : null,
    });
    const show = (state) => questions.forEach((q) => q.show(state));
    show(s.get());
    s.subscribe((state) => { show(state); kept.write(state); });
    return ui.destroy;
  },
};
