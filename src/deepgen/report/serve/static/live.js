// What live pages share: the stream of events, requests that change something, and elements made of text.

// A browser connects again by itself when the server was restarted, but not after an answer such as "the token is
// wrong": then this page does, until it is let in again.
const AGAIN_MS = 3000;

export function follow(address, handlers) {
  const source = new EventSource(address);
  const state = document.getElementById("connection");
  source.addEventListener("open", () => (state.textContent = "live"));
  source.addEventListener("error", () => {
    state.textContent = "not connected; trying again";
    if (source.readyState === EventSource.CLOSED) setTimeout(() => follow(address, handlers), AGAIN_MS);
  });
  for (const [kind, handle] of Object.entries(handlers)) {
    source.addEventListener(kind, (event) => handle(JSON.parse(event.data), source));
  }
}

export async function ask(button, address, question) {
  if (!confirm(question)) return;
  const said = document.getElementById("said");
  button.disabled = true;
  said.textContent = "stopping …";
  try {
    const answer = await fetch(address, { method: "POST" });
    said.textContent = (await answer.json()).said;
  } catch {
    said.textContent = "the server did not answer";
  } finally {
    button.disabled = false;
  }
}

export function element(name, text = "", kind = "") {
  const made = document.createElement(name);
  if (text !== "") made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

export function cell(text, kind = "") {
  return element("td", text, kind);
}

// A row of a table. On a phone each cell stands alone, below the title of its column.
export function line(table, cells) {
  const row = element("tr");
  row.append(...cells);
  cells.forEach((one, i) => (one.dataset.label = table.tHead.rows[0].cells[i].textContent));
  return row;
}

export function moment(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString();
}

// A state is never told by its colour alone.
export function symbol(state) {
  return { running: "▶", starting: "▶", finished: "✓", done: "✓", stopped: "■", damaged: "⚠", unreadable: "✕", failed: "✕" }[state] || "•";
}
