// Elements from text. Nothing here ever makes HTML of a string.

export const byId = (id) => document.getElementById(id);

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter((child) => child !== null && child !== ""));
  return made;
}

export function drawn(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export const replace = (id, children) => byId(id).replaceChildren(...children);
export const notice = (text) => { byId("notice").textContent = text; };
export const count = (number) => Number(number).toLocaleString("en");
export const megabytes = (bytes) => `${(bytes / 1e6).toLocaleString("en", { maximumFractionDigits: 1 })} MB`;

export async function sure(question) {
  const dialog = byId("sure");
  byId("sure-text").textContent = question;
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  return dialog.returnValue === "yes";
}
