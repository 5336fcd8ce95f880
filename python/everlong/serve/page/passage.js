// A passage in its source, with what stands before and behind it.
import { get } from "./api.js";
import { byId, element, notice } from "./dom.js";

export async function openPassage(path, passage) {
  try {
    const block = await get(path);
    byId("passage-title").textContent = block.source;
    byId("passage-where").textContent =
      [block.place, `tokens ${block.span[0]} to ${block.span[1]}`, block.role].filter(Boolean).join(" · ");
    show(block.before + block.text + block.behind, passage, block.text);
  } catch (error) {
    notice(error.message);
  }
}

// A turn of a conversation, which stands in no source.
export function showTurn(recall) {
  byId("passage-title").textContent = recall.source;
  byId("passage-where").textContent = recall.role;
  show(recall.text, recall.passage, recall.text);
}

function show(whole, passage, otherwise) {
  const marked = whole.includes(passage.trim()) ? passage.trim() : otherwise;
  const first = whole.indexOf(marked), last = first + marked.length;
  byId("passage-text").replaceChildren(
    whole.slice(0, first), element("mark", { textContent: whole.slice(first, last) }), whole.slice(last));
  byId("passage").showModal();
  byId("passage").focus();
  byId("passage-text").querySelector("mark").scrollIntoView({ block: "center" });
}
