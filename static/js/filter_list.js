// Fields with data-filter show only those items (data-items) of a container that contain every typed word, and only
// groups (data-groups) with such an item. Folded groups open while a word is typed.
(() => {
  "use strict";
  const fields = () => document.querySelectorAll("input[data-filter]");
  const textOf = (item) => `${item.textContent} ${item.querySelector("[name]")?.name ?? ""}`.toLowerCase();

  function filter(field) {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const container = document.querySelector(field.dataset.filter);
    for (const item of container.querySelectorAll(field.dataset.items)) {
      const text = words.length ? textOf(item) : "";
      item.classList.toggle("filtered-out", !words.every((word) => text.includes(word)));
    }
    for (const group of container.querySelectorAll(field.dataset.groups)) {
      const empty = !group.querySelector(`${field.dataset.items}:not(.filtered-out)`);
      group.classList.toggle("filtered-out", empty);
      if (words.length && !empty && group.matches("details")) group.open = true;
    }
  }

  const isFilter = (event) => event.target.matches("input[data-filter]");
  document.addEventListener("input", (event) => { if (isFilter(event)) filter(event.target); });
  // A filter is no setting of the form around it: it is neither checked nor sent.
  document.addEventListener("change", (event) => { if (isFilter(event)) event.stopPropagation(); }, true);
  document.addEventListener("keydown", (event) => { if (isFilter(event) && event.key === "Enter") event.preventDefault(); });
  const show = () => { for (const field of fields()) field.hidden = false; };
  document.addEventListener("htmx:afterSwap", show);
  show();
})();
