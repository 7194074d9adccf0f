// The form of a new run: marks what differs from the recipe while people type; nothing else.
// The form may be replaced as a whole (another preset), so nothing of it is kept.
(() => {
  "use strict";
  const form = () => document.getElementById("run-form");
  if (!form()) return;
  const input = (setting) => setting.querySelector("input, select, textarea");

  function refresh() {
    let changed = 0;
    for (const setting of form().querySelectorAll(".setting")) {
      const differs = input(setting).value !== setting.dataset.base;
      setting.classList.toggle("changed", differs);
      setting.querySelector(".reset").hidden = !differs;
      changed += differs;
    }
    document.getElementById("num-changed").textContent = String(changed);
    for (const section of form().querySelectorAll(".setting-section")) {
      const count = section.querySelectorAll(".setting.changed").length;
      const chip = section.querySelector(".changed-count");
      chip.hidden = !count;
      chip.textContent = `${count} changed`;
    }
  }

  document.addEventListener("input", (event) => {
    if (event.target.closest("#run-form")) refresh();
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("#run-form .reset");
    if (!button) return;
    const setting = button.closest(".setting");
    input(setting).value = setting.dataset.base;
    refresh();
    input(setting).focus();
    input(setting).dispatchEvent(new Event("change", { bubbles: true }));
  });
  document.addEventListener("change", (event) => {
    if (event.target.id !== "only-changed") return;
    form().classList.toggle("only-changed", event.target.checked);
    if (event.target.checked) for (const section of form().querySelectorAll(".setting-section")) section.open = true;
  });
  document.addEventListener("htmx:afterSwap", refresh);
  refresh();
})();
