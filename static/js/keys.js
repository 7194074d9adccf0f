// Keys of every page: "/" search, "?" help, j/k/Enter on the rows of a list. Pages add their own
// with trainyard.key(name, handler). Keys never fire while somebody types.
(() => {
  "use strict";
  const handlers = new Map();
  const key = (name, handler) => handlers.set(name, handler);
  const typing = (node) => node.closest("input:not([type=checkbox]), textarea, select, [contenteditable]") !== null;

  function rows() {
    return [...document.querySelectorAll("table[data-keys] tbody tr[data-href]")];
  }

  function moveRow(by) {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((row) => row.classList.contains("current"));
    const next = all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
    all[at]?.classList.remove("current");
    next.classList.add("current");
    // The focus goes along, so that Enter and Tab go on from the row.
    [...next.querySelectorAll("a")].find((link) => link.getAttribute("href") === next.dataset.href)?.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }

  key("/", () => {
    const search = document.getElementById("global-search");
    search?.focus();
    search?.select();
  });
  key("?", () => document.getElementById("help")?.showModal());
  key("j", () => moveRow(1));
  key("k", () => moveRow(-1));
  key("x", () => document.querySelector("table[data-keys] tbody tr.current input[type=checkbox]")?.click());
  key("Enter", () => {
    const row = document.querySelector("table[data-keys] tbody tr.current");
    if (row) location.assign(row.dataset.href);
  });

  // A link or button of the page with data-shortcut is pressed by its key.
  const shortcut = (name) => {
    const element = document.querySelector(`[data-shortcut="${CSS.escape(name)}"]`);
    return element && (() => element.click());
  };

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && typing(event.target)) event.target.blur();
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (event.key === "Enter" && event.target !== document.body) return;
    const handler = handlers.get(event.key) || shortcut(event.key);
    if (!handler) return;
    event.preventDefault();
    handler(event);
  });
  window.trainyard = Object.assign(window.trainyard || {}, { key });
})();
