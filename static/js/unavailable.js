// The page that stands in for another one while the database is down: it comes back as soon as it can.
(() => {
  "use strict";
  async function look() {
    try {
      const answer = await fetch(document.body.dataset.health, { cache: "no-store" });
      if (answer.ok) {
        document.getElementById("unavailable-state").textContent = "The database is back: reloading.";
        location.replace(location.href);
        return;
      }
    } catch {
      // The web server is away as well: ask again.
    }
    setTimeout(look, 2000);
  }
  setTimeout(look, 2000);
})();
