// The table of samples: filter, sort, page. The server does all three, so its size does not matter.
import { cellOf, fetchJson, make, shown as text } from "./dom.js";

const PAGE = 50;
let body = null, head = null, counter = null, back = null, next = null, query = null, run = null;

export async function show(root, rest, given) {
  query = new URLSearchParams(given);
  run = await fetchJson("/api/run");
  counter = make("span", { class: "soft", id: "count" });
  back = make("button", { onclick: () => turn(-PAGE) }, "back");
  next = make("button", { onclick: () => turn(PAGE), id: "next" }, "next");
  head = make("tr");
  body = make("tbody");
  const kinds = ["partition", "agent", "status"].map((name) => choice(name, [...new Set(run.statuses.map((row) => row[name]))]));
  const step = make("input", { type: "number", min: "1", placeholder: "step", "aria-label": "step", onchange: set("step") });
  step.value = query.get("step") ?? "";
  const search = make("input", { type: "search", placeholder: "id, prompt or response contains", "aria-label": "search", onchange: set("text") });
  search.value = query.get("text") ?? "";
  root.append(make("div", { class: "bar" }, ...kinds, step, search, counter, back, next),
    make("div", { class: "table" }, make("table", { id: "samples" }, make("thead", {}, head), body)));
  await load();
}

function choice(name, values) {
  const options = values.filter((value) => value !== null).sort().map((value) => make("option", { value }, value));
  const select = make("select", { "aria-label": name, onchange: set(name) }, make("option", { value: "" }, `any ${name}`), ...options);
  select.value = query.get(name) ?? "";
  return select;
}

function set(name) {
  return (event) => {
    if (event.target.value) query.set(name, event.target.value);
    else query.delete(name);
    query.delete("offset");
    go();
  };
}

function turn(by) {
  query.set("offset", String(Math.max(0, Number(query.get("offset") ?? 0) + by)));
  go();
}

function sortBy(name) {
  query.set("desc", String(query.get("sort") === name && query.get("desc") !== "true"));
  query.set("sort", name);
  query.delete("offset");
  go();
}

function go() {
  history.replaceState(null, "", `#/samples?${query}`);
  return load();
}

async function load() {
  const asked = query.toString();
  const data = await fetchJson(`/api/samples?limit=${PAGE}&${query}`);
  if (asked !== query.toString()) return;
  const offset = Number(query.get("offset") ?? 0);
  counter.textContent = data.total ? `${text(offset + 1)}–${text(Math.min(offset + PAGE, data.total))} of ${text(data.total)}` : "no sample meets this";
  back.disabled = offset === 0;
  next.disabled = offset + PAGE >= data.total;
  const arrow = (name) => (query.get("sort") === name ? (query.get("desc") === "true" ? " ↓" : " ↑") : "");
  const numeric = (index) => data.rows.some((row) => typeof row[index] === "number");
  head.replaceChildren(...data.columns.map((name, index) => make("th", { class: numeric(index) ? "number" : "" }, make("button", { onclick: () => sortBy(name) }, name + arrow(name)))));
  body.replaceChildren(...data.rows.map((row) => line(data.columns, row)));
}

function line(columns, row) {
  const value = Object.fromEntries(columns.map((name, index) => [name, row[index]]));
  const link = `#/sample/${encodeURIComponent(value.partition)}/${encodeURIComponent(value.sample_id)}`;
  return make("tr", {}, ...columns.map((name, index) => {
    if (name === "sample_id") return make("td", {}, make("a", { href: link }, value.sample_id));
    if (name === "status") return make("td", {}, make("span", { class: `status ${value.status}` }, value.status));
    return cellOf(row[index]);
  }));
}

export async function refresh() {
  if (body?.isConnected && !document.activeElement?.matches("input")) await load();
}
