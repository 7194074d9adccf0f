// Audits the page that is open. Kept in a file of its own so that both functions share a page's evaluation.
({
  // Runs axe. Contrast would take most of its time and depends on styles alone, so it is checked once for each
  // path of tags, classes and states under the same style sheets, over all pages of the tab.
  async violations(runOnly, without) {
    const memory = `contrast ${document.documentElement.dataset.theme}`;
    const known = new Set(JSON.parse(sessionStorage.getItem(memory) || "[]"));
    const sheets = [...document.styleSheets].map((sheet) => sheet.href).join(" ");
    const states = ["aria-current", "aria-pressed", "aria-sort", "data-state", "type", "disabled", "open"];
    const names = new Map();
    const name = (node) => {
      if (!node || node === document.documentElement) return sheets;
      if (!names.has(node)) {
        const own = states.filter((state) => node.hasAttribute(state)).map((state) => `[${state}=${node.getAttribute(state)}]`);
        names.set(node, `${name(node.parentElement)} ${node.localName}.${[...node.classList].sort().join(".")}${own.join("")}`);
      }
      return names.get(node);
    };
    const speaks = (node) => node.matches("input, select, textarea") || [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    const include = [];
    for (const node of document.body.querySelectorAll("*")) {
      if (!speaks(node) || !node.checkVisibility() || known.has(name(node))) continue;
      known.add(name(node));
      include.push(node);
    }
    sessionStorage.setItem(memory, JSON.stringify([...known]));
    const colours = ["color-contrast", "link-in-text-block"];
    const resultTypes = ["violations"];
    const rules = Object.fromEntries([...colours, ...without].map((rule) => [rule, { enabled: false }]));
    const found = (await axe.run(document, { runOnly, rules, resultTypes })).violations;
    if (include.length) found.push(...(await axe.run({ include }, { runOnly: { type: "rule", values: colours }, resultTypes })).violations);
    return found.flatMap((violation) => violation.nodes.map((node) => `${violation.id}: ${node.html.slice(0, 160)} (${[...node.any, ...node.all, ...node.none].map((check) => check.message).join("; ")})`));
  },

  // Returns what makes the page scroll sideways, once the page and its charts have followed the window's size.
  async overflowing() {
    const page = document.scrollingElement;
    const frame = () => new Promise(requestAnimationFrame);
    await frame();
    for (let i = 0; i < 30 && (i < 1 || page.scrollWidth > page.clientWidth); i += 1) await frame();
    if (page.scrollWidth <= page.clientWidth) return [];
    const clipped = (node) => node !== document.body && (getComputedStyle(node).overflowX !== "visible" || clipped(node.parentElement));
    const wide = [...document.body.querySelectorAll("*")].filter((node) => node.getBoundingClientRect().right > page.clientWidth + 0.5 && !clipped(node.parentElement));
    return wide.slice(0, 5).map((node) => `${node.cloneNode().outerHTML} ends at ${Math.round(node.getBoundingClientRect().right)}`);
  },
})
