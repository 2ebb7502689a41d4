// Runs before the page is drawn: a chosen theme must not flash in after the system's.
(function () {
  "use strict";
  const KEY = "gradwire-theme";
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");

  function stored() {
    try {
      return window.localStorage.getItem(KEY);
    } catch {
      // Storage can be forbidden; then the system decides.
      return null;
    }
  }

  function apply(theme) {
    if (theme === "light" || theme === "dark") {
      root.dataset.theme = theme;
    }
    document.dispatchEvent(new CustomEvent("gradwire:theme"));
  }

  function current() {
    return root.dataset.theme || (system.matches ? "dark" : "light");
  }

  apply(stored());
  system.addEventListener("change", () => document.dispatchEvent(new CustomEvent("gradwire:theme")));

  // The server writes times in the reader's zone from the next request on. Names of zones need no escaping.
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  if (root.dataset.zone !== zone) {
    document.cookie = `gradwire_zone=${zone}; path=/; max-age=31536000; samesite=lax`;
  }

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    button.hidden = false;
    button.addEventListener("click", () => {
      const theme = current() === "dark" ? "light" : "dark";
      try {
        window.localStorage.setItem(KEY, theme);
      } catch {
        // The choice then lasts as long as the page.
      }
      apply(theme);
    });
  });
})();
