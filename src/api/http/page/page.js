// Live parts of the page: local times, the overview, and the stream of events. Everything else works without this file.
"use strict";

const ROWS_MAX = 500;
const RETRY_MS = 3000;

// A time in the zone of the browser, in the form that the page has it in UTC.
function local(at, length) {
  return new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, length).replace("T", " ");
}

function localTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (!isNaN(at) && !time.title) {
      time.title = time.dateTime;
      time.textContent = local(at, time.textContent.length);
    }
  }
}

// "3m ago" is true when the view is made, and here for as long as it is open.
function age(root) {
  for (const ago of root.querySelectorAll(".ago")) {
    const s = Math.floor((Date.now() - new Date(ago.previousElementSibling.dateTime)) / 1000);
    const [n, unit] = s < 120 ? [s, "s"] : s < 7200 ? [s / 60, "m"] : s < 172800 ? [s / 3600, "h"] : [s / 86400, "d"];
    if (s >= 0) ago.textContent = `${Math.floor(n)}${unit} ago`;
  }
}

// Characters that a reader would not see, spelled out as in the rest of the page.
function plain(text) {
  return text.replace(/[\0-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, (c) => {
    const code = c.charCodeAt(0).toString(16);
    return code.length < 3 ? "\\x" + code.padStart(2, "0") : `\\u{${code}}`;
  });
}

// Fields of a time are in UTC without this script, and in an address.
function localFields() {
  for (const field of document.querySelectorAll("input[type=datetime-local]")) {
    if (field.value) field.value = local(new Date(field.value + "Z"), 19).replace(" ", "T");
  }
}

function formData({ formData }) {
  const between = !formData.has("last") || formData.get("last") === "between";
  for (const [name, value] of [...formData]) {
    const isTime = name === "since" || name === "until";
    if (!value || isTime && !between) formData.delete(name);
    else if (isTime) formData.set(name, new Date(value).toISOString());
  }
}

// Reloads a view that changes, unless it is hidden or in use. What it cannot reload, it states.
function refresh(part) {
  const stale = document.getElementById("stale");
  const clock = () => local(new Date(), 16).slice(11);
  let shown = clock();
  let since = "";
  const failed = (what) => {
    since ||= clock();
    stale.textContent = `${what} since ${since}; showing ${shown}`;
    stale.hidden = false;
  };
  setInterval(async () => {
    const current = document.querySelector("[data-refresh]");
    if (document.hidden || !current || current.contains(document.activeElement)) return;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      if (answer.status === 401) location.reload();
      if (!answer.ok) return failed(`Daemon answers ${answer.status}`);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.querySelector("[data-refresh]");
      if (!fresh) return;
      localTimes(fresh);
      current.replaceWith(fresh);
      shown = clock();
      since = "";
      stale.hidden = true;
    } catch {
      failed("Daemon unreachable");
    }
  }, Number(part.dataset.refresh) * 1000);
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
    inner.append(typeof text === "string" ? plain(text) : text);
    row.append(cell);
  };
  const time = document.createElement("time");
  time.dateTime = event.time;
  time.textContent = event.time.slice(0, 23);
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

// `/` focuses the search, wherever the reader is.
function shortcut(event) {
  if (event.key !== "/" || event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.target.closest("input, select, textarea")) return;
  const field = document.getElementById("find");
  if (!field) return;
  event.preventDefault();
  field.focus();
}

localTimes(document);
localFields();
setInterval(age, 60000, document);
document.addEventListener("formdata", formData);
const zone = document.getElementById("zone");
if (zone) zone.textContent = Intl.DateTimeFormat().resolvedOptions().timeZone || "local";
document.addEventListener("keydown", shortcut);
const changing = document.querySelector("[data-refresh]");
if (changing) refresh(changing);
const control = document.getElementById("live");
if (control) live(control);
