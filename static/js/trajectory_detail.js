// The trajectory's page: reading position, keys, texts that are loaded on demand.
(() => {
  "use strict";
  const list = document.getElementById("trajectory-steps");
  const strip = document.getElementById("trajectory-strip");
  const steps = () => [...list.children];
  let current = null;

  function mark(step) {
    if (!step || step === current) return;
    current?.classList.remove("current");
    current = step;
    current.classList.add("current");
    const index = step.id.replace("step-", "");
    for (const link of strip.querySelectorAll("a[aria-current]")) link.removeAttribute("aria-current");
    const link = strip.querySelector(`a[data-step="${CSS.escape(index)}"]`);
    if (!link) return;
    link.setAttribute("aria-current", "step");
    const box = strip.closest("nav");
    const [a, b] = [link.getBoundingClientRect(), box.getBoundingClientRect()];
    // Scroll the strip alone: scrollIntoView would move the page as well.
    if (a.top < b.top || a.bottom > b.bottom) box.scrollTop += a.top - b.top - b.height / 2;
    if (a.left < b.left || a.right > b.right) box.scrollLeft += a.left - b.left - b.width / 2;
  }

  // The step somebody jumped to stays the current one until they scroll themselves: steps that come into
  // view take their true height only then, which shifts what lies at the reading line.
  let pinned = null;

  function go(step) {
    if (!step) return;
    pinned = step;
    step.scrollIntoView({ block: "start" });
    requestAnimationFrame(() => { if (pinned === step) step.scrollIntoView({ block: "start" }); });
    mark(step);
    history.replaceState(null, "", `#${step.id}`);
  }
  addEventListener("keydown", (event) => { if (/^(Arrow|Page|Home|End| )/.test(event.key)) pinned = null; });
  for (const name of ["wheel", "touchmove", "pointerdown"]) addEventListener(name, () => { pinned = null; }, { passive: true });

  function reading() {
    const line = 120;
    let found = steps()[0];
    for (const step of steps()) {
      if (step.getBoundingClientRect().top > line) break;
      found = step;
    }
    return found;
  }

  let waiting = false;
  addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; mark(pinned || reading()); });
  }, { passive: true });

  function move(by) {
    const all = steps();
    const at = all.indexOf(current);
    go(all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + by))]);
  }

  function toggle(selector) {
    const all = [...list.querySelectorAll(selector)];
    const open = !all.some((details) => details.open);
    const keep = current;
    for (const details of all) details.open = open;
    if (keep) go(keep);
  }

  function sibling(by) {
    const links = [...document.querySelectorAll(".siblings a")];
    const at = links.findIndex((link) => link.hasAttribute("aria-current"));
    const next = links[at + by];
    if (next) location.assign(next.href);
  }

  const { key } = window.trainyard;
  key("j", () => move(1));
  key("k", () => move(-1));
  key("J", () => sibling(1));
  key("K", () => sibling(-1));
  key("t", () => toggle("details.thought"));
  key("o", () => toggle("details.observation"));
  key("x", () => { const raw = current?.querySelector("details.raw"); if (raw) raw.open = !raw.open; });
  key("d", () => { pinned = null; document.getElementById("patch")?.scrollIntoView({ block: "start" }); });

  async function load(pre, address) {
    try {
      const response = await fetch(address, { credentials: "same-origin" });
      if (!response.ok) throw new Error(String(response.status));
      pre.textContent = await response.text();
      return true;
    } catch {
      window.trainyard.announce("That could not be loaded; try again.");
      return false;
    }
  }

  document.addEventListener("toggle", async (event) => {
    const pre = event.target.querySelector?.("pre[data-load]");
    if (!pre || !event.target.open || pre.dataset.loaded) return;
    pre.dataset.loaded = "1";
    if (!(await load(pre, pre.dataset.load))) { delete pre.dataset.loaded; pre.textContent = "could not be loaded: fold and open again"; }
  }, true);
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-show-all]");
    if (!button) return;
    button.disabled = true;
    const text = button.closest("details").querySelector("pre, .prewrap");
    if (await load(text, button.dataset.showAll)) button.closest(".cut").remove();
    else button.disabled = false;
  });
  document.addEventListener("trainyard:live", () => { const now = current; current = null; mark(now); });
  const named = () => document.getElementById(location.hash.slice(1));
  addEventListener("hashchange", () => go(named()));
  if (named()?.classList.contains("step")) go(named());
  else mark(reading());
})();
