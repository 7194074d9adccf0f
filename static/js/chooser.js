// Inputs with a datalist on the form of a new run become searchable lists: every entry opens with the arrow keys or
// a click, typing narrows them by words, and what is typed stays possible. An input with data-adds appends what is
// chosen to a textarea, a line each. The datalist itself is what browsers without scripts use.
(() => {
  "use strict";
  const MOST = 100;
  const box = document.createElement("div");
  const list = box.appendChild(document.createElement("ul"));
  const note = box.appendChild(document.createElement("p"));
  box.className = "chooser";
  list.id = "chooser-list";
  list.setAttribute("role", "listbox");
  let input = null; // whose entries are open
  let active = -1;

  function enhance() {
    for (const field of document.querySelectorAll("#run-form input[list]")) {
      field.dataset.list = field.getAttribute("list");
      field.removeAttribute("list");
      for (const [name, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", autocomplete: "off" }))
        field.setAttribute(name, value);
      explain(field);
    }
  }

  // The origin of a known value stays in sight after it was chosen.
  function explain(field) {
    const help = field.closest(".setting")?.querySelector(".help");
    if (!help || field.dataset.adds) return;
    const known = [...document.getElementById(field.dataset.list).options].find(({ value }) => value === field.value);
    let about = help.querySelector(".chosen");
    about ??= help.insertBefore(Object.assign(document.createElement("span"), { className: "chosen" }), help.firstChild);
    about.textContent = known && known.label !== known.value ? `${known.label}. ` : "";
  }

  function close() {
    input?.setAttribute("aria-expanded", "false");
    input?.removeAttribute("aria-activedescendant");
    input?.removeAttribute("aria-controls");
    input = null;
    box.remove();
  }

  function entry({ value, label, name }, at) {
    const item = document.createElement("li");
    const code = document.createElement("code");
    code.textContent = value;
    item.dataset.value = value;
    item.id = `chooser-${at}`;
    item.setAttribute("role", "option");
    item.setAttribute("aria-selected", String(value === input.value));
    if (name) item.append(Object.assign(document.createElement("span"), { className: "name", textContent: name }));
    item.append(code);
    const about = label === value ? "" : label.slice(name.length).replace(/^ · /, "");
    if (about) item.append(Object.assign(document.createElement("span"), { className: "muted small", textContent: about }));
    return item;
  }

  function show(words) {
    const all = [...document.getElementById(input.dataset.list).options].map(({ value, label, dataset }) => ({ value, label, name: dataset.name || "" }));
    const found = all.filter(({ value, label }) => words.every((word) => `${value} ${label}`.toLowerCase().includes(word)));
    list.replaceChildren(...found.slice(0, MOST).map(entry));
    note.textContent = found.length > MOST ? `showing ${MOST} of ${found.length}; type to narrow` : `${found.length} of ${all.length} known`;
    if (!found.length) note.textContent = `no match among ${all.length} known`;
    const chosen = [...list.children].findIndex((item) => item.dataset.value === input.value);
    mark(words.length ? -1 : chosen);
  }

  function open(field, words = []) {
    const opening = input !== field;
    if (opening) {
      close();
      input = field;
      list.setAttribute("aria-label", field.labels[0]?.textContent || field.getAttribute("aria-label"));
      field.after(box);
      field.setAttribute("aria-expanded", "true");
      field.setAttribute("aria-controls", list.id);
    }
    box.style.top = `${field.offsetTop + field.offsetHeight + 2}px`;
    show(words);
    if (opening) box.scrollIntoView({ block: "nearest" });
  }

  function mark(at) {
    list.children[active]?.classList.remove("active");
    active = at;
    const item = list.children[at];
    item?.classList.add("active");
    if (!item) { input.removeAttribute("aria-activedescendant"); return; }
    input.setAttribute("aria-activedescendant", item.id);
    item.scrollIntoView({ block: "nearest" });
  }

  function choose(value) {
    const target = input.dataset.adds ? document.getElementById(input.dataset.adds) : input;
    const lines = target.value.split("\n").map((line) => line.trim()).filter(Boolean);
    if (target !== input) input.value = "";
    target.value = target === input ? value : [...lines.filter((line) => line !== value), value].join("\n");
    close();
    for (const kind of ["input", "change"]) target.dispatchEvent(new Event(kind, { bubbles: true }));
  }

  const field = (event) => event.target.closest?.("#run-form input[data-list]");
  document.addEventListener("click", (event) => {
    if (field(event)) open(field(event));
  });
  document.addEventListener("input", (event) => {
    // Choosing enters a value too, but only what is typed narrows the list.
    if (field(event) && event.isTrusted) open(field(event), event.target.value.toLowerCase().split(/\s+/).filter(Boolean));
  });
  document.addEventListener("keydown", (event) => {
    const on = field(event);
    if (!on) return;
    const isOpen = input === on;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && !isOpen) open(on);
    else if (step) mark(Math.min(list.children.length - 1, Math.max(0, active + step)));
    else if (event.key === "Escape" && isOpen) { close(); event.stopImmediatePropagation(); }
    else if (event.key === "Enter" && isOpen && active >= 0) choose(list.children[active].dataset.value);
    else if (event.key === "Enter" && (isOpen || on.dataset.adds)) close();
    else return;
    event.preventDefault();
  }, true);
  document.addEventListener("change", (event) => { if (field(event)) explain(event.target); });
  list.addEventListener("pointerdown", (event) => event.preventDefault()); // the field keeps the focus
  list.addEventListener("click", (event) => {
    const item = event.target.closest("li");
    if (item) choose(item.dataset.value);
  });
  document.addEventListener("focusout", (event) => {
    if (event.target === input) close();
  });
  document.addEventListener("htmx:afterSwap", () => { if (input && !input.isConnected) close(); enhance(); });
  enhance();
})();
