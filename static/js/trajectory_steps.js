// Steps that the page has as one line each are replaced by the whole steps: those near the reading position
// first, then the others while the browser is idle, so that find-in-page sees them all. Texts that were cut or
// left out are loaded on demand. What somebody reads never moves.
(() => {
  "use strict";
  const list = document.getElementById("trajectory-steps");
  const BACKGROUND_CHARS = 12_000_000; // of HTML that is loaded without being asked for
  let spent = 0;
  let running = null;
  const parse = (html) => {
    const template = document.createElement("template");
    template.innerHTML = html;
    return template.content;
  };
  const indexOf = (step) => Number(step.id.replace("step-", ""));

  function place(html) {
    const anchor = [...list.children].find((step) => step.getBoundingClientRect().bottom > 60);
    const top = anchor?.getBoundingClientRect().top;
    const id = anchor?.id;
    const fresh = [...parse(html).children];
    for (const step of fresh) {
      const stub = document.getElementById(step.id);
      if (stub?.classList.contains("stub")) {
        if (stub.classList.contains("current")) step.classList.add("current");
        stub.replaceWith(step);
        watcher.unobserve(stub);
      }
    }
    const now = id && document.getElementById(id);
    if (now && scrollY > 0) {
      const moved = now.getBoundingClientRect().top - top;
      if (Math.abs(moved) > 0.5) scrollBy({ top: moved, behavior: "instant" });
    }
    document.dispatchEvent(new CustomEvent("trainyard:loaded", { detail: fresh }));
    return fresh.length;
  }

  async function fetchFrom(index) {
    const response = await fetch(`${list.dataset.window}?from=${index}`, { credentials: "same-origin" });
    if (!response.ok) throw new Error(String(response.status));
    const html = await response.text();
    spent += html.length;
    return place(html);
  }

  // One request at a time: a later one would often ask for the same steps again.
  async function load(index) {
    while (running) await running.catch(() => {});
    const step = document.getElementById(`step-${index}`);
    if (!step?.classList.contains("stub")) return step;
    running = fetchFrom(index);
    try {
      if (!(await running)) throw new Error("no steps");
    } catch {
      window.trainyard.announce("Steps could not be loaded; scroll or click to try again.");
    } finally {
      running = null;
    }
    return document.getElementById(`step-${index}`);
  }

  const watcher = new IntersectionObserver((entries) => {
    const near = entries.filter((entry) => entry.isIntersecting).map((entry) => indexOf(entry.target));
    if (near.length) load(Math.min(...near));
  }, { rootMargin: "1200px" });
  const watch = () => { for (const stub of list.querySelectorAll(":scope > .stub")) watcher.observe(stub); };

  const idle = window.requestIdleCallback || ((run) => setTimeout(run, 200));
  function loadRest() {
    idle(async () => {
      const stub = list.querySelector(":scope > .stub");
      if (!stub || spent > BACKGROUND_CHARS) return;
      const before = spent;
      await load(indexOf(stub));
      if (spent > before) loadRest();
    }, { timeout: 2000 });
  }

  // Texts of a step that were cut, or left out: the whole part, as the page shows it.
  async function loadPart(part, address) {
    try {
      const response = await fetch(`${address}?html=1`, { credentials: "same-origin" });
      if (!response.ok) throw new Error(String(response.status));
      part.replaceChildren(parse(await response.text()));
      delete part.dataset.load;
      return true;
    } catch {
      window.trainyard.announce("The content could not be loaded; try again.");
      return false;
    }
  }

  // Load a step with all of one part, also where it was cut. Returns the part's element, or the step.
  async function whole(index, name) {
    const step = await load(index);
    const part = step?.querySelector(`[data-part="${CSS.escape(name)}"]`);
    if (!part) return step;
    const details = part.closest("details");
    const address = part.dataset.load || part.querySelector("[data-show-all]")?.href;
    if (address) await loadPart(part, address);
    if (details) details.open = true;
    return part;
  }

  document.addEventListener("toggle", (event) => {
    const part = event.target.querySelector?.("[data-load]");
    if (part && event.target.open) loadPart(part, part.dataset.load);
  }, true);
  document.addEventListener("click", async (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    const stub = event.target.closest(".stub > a");
    if (stub) {
      event.preventDefault();
      document.dispatchEvent(new CustomEvent("trainyard:go", { detail: stub.parentElement.id }));
      return;
    }
    const more = event.target.closest("[data-part] [data-show-all]");
    if (!more) return;
    event.preventDefault();
    more.setAttribute("aria-busy", "true");
    if (!(await loadPart(more.closest("[data-part]"), more.href))) more.removeAttribute("aria-busy");
  });
  document.addEventListener("trainyard:steps", watch);
  window.trainyard.steps = { load, whole };
  watch();
  addEventListener("load", loadRest);
})();
