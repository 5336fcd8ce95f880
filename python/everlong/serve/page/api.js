// Requests to the service that this page came from.
import { byId } from "./dom.js";

const kept = () => sessionStorage.getItem("key");

async function enterKey() {
  const dialog = byId("enter");
  dialog.showModal();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  sessionStorage.setItem("key", byId("key").value.trim());
}

export async function request(path, options = {}) {
  for (;;) {
    const headers = { ...options.headers };
    if (kept()) headers.Authorization = `Bearer ${kept()}`;
    const answer = await fetch(path, { ...options, headers });
    if (answer.status === 401) { await enterKey(); continue; }
    if (!answer.ok) throw new Error((await answer.json().catch(() => null))?.error?.message ?? `${answer.status}`);
    return answer;
  }
}

export const get = async (path) => (await request(path)).json();

export const send = async (method, path, body) =>
  (await request(path, body === undefined ? { method }
    : { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) })).json();

export const of = (memory, rest = "") => `/v1/memories/${encodeURIComponent(memory)}${rest}`;

export async function* streamed(path, body, signal) {
  const answer = await request(path, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal,
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (left + value).split("\n\n");
    left = lines.pop();
    for (const line of lines) {
      const data = line.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const told = JSON.parse(data);
      if (told.error) throw new Error(told.error.message);
      yield told;
    }
  }
}
