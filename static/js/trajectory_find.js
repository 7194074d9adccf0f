// Search within a trajectory: the server finds the text in every part of every step; a match is loaded, opened,
// scrolled to and, where the browser can, highlighted without a change to the page.
(() => {
  "use strict";
  const form = document.getElementById("find-form");
  const field = document.getElementById("find");
  const found = document.getElementById("found");
  const { key, steps } = window.trainyard;
  let at = -1;
  let asked = 0;
  const hits = () => [...found.querySelectorAll("[data-hit]")];
  const canMark = "highlights" in CSS;

  function showButtons() {
    for (const button of form.querySelectorAll("[data-find-move]")) button.hidden = hits().length === 0;
  }

  async function search() {
    const text = field.value.trim();
    asked += 1;
    const mine = asked;
    const address = new URL(location.href);
    address.hash = "";
    address.searchParams.delete("from");
    if (text) address.searchParams.set("find", text);
    else address.searchParams.delete("find");
    if (!text) {
      found.replaceChildren();
    } else {
      found.setAttribute("aria-busy", "true");
      try {
        const response = await fetch(`${found.dataset.url}?find=${encodeURIComponent(text)}`, { credentials: "same-origin" });
        if (!response.ok) throw new Error(String(response.status));
        const html = await response.text();
        if (mine !== asked) return; // an older answer came late
        found.innerHTML = html;
      } catch {
        window.trainyard.announce("The search failed; try again.");
        return;
      } finally {
        found.removeAttribute("aria-busy");
      }
    }
    history.replaceState(null, "", address);
    at = -1;
    showButtons();
    if (canMark) CSS.highlights.delete("found");
    if (text) move(1);
  }

  function move(by) {
    const all = hits();
    if (!all.length) return;
    at = (at + by + all.length) % all.length;
    show(all[at]);
  }

  async function show(hit) {
    for (const other of found.querySelectorAll("[aria-current]")) other.removeAttribute("aria-current");
    hit.setAttribute("aria-current", "true");
    // The list scrolls, not the page.
    const box = hit.closest("ol");
    box.scrollTop += hit.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight / 2;
    const part = await steps.whole(Number(hit.dataset.hit), hit.dataset.hitPart);
    if (!part) return;
    document.dispatchEvent(new CustomEvent("trainyard:go", { detail: part.closest(".step").id }));
    document.dispatchEvent(new CustomEvent("trainyard:unpin"));
    const range = rangeOf(part, field.value.trim(), Number(hit.dataset.hitNumber));
    if (!range) return;
    if (canMark) CSS.highlights.set("found", new Highlight(range));
    requestAnimationFrame(() => {
      const place = range.getBoundingClientRect();
      const covered = document.querySelector(".step-tools").getBoundingClientRect().bottom;
      if (place.top < covered + 8 || place.bottom > innerHeight - 40) scrollBy({ top: place.top - (covered + innerHeight) / 2, behavior: "instant" });
    });
  }

  // The n-th place of a text below an element; the last one where marks hide some.
  function rangeOf(root, text, number) {
    const nodes = [];
    let whole = "";
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      nodes.push([whole.length, node]);
      whole += node.data;
    }
    const [hay, needle] = [whole.toLowerCase(), text.toLowerCase()];
    if (hay.length !== whole.length) return null;
    let place = -1;
    for (let n = 0; n <= number; n += 1) {
      const next = hay.indexOf(needle, place + 1);
      if (next < 0) break;
      place = next;
    }
    if (place < 0) return null;
    const point = (offset) => {
      const [start, node] = nodes.findLast(([from]) => from <= offset);
      return [node, offset - start];
    };
    const range = document.createRange();
    range.setStart(...point(place));
    range.setEnd(...point(place + needle.length));
    return range;
  }

  form.addEventListener("submit", (event) => { event.preventDefault(); search(); });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !hits().length || field.value.trim() !== new URLSearchParams(location.search).get("find")) return;
    event.preventDefault();
    move(event.shiftKey ? -1 : 1);
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-find-move]");
    if (button) { move(Number(button.dataset.findMove)); return; }
    const hit = event.target.closest("[data-hit]");
    if (!hit || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    at = hits().indexOf(hit);
    show(hit);
  });
  key("s", () => { field.focus(); field.select(); });
  key("n", () => move(1));
  key("N", () => move(-1));
  showButtons();
})();
