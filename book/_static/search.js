// SPDX-License-Identifier: MIT
// Search in all chapters, from http:// and from file://: the text of the book comes
// as a script (search-data.js), every word of the query must occur in a section.
(function () {
  "use strict";
  const MOST = 40;
  const AROUND = 90;
  const root = document.documentElement.dataset.content_root;
  const status = document.getElementById("dd-found");
  const list = document.getElementById("dd-results");

  // "Café" finds "cafe"; one character stays one character, so offsets hold.
  const fold = (text) =>
    Array.from(text, (c) => {
      const plain = c.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
      return plain.length === c.length ? plain : c;
    }).join("");
  // "heads" also finds "head", "masked" finds "mask": cut a common ending.
  const stem = (word) =>
    word.length > 4 ? word.replace(/(?:ies|es|s|ed|ing)$/u, "") : word;

  const score = (section, words) => {
    let total = 0;
    for (const word of words) {
      const inTitle = section.title.includes(word);
      const first = section.text.indexOf(word);
      if (!inTitle && first < 0) return 0;
      total += (inTitle ? 20 : 0) + section.text.split(word, 9).length - 1;
    }
    return total;
  };

  const excerpt = (section, words) => {
    const starts = words.map((word) => section.text.indexOf(word)).filter((i) => i >= 0);
    const at = starts.length ? Math.min(...starts) : 0;
    let from = Math.max(0, at - AROUND);
    if (from > 0) from = section.shown.indexOf(" ", from) + 1;
    let to = Math.min(section.shown.length, at + 2 * AROUND);
    if (to < section.shown.length) to = section.shown.lastIndexOf(" ", to);
    const box = document.createElement("p");
    if (from > 0) box.append("… ");
    let position = from;
    while (position < to) {
      let next = to;
      let length = 0;
      for (const word of words) {
        const i = section.text.indexOf(word, position);
        if (i >= 0 && i < next) { next = i; length = word.length; }
      }
      box.append(section.shown.slice(position, next));
      if (length) {
        const hit = document.createElement("mark");
        hit.textContent = section.shown.slice(next, next + length);
        box.append(hit);
      }
      position = next + length;
    }
    if (to < section.shown.length) box.append(" …");
    return box;
  };

  const run = (query) => {
    const words = [...new Set(fold(query).split(/\s+/u).filter(Boolean).map(stem))];
    list.replaceChildren();
    if (!words.length) { status.textContent = ""; return; }
    const hits = [];
    for (const page of window.deepdiveSearch || []) {
      for (const piece of page.s) {
        const section = { title: fold(piece.t), text: fold(piece.x), shown: piece.x };
        const points = score(section, words);
        if (points) hits.push({ page, piece, section, points });
      }
    }
    hits.sort((a, b) => b.points - a.points);
    for (const { page, piece, section } of hits.slice(0, MOST)) {
      const item = document.createElement("li");
      const link = document.createElement("a");
      link.href = root + page.u + (piece.a ? "#" + piece.a : "");
      link.textContent = piece.t;
      item.append(link);
      if (piece.a) {
        const where = document.createElement("span");
        where.textContent = page.t;
        item.append(" ", where);
      }
      item.append(excerpt(section, words));
      list.append(item);
    }
    const count = hits.length;
    status.textContent =
      count === 0 ? "No section has " + (words.length > 1 ? "all these words." : "this word.")
        : count === 1 ? "1 section found."
          : count > MOST ? count + " sections found, the best " + MOST + " shown."
            : count + " sections found.";
  };

  const query = new URLSearchParams(location.search).get("q") || "";
  for (const box of document.querySelectorAll('input[name="q"]')) box.value = query;
  run(query);
  const own = document.getElementById("dd-query");
  let waiting = 0;
  own.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => run(own.value), 250);
  });
})();
