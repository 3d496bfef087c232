// Small helpers. Text always goes in as text: nothing that a model wrote is ever markup.

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export async function fetchJson(path, options) {
  const response = await fetch(path, options);
  const body = await response.json();
  if (!response.ok) throw new Error(body.error || response.statusText);
  return body;
}

// A number for people; NaN and infinities come as text and stay so.
export function shown(value) {
  if (value === null || value === undefined) return "null";
  if (typeof value === "number") {
    if (Number.isInteger(value)) return Math.abs(value) >= 10000 ? value.toLocaleString("en") : String(value);
    const size = Math.abs(value);
    return size >= 1e5 || size < 1e-4 ? value.toExponential(3) : String(Number(value.toPrecision(5)));
  }
  if (typeof value === "object") return JSON.stringify(value);
  return String(value);
}

const tip = document.getElementById("tip");

export function showTip(event, pairs) {
  const list = make("dl");
  for (const [name, value] of pairs) list.append(make("dt", {}, name), make("dd", {}, shown(value)));
  tip.replaceChildren(list);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - box.width - 8)}px`;
  tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18}px`;
}

export function hideTip() {
  tip.hidden = true;
}

export function cellOf(value) {
  const kind = value === null ? "null" : typeof value === "number" ? "number" : "";
  const text = shown(value);
  return make("td", { class: kind, title: text.length > 30 ? text : null }, text);
}
