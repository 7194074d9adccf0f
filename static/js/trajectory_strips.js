// A strip under each step of a traced trajectory: its sampled tokens by colour, a link to the page of tokens.
(() => {
  "use strict";
  const list = document.getElementById("trajectory-steps");
  const by = new URLSearchParams(location.search).get("by") ?? "";
  const idle = window.requestIdleCallback || ((run) => setTimeout(run, 200));
  let strips = new Map();
  let label = "";

  const css = (code) => (code === "." ? "none" : code >= "a" ? `down${code.charCodeAt(0) - 96}` : code > "0" ? `up${code}` : "");

  function build(strip) {
    const link = document.createElement("a");
    link.className = "token-strip";
    link.href = `${list.dataset.tokens}?step=${strip.step}&by=${encodeURIComponent(by)}`;
    const text = `${strip.tokens} tokens by ${label}: ${strip.above} above, ${strip.below} below, ${strip.without} without a gradient`;
    link.title = text;
    link.setAttribute("aria-label", text);
    for (const [run] of strip.cells.matchAll(/(.)\1*/gs)) {
      const part = document.createElement("span");
      part.className = css(run[0]);
      part.style.flexGrow = run.length;
      link.append(part);
    }
    return link;
  }

  function show(steps) {
    for (const step of steps) {
      const strip = strips.get(step.id);
      if (strip && !step.classList.contains("stub") && !step.querySelector(":scope > .token-strip")) {
        step.querySelector(":scope > header")?.after(build(strip));
      }
    }
  }

  async function load() {
    try {
      const response = await fetch(`${list.dataset.strips}?by=${encodeURIComponent(by)}`, { credentials: "same-origin" });
      if (!response.ok || response.redirected) return; // the page of tokens has the reason
      const answer = await response.json();
      label = answer.label;
      strips = new Map(answer.steps.map((strip) => [`step-${strip.step}`, strip]));
      show(list.children);
    } catch {
      // The page is complete without strips.
    }
  }

  document.addEventListener("trainyard:loaded", (event) => show(event.detail));
  document.addEventListener("trainyard:live", () => show(list.children));
  addEventListener("load", () => idle(load, { timeout: 2000 }));
})();
