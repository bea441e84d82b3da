// Fetches the page again and again and puts its new content in the old one's place: nothing flickers, and what is being
// typed, read or pointed at stays. Without this script the page reloads itself.
"use strict";

(function () {
  const REFRESH_MS = Number(document.body.dataset.refresh) * 1000;
  const PATIENCE_MS = 20000;
  const pause = document.getElementById("pause");
  const fresh = document.getElementById("fresh");
  const away = document.getElementById("away");
  let paused = false;
  let timer = 0;
  let changed = Date.now();

  function later() {
    clearTimeout(timer);
    if (!paused) {
      timer = setTimeout(look, REFRESH_MS);
    }
  }

  function put(content) {
    const old = document.getElementById("live");
    const region = old.querySelector(".scroll");
    const left = region ? region.scrollLeft : 0;
    const active = old.contains(document.activeElement) ? document.activeElement : null;
    const address = active ? active.getAttribute("href") : null;
    const scrolls = active !== null && active === region;
    old.replaceChildren.apply(old, Array.from(content.childNodes));
    const next = old.querySelector(".scroll");
    if (next) {
      next.scrollLeft = left;
    }
    if (scrolls && next) {
      next.focus({ preventScroll: true });
    } else if (address !== null) {
      const links = Array.from(old.querySelectorAll("a"));
      const same = links.find(function (link) { return link.getAttribute("href") === address; });
      if (same) {
        same.focus({ preventScroll: true });
      }
    }
  }

  async function look() {
    if (document.hidden || String(getSelection()) !== "") {
      later();
      return;
    }
    const cut = new AbortController();
    const patience = setTimeout(function () { cut.abort(); }, PATIENCE_MS);
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: cut.signal });
      const text = await answer.text();
      const found = new DOMParser().parseFromString(text, "text/html").getElementById("live");
      if (found === null) {
        throw new Error("HTTP status " + answer.status);
      }
      if (!paused) {
        put(found);
        changed = Date.now();
        away.hidden = true;
        tell();
      }
    } catch (error) {
      const since = utc(changed);
      away.textContent = "The daemon does not answer; what is shown is of " + since + ".";
      away.hidden = false;
    } finally {
      clearTimeout(patience);
      later();
    }
  }

  // As all other times of the page.
  function utc(ms) {
    return new Date(ms).toISOString().slice(11, 19) + " UTC";
  }

  function tell() {
    fresh.textContent = paused ? "paused" : "refreshed " + utc(changed);
  }

  pause.addEventListener("click", function () {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    tell();
    if (!paused) {
      look();
    }
  });
  document.addEventListener("visibilitychange", function () {
    if (!document.hidden && !paused) {
      look();
    }
  });
  pause.parentElement.hidden = false;
  tell();
  later();
})();
