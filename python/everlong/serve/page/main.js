// The page: which memory, and which of three views.
import { get, send } from "./api.js";
import { forgetTurns, startChat } from "./chat.js";
import { byId, element, notice, replace } from "./dom.js";
import { showOverview, startOverview } from "./overview.js";
import { showSources, startSources } from "./sources.js";

const ALONE = "";
let model = "";
let view = "chat";
const current = () => ({ name: byId("memory").value, model: byId("memory").value || model });

async function listMemories(chosen) {
  const [models, memories] = await Promise.all([get("/v1/models"), get("/v1/memories")]);
  model = models.data[0].id;
  const names = memories.data.map((one) => one.id);
  replace("memory", [...names.map((name) => element("option", { value: name, textContent: name })),
    element("option", { value: ALONE, textContent: `none: ${model} alone` })]);
  if (chosen !== undefined) byId("memory").value = chosen;
  await show();
}

async function show() {
  for (const name of ["chat", "sources", "overview"]) byId(name).hidden = name !== view;
  for (const button of document.querySelectorAll("nav button")) {
    if (button.dataset.view === view) button.setAttribute("aria-current", "page");
    else button.removeAttribute("aria-current");
  }
  try {
    if (view === "sources") await showSources();
    if (view === "overview") await showOverview();
  } catch (error) {
    notice(error.message);
  }
}

for (const button of document.querySelectorAll("nav button")) {
  button.addEventListener("click", () => { view = button.dataset.view; notice(""); show(); });
}
byId("memory").addEventListener("change", () => { forgetTurns(); show(); });
byId("make").addEventListener("click", async () => {
  const dialog = byId("naming");
  byId("name").value = dialog.returnValue = "";
  dialog.showModal();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  const name = byId("name").value.trim();
  if (dialog.returnValue !== "made") return;
  try {
    await send("POST", "/v1/memories", { name });
    view = "sources";
    await listMemories(name);
  } catch (error) {
    notice(error.message);
  }
});
startChat(current);
startSources(current);
startOverview(current, () => listMemories());
listMemories().catch((error) => notice(error.message));
