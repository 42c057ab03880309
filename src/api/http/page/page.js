// Live parts of the page: local times, the overview, and the stream of events. Everything else works without this file.
"use strict";

const ROWS_MAX = 500;

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
  row.className = "new";
  localTimes(row);
  return row;
}

// Adds new events at the top. While paused, events wait, up to the number of rows that are kept.
function live(control) {
  const table = document.getElementById("events");
  const button = control.querySelector("button");
  const state = control.querySelector("[role=status]");
  let waiting = [];
  let paused = false;
  let scheduled = false;
  const show = () => {
    scheduled = false;
    if (paused) return;
    for (const event of waiting) table.prepend(row(event));
    waiting = [];
    while (table.rows.length > ROWS_MAX) table.deleteRow(-1);
  };
  const stream = new EventSource(control.dataset.stream);
  stream.onopen = () => { if (!paused) state.textContent = "live"; };
  stream.onerror = () => {
    state.textContent = stream.readyState === EventSource.CLOSED ? "disconnected, reload the view" : "reconnecting";
  };
  stream.onmessage = (message) => {
    waiting.push(JSON.parse(message.data));
    if (waiting.length > ROWS_MAX) waiting.shift();
    if (!paused && !scheduled) {
      scheduled = true;
      setTimeout(show, 250);
    }
  };
  button.onclick = () => {
    paused = !paused;
    button.textContent = paused ? "Continue" : "Pause";
    button.setAttribute("aria-pressed", String(paused));
    state.textContent = paused ? "paused" : "live";
    show();
  };
  control.hidden = false;
}

localTimes(document);
const changing = document.querySelector("[data-refresh]");
if (changing) refresh(changing);
const control = document.getElementById("live");
if (control) live(control);
