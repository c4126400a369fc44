// SPDX-License-Identifier: MIT
// Wakes saved widgets, without a kernel or a server.
(() => {
  const find = (x) => document.querySelectorAll(x);
  const all = (kind) => find(`script[type="application/vnd.jupyter.widget-${kind}+json"]`);
  const make = (x) => document.createElement(x);
  const later = (f) => (self.requestIdleCallback || setTimeout)(f, { timeout: 200 });
  const saved = {}, models = {}, modules = {}, styles = {}, jobs = new Map(), queue = [];
  let busy;

  const model = (id) => {
    const now = saved[id].state, ears = {};
    return {
      static: true,
      get: (key) => now[key],
      set(key, value) {
        now[key] = value;
        (ears[`change:${key}`] || []).forEach((f) => f());
      },
      on: (name, f) => (ears[name] ||= new Set()).add(f),
      off: (name, f) => ears[name]?.delete(f),
      save_changes() {},
    };
  };

  const view = async (id) => {
    const { model_name: kind, state: { _esm, _css, children } } = saved[id];
    const el = make("div");
    if (/^[HV]Box/.test(kind)) {
      el.className = `dd-${kind.toLowerCase().slice(0, 4)}`;
      for (const child of children) el.append(await view(child.slice(10)));
      return el;
    }
    if (!styles[_css]) {
      document.head.append(styles[_css] = make("style"));
      styles[_css].textContent = _css;
    }
    const type = "text/javascript";
    modules[_esm] ||= import(URL.createObjectURL(new Blob([_esm], { type })));
    await (await modules[_esm]).default.render({ model: (models[id] ||= model(id)), el });
    return el;
  };

  const next = async () => {
    const job = (busy = queue.shift());
    if (!job) return;
    try {
      const live = await view(job.id);
      job.place.replaceWith(live);
      if (asked(job)) live.scrollIntoView();
    } catch (e) {
      console.warn("The still figure stays:", e);
    }
    later(next);
  };

  const asked = (job) => job.name && `&${location.hash.slice(1)}`.includes(`&${job.name}=`);
  const near = new IntersectionObserver((seen) =>
    seen.forEach((s) => s.isIntersecting && go(s.target)), { rootMargin: "600px" });
  const go = (box) => {
    jobs.has(box) && queue.push(jobs.get(box));
    jobs.delete(box);
    near.unobserve(box);
    if (!busy) later((busy = next));
  };
  const wake = (which) => jobs.forEach((job, box) => which(job) && go(box));

  const start = () => {
    all("state").forEach((s) => Object.assign(saved, JSON.parse(s.textContent).state));
    find("figure[data-model]").forEach((box) => {
      const { model: id, widget: name } = box.dataset;
      jobs.set(box, { id, name, place: box.querySelector(".dd-frame") });
    });
    all("view").forEach((s) => {
      const place = make("div");
      s.after(place);
      jobs.set(place, { id: JSON.parse(s.textContent).model_id, place });
    });
    jobs.forEach((_, box) => near.observe(box));
    wake(asked);
    addEventListener("hashchange", () => wake(asked));
    addEventListener("keydown", (e) => e.key === "Tab" && wake(() => true));
  };
  addEventListener("DOMContentLoaded", start);
})();
