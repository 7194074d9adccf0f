// Tokens of a trajectory: one of them is selected by pointer or keyboard, and the server explains it beside the text.
(() => {
  "use strict";
  const text = document.getElementById("tokens");
  const panel = document.getElementById("token");
  if (!text) return;
  const tokens = [...text.querySelectorAll(".token-text a")];
  let asked = 0;

  // One stop of the Tab key for all tokens; the arrow keys move among them.
  function stop(token) {
    for (const other of tokens) other.tabIndex = other === token ? 0 : -1;
  }

  async function select(token) {
    asked += 1;
    const mine = asked;
    text.querySelector("[aria-current]")?.removeAttribute("aria-current");
    token.setAttribute("aria-current", "true");
    stop(token);
    try {
      const response = await fetch(`${text.dataset.url}${token.id.slice(1)}/`, { credentials: "same-origin" });
      if (!response.ok || response.redirected) throw new Error(String(response.status));
      const html = await response.text();
      if (mine !== asked) return; // an older answer came late
      panel.innerHTML = html;
      history.replaceState(null, "", token.href);
    } catch {
      window.trainyard.announce("The token could not be loaded; try again.");
    }
  }

  text.addEventListener("click", (event) => {
    const token = event.target.closest(".token-text a");
    if (!token || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    select(token);
  });
  text.addEventListener("keydown", (event) => {
    const at = tokens.indexOf(event.target);
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -tokens.length, End: tokens.length }[event.key];
    if (at < 0 || by === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const next = tokens[Math.max(0, Math.min(tokens.length - 1, at + by))];
    select(next);
    next.focus();
  });

  const chosen = document.getElementById(`t${new URLSearchParams(location.search).get("token")}`);
  if (tokens.length) stop(chosen ?? tokens[0]);
  if (chosen) {
    chosen.setAttribute("aria-current", "true");
    chosen.scrollIntoView({ block: "center" });
  }
})();
