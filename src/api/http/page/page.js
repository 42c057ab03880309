// Live parts of the page: local times, the overview, and the stream of events. Everything else works without this file.
"use strict";

const ROWS_MAX = 500;
const RETRY_MS = 3000;

function localTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (!isNaN(at)) {
      time.title = time.dateTime;
      time.textContent = at.toLocaleString(undefined, { dateStyle: "short", timeStyle: "medium" });
    }
  }
}

// Reloads a view that changes, unless it is hidden or in use.
function refresh(part) {
  const seconds = Number(part.dataset.refresh);
  setInterval(async () => {
    const current = document.querySelector("[data-refresh]");
    if (document.hidden || !current || current.contains(document.activeElement)) return;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      if (answer.status === 401) location.reload();
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.querySelector("[data-refresh]");
      if (!fresh) return;
      localTimes(fresh);
      current.replaceWith(fresh);
    } catch (error) {
      console.warn("cannot refresh the view", error);
    }
  }, seconds * 1000);
}

function row(event) {
  const row = document.createElement("tr");
  const cell = (kind, label, text, href) => {
    const cell = document.createElement(kind);
    if (label) cell.dataset.label = label; else cell.scope = "row";
    let inner = cell;
    if (href) {
      inner = document.createElement("a");
      inner.href = href;
      cell.append(inner);
    }
    inner.append(text);
    row.append(cell);
  };
  const time = document.createElement("time");
  time.dateTime = event.time;
  time.textContent = event.time;
  cell("th", "", time, "/events/" + event.seq);
  cell("td", "Tag", event.tag);
  const minion = event.minion || "";
  cell("td", "Minion", minion, minion && "/minions/" + encodeURIComponent(minion));
  cell("td", "Function", event.fun || "");
  // The page has the column if it lists events of several masters.
  if (document.getElementById("masters")) cell("td", "Master", event.master || "");
  row.className = "new";
  localTimes(row);
  return row;
}

// Adds new events at the top. While paused, events wait, up to the number of rows that are kept. The stream has a limited rate, and
// sends the number of events above it.
function live(control) {
  const table = document.getElementById("events");
  const button = control.querySelector("button");
  const state = control.querySelector("[role=status]");
  let waiting = [];
  let paused = false;
  let scheduled = false;
  let skipped = 0;
  const report = () => {
    const more = skipped ? `; ${skipped.toLocaleString()} more not shown` : "";
    state.textContent = (paused ? `paused, ${waiting.length} new` : "live") + more;
  };
  const show = () => {
    scheduled = false;
    if (paused) return;
    for (const event of waiting) table.prepend(row(event));
    waiting = [];
    while (table.rows.length > ROWS_MAX) table.deleteRow(-1);
  };
  const receive = (message) => {
    waiting.push(JSON.parse(message.data));
    if (waiting.length > ROWS_MAX) waiting.shift();
    if (paused) report();
    if (!paused && !scheduled) {
      scheduled = true;
      setTimeout(show, 250);
    }
  };
  let last = null;
  // A stream that is rejected, not only broken, is closed by the browser: the session may have ended, or the daemon be too busy.
  const connect = () => {
    const url = new URL(control.dataset.stream, location.href);
    if (last) url.searchParams.set("after", last);
    const stream = new EventSource(url);
    stream.onopen = report;
    stream.onmessage = (message) => {
      last = message.lastEventId;
      receive(message);
    };
    stream.addEventListener("skipped", (message) => {
      last = message.lastEventId;
      skipped += JSON.parse(message.data).count;
      report();
    });
    stream.onerror = async () => {
      state.textContent = "reconnecting";
      if (stream.readyState !== EventSource.CLOSED) return;
      try {
        const answer = await fetch(location.href, { method: "HEAD", headers: { accept: "text/html" } });
        if (answer.status === 401) {
          state.textContent = "signed out: your session has ended; reload the view to sign in";
          return;
        }
      } catch {
        // The daemon is unreachable; the next attempt follows.
      }
      setTimeout(connect, RETRY_MS);
    };
  };
  connect();
  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? "Continue" : "Pause";
    button.setAttribute("aria-pressed", String(paused));
    show();
    report();
  });
  control.hidden = false;
}

// `/` focuses the search.
function shortcut(event) {
  if (event.key !== "/" || event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.target.closest("input, select, textarea")) return;
  const field = document.querySelector("form[role=search] input");
  if (!field) return;
  event.preventDefault();
  field.focus();
}

localTimes(document);
document.addEventListener("keydown", shortcut);
const changing = document.querySelector("[data-refresh]");
if (changing) refresh(changing);
const control = document.getElementById("live");
if (control) live(control);
