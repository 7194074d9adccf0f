// The form of a new run: marks what differs from the recipe while people type; nothing else.
(() => {
  "use strict";
  const form = document.getElementById("run-form");
  if (!form) return;
  const settings = [...form.querySelectorAll(".setting")];
  const input = (setting) => setting.querySelector("input, select, textarea");

  function refresh() {
    let changed = 0;
    for (const setting of settings) {
      const differs = input(setting).value !== setting.dataset.base;
      setting.classList.toggle("changed", differs);
      setting.querySelector(".reset").hidden = !differs;
      changed += differs;
    }
    document.getElementById("num-changed").textContent = String(changed);
    for (const section of form.querySelectorAll(".setting-section")) {
      const count = section.querySelectorAll(".setting.changed").length;
      const chip = section.querySelector(".changed-count");
      chip.hidden = !count;
      chip.textContent = `${count} changed`;
    }
  }

  form.addEventListener("input", refresh);
  form.addEventListener("click", (event) => {
    const button = event.target.closest(".reset");
    if (!button) return;
    const setting = button.closest(".setting");
    input(setting).value = setting.dataset.base;
    refresh();
    input(setting).focus();
  });
  document.getElementById("only-changed").addEventListener("change", (event) => {
    form.classList.toggle("only-changed", event.target.checked);
    if (event.target.checked) for (const section of form.querySelectorAll(".setting-section")) section.open = true;
  });
  refresh();
})();
