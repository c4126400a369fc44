// SPDX-License-Identifier: MIT
// What a page of the book can do beyond plain HTML: dark mode, copying code,
// keyboard access to boxes that scroll, and "you are here" in the contents.
(function () {
  "use strict";
  const root = document.documentElement;

  // --- Dark and light -----------------------------------------------------
  const toggle = document.getElementById("dd-theme");
  const show = (theme) => {
    root.dataset.theme = theme;
    toggle.setAttribute("aria-pressed", String(theme === "dark"));
  };
  show(root.dataset.theme);
  toggle.addEventListener("click", () => {
    const theme = root.dataset.theme === "dark" ? "light" : "dark";
    show(theme);
    try { localStorage.setItem("deepdive-theme", theme); } catch (_) { /* private mode */ }
  });

  // --- Names that tell boxes of one kind apart -----------------------------
  const short = (words) => {
    const line = words.trim().split("\n", 1)[0].replace(/\s+/g, " ");
    return line.length <= 60 ? line : line.slice(0, 59).trimEnd() + "…";
  };
  // The first line that is there, without what only a hover shows.
  const textOf = (node) => {
    const copy = node?.cloneNode(true);
    copy?.querySelectorAll("style, .headerlink, .katex-html, annotation").forEach((e) => e.remove());
    return copy?.textContent ?? "";
  };
  for (const summary of document.querySelectorAll("article details.hide > summary")) {
    const code = summary.parentElement.querySelector("pre");
    if (!code) continue;
    const lines = code.textContent.trim().split("\n");
    const first = lines.find((line) => line.trim() && !line.startsWith("#")) ?? lines[0];
    summary.setAttribute("aria-label", `${summary.textContent.trim()}: ${short(first)}`);
  }

  // --- Copy a code cell ---------------------------------------------------
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch (_) {
      // No clipboard from file:// in some browsers: select and use the old command.
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  };
  const status = document.createElement("p");
  status.className = "dd-unseen";
  status.setAttribute("role", "status");
  document.body.append(status);
  for (const block of document.querySelectorAll("article div.highlight")) {
    if (block.closest(".cell_output") && !block.closest(".text_markdown")) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "dd-copy";
    button.textContent = "Copy";
    const code = block.querySelector("pre").textContent.trimEnd();
    const first = code.trim().split("\n", 1)[0];
    button.setAttribute("aria-label", "Copy code: " + first);
    button.addEventListener("click", async () => {
      await copy(code);
      button.textContent = "Copied";
      status.textContent = "Code copied";
      setTimeout(() => { button.textContent = "Copy"; status.textContent = ""; }, 2000);
    });
    block.append(button);
  }

  // --- A browser shows a notebook from disk as text instead of saving it ---
  if (location.protocol === "file:") {
    for (const hint of document.querySelectorAll(".dd-from-disk")) hint.hidden = false;
  }

  // --- Boxes that scroll sideways can be reached and moved with the keyboard
  const kinds = [
    ["article .stream pre, article .text_plain pre", "Output"],
    ["article pre", "Code"],
    ["article .dd-scroll:has(table)", "Table"],
    ["article .dd-scroll", "Figure"],
    ["article div.math", "Formula"],
  ];
  // By its caption, its code, the formula's number, or the section it is in.
  const about = (box) => {
    const drawn = box.querySelector("svg[aria-label]")?.getAttribute("aria-label");
    const caption = box.querySelector("caption") ?? box.closest("figure")?.querySelector("figcaption");
    const heads = [...(box.querySelector("tr")?.cells ?? [])].map(textOf).filter((words) => words.trim());
    const said = textOf(caption) || drawn || heads.join(", ") ||
      textOf(box.matches("pre") ? box : box.querySelector(".eqno"));
    return short(said.trim() || textOf(box.closest("section")?.querySelector("h1, h2, h3, h4")));
  };
  const mark = (box) => {
    const scrolls = box.scrollWidth > box.clientWidth + 1;
    if (scrolls === box.hasAttribute("tabindex")) return;
    if (scrolls) {
      const [, name] = kinds.find(([selector]) => box.matches(selector));
      box.tabIndex = 0;
      box.setAttribute("role", "group");
      box.setAttribute("aria-label", `${name}: ${about(box)}, scrolls sideways`);
    } else {
      for (const attribute of ["tabindex", "role", "aria-label"]) box.removeAttribute(attribute);
    }
  };
  const watch = new ResizeObserver((seen) => seen.forEach((entry) => mark(entry.target)));
  for (const [selector] of kinds) {
    for (const box of document.querySelectorAll(selector)) watch.observe(box);
  }

  // --- Lay out, a few at a time, the cells that the style sheet has put off
  const cells = root.classList.contains("dd-lazy") ? [...document.querySelectorAll(".cell")] : [];
  const layOut = (deadline) => {
    while (cells.length) {
      const cell = cells.shift();
      cell.classList.add("dd-laid");
      cell.getBoundingClientRect();
      if (deadline.timeRemaining() < 8) break;
    }
    if (cells.length) requestIdleCallback(layOut);
    else root.classList.add("dd-ready");
  };
  if (cells.length) requestIdleCallback(layOut);
  else root.classList.add("dd-ready");

  // --- A link into a folded box opens it ----------------------------------
  const reveal = () => {
    let id = "";
    try { id = decodeURIComponent(location.hash.slice(1)); } catch (_) { return; }
    const target = id && document.getElementById(id);
    if (!target) return;
    let folded = target.closest("details:not([open])");
    if (!folded) return;
    while (folded) {
      folded.open = true;
      folded = folded.parentElement.closest("details:not([open])");
    }
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  reveal();

  // --- Contents: close after a choice, mark the section being read --------
  const side = document.getElementById("dd-nav");
  side.addEventListener("click", (event) => {
    const open = side.matches && side.hidePopover && side.matches(":popover-open");
    if (open && event.target.closest("a")) side.hidePopover();
  });
  const links = new Map();
  for (const link of side.querySelectorAll(".dd-sections a")) {
    const id = decodeURIComponent(link.hash.slice(1));
    const section = document.getElementById(id);
    if (section) links.set(section, link);
  }
  if (links.size && "IntersectionObserver" in window) {
    const seen = new Set();
    const watcher = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        seen[entry.isIntersecting ? "add" : "delete"](entry.target);
      }
      const current = [...links.keys()].find((section) => seen.has(section));
      if (!current) return;
      for (const [section, link] of links) {
        if (section === current) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    }, { rootMargin: "-15% 0px -60% 0px" });
    for (const section of links.keys()) watcher.observe(section);
  }
})();
