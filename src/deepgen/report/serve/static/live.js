// What live pages share: the stream of events, requests that change something, and elements made of text.

// A browser connects again by itself when the server was restarted, but not after an answer such as "the token is
// wrong": then this page does, until it is let in again.
const AGAIN_MS = 3000;

// A browser has few connections to one server for all of its tabs, so only tabs that are seen keep one.
export function follow(address, handlers) {
  const state = document.getElementById("connection");
  let source = null;
  let over = false;

  function open() {
    if (source || over || document.hidden) return;
    source = new EventSource(address());
    source.addEventListener("open", () => (state.textContent = "live"));
    source.addEventListener("error", () => {
      state.textContent = "not connected; trying again";
      if (source?.readyState !== EventSource.CLOSED) return;
      source = null;
      setTimeout(open, AGAIN_MS);
    });
    for (const [kind, handle] of Object.entries(handlers)) {
      source.addEventListener(kind, (event) => handle(JSON.parse(event.data), end));
    }
  }

  function close() {
    source?.close();
    source = null;
  }

  function end() {
    over = true;
    close();
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  open();
}

export async function ask(button, address, question) {
  if (!confirm(question)) return;
  const message = document.getElementById("message");
  button.disabled = true;
  message.textContent = "stopping …";
  try {
    const answer = await fetch(address, { method: "POST" });
    message.textContent = (await answer.json()).message;
  } catch {
    message.textContent = "the server did not answer";
  } finally {
    button.disabled = false;
  }
}

export function element(name, text = "", kind = "") {
  const node = document.createElement(name);
  if (text !== "") node.textContent = text;
  if (kind) node.className = kind;
  return node;
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

// Show these children. Only what differs is replaced, so that a link or a button that has the focus keeps it.
export function fill(place, children) {
  children.forEach((one, i) => (place.children[i] ? renew(place.children[i], one) : place.append(one)));
  while (place.children.length > children.length) place.lastElementChild.remove();
}

function renew(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  const parts = [...fresh.childNodes];
  const alike = old.cloneNode(false).isEqualNode(fresh.cloneNode(false)) && parts.length === old.childNodes.length;
  if (alike && parts.length) parts.forEach((one, i) => renew(old.childNodes[i], one));
  else old.replaceWith(fresh);
}

export function moment(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString();
}

// A state is never told by its colour alone.
export function symbol(state) {
  return { running: "▶", starting: "▶", finished: "✓", done: "✓", stopped: "■", damaged: "⚠", unreadable: "✕", failed: "✕" }[state] || "•";
}
