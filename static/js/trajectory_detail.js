// The trajectory's page: reading position and keys.
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

  async function go(wanted) {
    if (!wanted) return;
    const step = wanted.classList.contains("stub") ? await window.trainyard.steps.load(Number(wanted.id.replace("step-", ""))) : wanted;
    if (!step) return;
    pinned = step;
    step.scrollIntoView({ block: "start" });
    requestAnimationFrame(() => { if (pinned === step) step.scrollIntoView({ block: "start" }); });
    mark(step);
    history.replaceState(null, "", `#${step.id}`);
  }
  addEventListener("keydown", (event) => { if (/^(Arrow|Page|Home|End| )/.test(event.key)) pinned = null; });
  for (const name of ["wheel", "touchmove", "pointerdown"]) addEventListener(name, () => { pinned = null; }, { passive: true });

  // The last step that begins above the reading line.
  function reading() {
    const all = list.children;
    let [low, high] = [0, all.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (all[middle].getBoundingClientRect().top > 120) high = middle - 1;
      else low = middle;
    }
    return all[low];
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
    folded.set(selector, open);
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
  key("w", () => document.querySelector(".step-tools [data-action=wrap]")?.click());
  key("p", () => { pinned = null; document.getElementById("prompt")?.scrollIntoView({ block: "start" }); });
  key("d", () => { pinned = null; document.getElementById("patch")?.scrollIntoView({ block: "start" }); });

  // Steps that come later are folded as those that are there.
  const folded = new Map();
  document.addEventListener("trainyard:loaded", (event) => {
    for (const step of event.detail) {
      for (const [selector, open] of folded) for (const details of step.querySelectorAll(selector)) details.open = open;
    }
    if (pinned && !pinned.isConnected) pinned = document.getElementById(pinned.id);
    pinned?.scrollIntoView({ block: "start" });
    if (current && !current.isConnected) { current = null; mark(pinned || reading()); }
  });
  document.addEventListener("trainyard:unpin", () => { pinned = null; });
  document.addEventListener("trainyard:go", (event) => go(document.getElementById(event.detail)));
  document.addEventListener("trainyard:live", () => { const now = current; current = null; mark(now); });
  const named = () => document.getElementById(location.hash.slice(1));
  addEventListener("hashchange", () => { if (named()?.classList.contains("step")) go(named()); });
  if (named()?.classList.contains("step")) go(named());
  else mark(reading());
})();
