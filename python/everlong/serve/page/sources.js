// What a memory has read: files and texts are added, followed while they are read, found, and forgotten.
import { get, of, request, send } from "./api.js";
import { byId, count, element, notice, replace, sure } from "./dom.js";
import { openPassage } from "./passage.js";

let memory = () => ({});
let following = 0;

export function startSources(current) {
  memory = current;
  const tried = (does) => async (event) => {
    event.preventDefault();
    try { notice(""); await does(); } catch (error) { notice(error.message); }
  };
  byId("upload").addEventListener("submit", tried(uploaded));
  byId("write").addEventListener("submit", tried(written));
  byId("find").addEventListener("submit", tried(find));
}

async function uploaded() {
  for (const file of byId("files").files) {
    const path = of(memory().name, `/files/${encodeURIComponent(file.name)}`);
    await request(path, { method: "PUT", headers: { "Content-Type": "application/octet-stream" }, body: file });
    await showSources();
  }
  byId("upload").reset();
}

async function written() {
  await send("POST", of(memory().name, "/sources"), { source: byId("source").value, text: byId("text").value });
  byId("write").reset();
  await showSources();
}

async function find() {
  const found = await send("POST", of(memory().name, "/search"), { query: byId("query").value });
  const rows = found.data.map((one) => {
    const open = element("button", { type: "button", textContent: [one.source, one.place].filter(Boolean).join(", ") });
    open.addEventListener("click", () => openPassage(of(memory().name, `/blocks/${one.block_id}`), one.passage));
    return element("li", {}, open, element("div", { className: "said", textContent: one.passage }));
  });
  replace("found", rows.length ? rows : [element("li", { textContent: "Nothing has these words." })]);
}

export async function showSources() {
  clearTimeout(following);
  const name = memory().name;
  if (!name) { replace("listed", []); replace("readings", []); return; }
  const [readings, sources] = await Promise.all([get(of(name, "/readings")), get(of(name, "/sources"))]);
  const open = readings.data.filter((one) => one.status === "waiting" || one.status === "reading" || one.error);
  replace("readings", open.length ? open.map(reading) : [element("li", { className: "soft", textContent: "Nothing." })]);
  replace("listed", sources.data.map(row));
  if (readings.data.some((one) => one.status === "waiting" || one.status === "reading")) {
    following = setTimeout(() => showSources().catch((error) => notice(error.message)), 1000);
  }
}

function reading(one) {
  const bar = element("progress", { max: one.total_tokens ?? 1 });
  if (one.total_tokens) bar.value = one.tokens;
  bar.setAttribute("aria-label", `Reading ${one.source}`);
  const stop = element("button", { type: "button", textContent: "Stop" });
  stop.addEventListener("click", async () => { await send("DELETE", of(one.memory, `/readings/${one.id}`)); showSources(); });
  return element("li", {}, `${one.source}: ${one.error ?? one.status}, ${count(one.tokens)} tokens `,
    one.error ? "" : bar, one.error ? "" : stop);
}

function row(source) {
  const forget = element("button", { type: "button", className: "danger", textContent: "Forget" });
  forget.setAttribute("aria-label", `Forget ${source.shown}`);
  forget.addEventListener("click", async () => {
    if (!await sure(`Forget ${source.shown}? Its ${count(source.tokens)} tokens are removed for good.`)) return;
    const chosen = new URLSearchParams({ source: source.name, ...(source.origin ? { origin: source.origin } : {}) });
    try { await send("DELETE", of(memory().name, `/sources?${chosen}`)); } catch (error) { notice(error.message); }
    showSources();
  });
  return element("tr", {}, element("td", { textContent: source.shown }), element("td", { textContent: count(source.tokens) }),
    element("td", { textContent: count(source.blocks) }), element("td", { textContent: source.last.slice(0, 16).replace("T", " ") }),
    element("td", {}, forget));
}
