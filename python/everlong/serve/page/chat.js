// A conversation with a memory: answers as they come, and the passages that they rest on.
import { streamed } from "./api.js";
import { byId, element, notice } from "./dom.js";
import { openPassage, showTurn } from "./passage.js";

let messages = [];
let stopping = null;
let memory = () => ({});

export function startChat(current) {
  memory = current;
  byId("ask").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  byId("question").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); byId("ask").requestSubmit(); }
  });
  byId("stop").addEventListener("click", () => stopping?.abort());
  byId("fresh").addEventListener("click", forgetTurns);
  byId("again").addEventListener("click", () => {
    messages.pop();
    byId("turns").lastElementChild.remove();
    answer();
  });
}

export function forgetTurns() {
  stopping?.abort();
  messages = [];
  byId("turns").replaceChildren();
  byId("again").disabled = true;
  byId("question").focus();
}

function ask() {
  const question = byId("question").value.trim();
  if (!question || stopping) return;
  byId("question").value = "";
  messages.push({ role: "user", content: question });
  byId("turns").append(element("li", { className: "user" }, element("div", { className: "said", textContent: question })));
  answer();
}

async function answer() {
  const said = element("div", { className: "said", textContent: "" });
  const turn = element("li", { className: "assistant", ariaBusy: "true" }, said);
  byId("turns").append(turn);
  busy(true);
  const asked = [...messages];
  let text = "", told = null;
  try {
    const body = { model: memory().model, messages: asked, stream: true };
    for await (const chunk of streamed("/v1/chat/completions", body, stopping.signal)) {
      text += chunk.choices[0]?.delta?.content ?? "";
      said.textContent = text;
      told = chunk.everlong ?? told;
      turn.scrollIntoView({ block: "nearest" });
    }
    notice("");
  } catch (error) {
    notice(error.name === "AbortError" ? "Stopped." : error.message);
  }
  turn.ariaBusy = "false";
  if (told) turn.append(...explained(told));
  if (text) messages.push({ role: "assistant", content: text });
  else { messages.pop(); turn.remove(); }
  busy(false);
  byId("again").disabled = !text;
}

function busy(yes) {
  stopping = yes ? new AbortController() : null;
  byId("stop").disabled = !yes;
  byId("again").disabled = yes;
}

function explained(told) {
  const parts = [];
  if (told.unsure) {
    parts.push(element("p", { className: "unsure",
      textContent: `The memory is unsure: the answer is among these with ${Math.round(100 * told.confidence)} %.` }));
  }
  const name = (one) => [one.source, one.place].filter(Boolean).join(", ");
  const cited = told.recall.filter((one) => one.used).map((one, number) => {
    const button = element("button", { type: "button", textContent: `${number + 1}. ${name(one)}` });
    button.addEventListener("click", () => one.url ? openPassage(one.url, one.passage) : showTurn(one));
    return button;
  });
  if (cited.length) parts.push(element("div", { className: "cited" }, ...cited));
  const rows = told.recall.map((one) => element("li", {}, [
    name(one), `found by ${one.found_by.join(", ")}`, `score ${one.score.toFixed(2)}`,
    one.confidence === null ? "" : `${Math.round(100 * one.confidence)} %`,
    one.used ? "" : "not quoted",
  ].filter(Boolean).join(" · ")));
  const sums = `${told.tokens_read} tokens read now, ${told.tokens_known} known before`;
  parts.push(element("details", {}, element("summary", { textContent: "What the question found, and why" }),
    element("ol", {}, ...rows), element("p", { className: "soft",
      textContent: rows.length ? sums : `Nothing came back: all of the text is before the model, or none fits. ${sums}` })));
  return parts;
}
