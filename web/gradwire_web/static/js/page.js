// Keeps a page fresh while somebody looks at it, and sends its forms without leaving it.
// Everything here is an addition: without this script the page is complete and its forms work.

const MIN_REFRESH_MS = 1000;
// Ages and silence must show even when no news comes.
const IDLE_REFRESH_MS = 10_000;
const TIMEOUT_MS = 8000;
const RECONNECT_MS = 5000;
// A form that was touched this lately is not replaced under its user's hands.
const TOUCHED_MS = 60_000;

const live = document.getElementById("live");
const liveness = document.getElementById("liveness");
const dialog = document.getElementById("dialog");
const PART = { "X-Gradwire-Part": "1" };

let stream = null;
let isStreaming = false;
let timer = 0;
let fetching = false;
let isWanted = false;
let fetchedAt = 0;
let lostSince = null;
const touched = new Map();

// Freshness ------------------------------------------------------------------------------------------------------

function connect() {
  if (stream || document.hidden) {
    return;
  }
  stream = new EventSource(live.dataset.stream);
  stream.addEventListener("open", () => {
    isStreaming = true;
    want();
  });
  stream.addEventListener("changed", want);
  stream.addEventListener("event", want);
  stream.addEventListener("error", () => {
    isStreaming = false;
    tell();
    if (stream && stream.readyState === EventSource.CLOSED) {
      // Refused for good: the page is fetched now and then instead, and the stream is tried again.
      disconnect();
      window.setTimeout(connect, RECONNECT_MS);
    }
  });
}

function disconnect() {
  if (stream) {
    stream.close();
  }
  stream = null;
  isStreaming = false;
}

function want() {
  isWanted = true;
  schedule();
}

function schedule() {
  window.clearTimeout(timer);
  if (document.hidden) {
    return;
  }
  const wait = isWanted ? MIN_REFRESH_MS : isStreaming ? IDLE_REFRESH_MS : RECONNECT_MS;
  timer = window.setTimeout(refresh, Math.max(0, fetchedAt + wait - Date.now()));
}

async function refresh() {
  if (fetching) {
    return;
  }
  fetching = true;
  isWanted = false;
  fetchedAt = Date.now();
  try {
    const answer = await fetch(live.dataset.part + window.location.search, {
      headers: PART,
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    if (answer.status === 401) {
      window.location.reload();
      return;
    }
    if (!answer.ok) {
      throw new Error(`status ${answer.status}`);
    }
    update(await answer.text());
    lostSince = null;
  } catch {
    lostSince ??= new Date();
  } finally {
    fetching = false;
    tell();
    schedule();
  }
}

function tell() {
  if (lostSince) {
    const time = lostSince.toLocaleTimeString(document.documentElement.lang, { hour12: false });
    liveness.dataset.state = "lost";
    liveness.textContent = liveness.dataset.lost.replace("{time}", time);
  } else if (isStreaming) {
    liveness.dataset.state = "live";
    liveness.textContent = liveness.dataset.live;
  } else {
    liveness.dataset.state = "polled";
    liveness.textContent = liveness.dataset.polled.replace("{time}", new Date(fetchedAt).toLocaleTimeString(
      document.documentElement.lang, { hour12: false }));
  }
}

function update(html) {
  const fresh = new DOMParser().parseFromString(html, "text/html");
  for (const part of fresh.querySelectorAll("[data-live]")) {
    const shown = document.getElementById(part.id);
    if (shown && !isInUse(shown)) {
      morph(shown, document.importNode(part, true));
    }
  }
  document.dispatchEvent(new CustomEvent("gradwire:fresh"));
}

function isInUse(part) {
  const at = touched.get(part.id);
  return at !== undefined && Date.now() - at < TOUCHED_MS;
}

// Makes `old` like `fresh` and keeps what is already equal, so that focus, open details and announcements live on.
function morph(old, fresh) {
  if (old.nodeName !== fresh.nodeName || old.id !== fresh.id) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) {
      old.data = fresh.data;
    }
    return;
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) {
      old.setAttribute(name, value);
    }
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open" && name !== "aria-busy") {
      old.removeAttribute(name);
    }
  }
  const nodes = [...fresh.childNodes];
  while (old.childNodes.length > nodes.length) {
    old.lastChild.remove();
  }
  nodes.forEach((node, index) => {
    if (index < old.childNodes.length) {
      morph(old.childNodes[index], node);
    } else {
      old.append(node);
    }
  });
}

// Forms ----------------------------------------------------------------------------------------------------------

async function send(form) {
  const answer = await fetch(form.action, {
    method: "POST",
    headers: PART,
    body: new URLSearchParams(new FormData(form)),
    signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  return answer.status === 204 ? null : answer.text();
}

async function submit(form, button) {
  button?.setAttribute("aria-busy", "true");
  try {
    const html = await send(form);
    const part = form.closest("[data-live]");
    if (html !== null) {
      show(html);
    } else {
      touched.delete(part?.id);
      close();
      fetchedAt = 0;
      want();
    }
  } catch {
    show(document.getElementById("unreachable").innerHTML);
  } finally {
    button?.removeAttribute("aria-busy");
  }
}

// The server's own templates, escaped there, with nothing in them that runs.
function show(html) {
  dialog.querySelector(".dialog-body").innerHTML = html;
  if (!dialog.open) {
    dialog.showModal();
  }
}

function close() {
  if (dialog?.open) {
    dialog.close();
  }
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (dialog && form.matches("[data-quiet], [data-dialog]")) {
    event.preventDefault();
    submit(form, event.submitter);
  }
});

document.addEventListener("click", (event) => {
  if (event.target.closest("dialog [data-close]")) {
    event.preventDefault();
    close();
  }
});

document.addEventListener("input", (event) => {
  const part = event.target.closest("[data-live]");
  if (part) {
    touched.set(part.id, Date.now());
  }
});

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    disconnect();
    window.clearTimeout(timer);
  } else {
    fetchedAt = 0;
    connect();
    want();
  }
});

window.addEventListener("pagehide", disconnect);
window.addEventListener("pageshow", (event) => event.persisted && (connect(), want()));

fetchedAt = Date.now();
connect();
schedule();
