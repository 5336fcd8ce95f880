// How much a memory holds, since when, of what, and how it is.
import { get, of, send } from "./api.js";
import { byId, count, drawn, element, megabytes, notice, replace, sure } from "./dom.js";

let memory = () => ({});

export function startOverview(current, changed) {
  memory = current;
  const told = (button, does) => byId(button).addEventListener("click", async () => {
    try { notice(await does(memory().name)); } catch (error) { notice(error.message); }
  });
  told("verify", async (name) => {
    const report = await send("POST", of(name, "/verify"), {});
    return report.damage.length ? `Damaged: ${report.damage.map((one) => one.what).join("; ")}`
      : `${count(report.records)} records are whole.`;
  });
  told("compact", async (name) => `${megabytes((await send("POST", of(name, "/compact"), {})).bytes)} were given back.`);
  told("remove", async (name) => {
    if (!await sure(`Remove the memory ${name} with all that it holds?`)) return "";
    await send("DELETE", of(name));
    await changed();
    return `${name} was removed.`;
  });
}

export async function showOverview() {
  const name = memory().name;
  if (!name) { replace("facts", []); return; }
  const found = await get(of(name));
  const stats = found.stats;
  const facts = { tokens: count(stats.tokens), blocks: count(stats.blocks), sources: count(found.sources.length),
    "on disk": megabytes(stats.disk_bytes), "in RAM": megabytes(stats.host_bytes + stats.index_bytes), model: found.model || "unnamed" };
  replace("facts", Object.entries(facts).map(([label, value]) =>
    element("div", {}, element("dt", { textContent: label }), element("dd", { textContent: value }))));
  replace("timeline", found.timeline.length ? bars(found.timeline) : ["Nothing was read yet."]);
  const drawing = found.graph.nodes.length ? [graph(found.graph)] : [];
  const named = found.topics.map((one) => `${one.name} (${one.blocks})`).join(", ");
  replace("topics", [...drawing, element("p", { textContent: named || "No topics were grown, and no tags were given." })]);
  const lines = [stats.dead_bytes ? `${megabytes(stats.dead_bytes)} are of what was forgotten.` : "No bytes are of what was forgotten.",
    ...found.unfinished.map((one) => `The reading of ${one.sources.join(", ")} was cut short.`)];
  replace("health", lines.map((line) => element("li", { textContent: line })));
}

function bars(timeline) {
  const width = 600 / timeline.length, most = Math.max(...timeline.map((bar) => bar.read + bar.said), 1);
  const made = timeline.flatMap((bar, at) => {
    const read = 120 * bar.read / most, said = 120 * bar.said / most, x = at * width + 1, wide = Math.max(1, width - 2);
    const title = drawn("title", {}, `${bar.when}: ${count(bar.read)} tokens read, ${count(bar.said)} asked and said`);
    return [drawn("g", {}, title, drawn("rect", { class: "read", x, y: 120 - read, width: wide, height: read }),
      drawn("rect", { class: "later", x, y: 120 - read - said, width: wide, height: said }))];
  });
  return [drawn("svg", { viewBox: "0 0 600 122", role: "img", "aria-label": "Tokens by when they were told" }, ...made),
    element("p", { className: "soft", textContent: `${timeline[0].when} to ${timeline.at(-1).when} UTC` })];
}

function graph(topics) {
  const places = new Map(topics.nodes.map((node, at) => {
    const turn = 2 * Math.PI * at / topics.nodes.length, far = node.level > 0 ? 70 : 160;
    return [node.id, [300 + 1.5 * far * Math.cos(turn), 190 + far * Math.sin(turn)]];
  }));
  const lines = topics.links.map(([from, to]) => {
    const [x1, y1] = places.get(from), [x2, y2] = places.get(to);
    return drawn("line", { x1, y1, x2, y2 });
  });
  const dots = topics.nodes.map((node) => {
    const [cx, cy] = places.get(node.id);
    return drawn("g", {}, drawn("circle", { cx, cy, r: 4 + Math.sqrt(node.blocks) }), drawn("title", {}, `${node.name}: ${node.blocks} blocks`),
      drawn("text", { x: cx, y: cy - 10 - Math.sqrt(node.blocks) }, node.name.slice(0, 30)));
  });
  return drawn("svg", { viewBox: "0 0 600 380", role: "img", "aria-label": "Topics and how they hang together" }, ...lines, ...dots);
}
