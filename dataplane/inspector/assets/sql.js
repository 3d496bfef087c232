// A query, its answer, and the cookbook beside it.
import { cellOf, fetchJson, make, shown as text } from "./dom.js";

let area = null, answer = null, button = null;

export async function show(root, rest, given) {
  const [recipes, run] = await Promise.all([fetchJson("/api/cookbook"), fetchJson("/api/run")]);
  area = make("textarea", { spellcheck: false, "aria-label": "query", id: "query", onkeydown: keys });
  area.value = given.get("q") ?? "select step, loss, gap_mean, reward_mean from steps order by step desc limit 10";
  answer = make("div", { id: "answer" });
  button = make("button", { class: "main", id: "ask", onclick: ask }, "Run");
  const list = recipes.map((recipe) => make("button", { title: recipe.about, onclick: () => ((area.value = recipe.query), ask()) }, recipe.title));
  const views = Object.entries(run.views).map(([name, columns]) =>
    make("details", {}, make("summary", {}, name), make("p", { class: "soft" }, columns.join(", "))));
  root.append(make("div", { class: "sql" },
    make("aside", {}, make("h2", {}, "Cookbook"), make("div", { class: "recipes" }, ...list), make("h2", {}, "Views"), ...views),
    make("section", {}, area, make("div", { class: "bar" }, button, make("span", { class: "soft" }, "Ctrl+Enter; read-only, the first 1000 rows")), answer)));
}

function keys(event) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask();
}

async function ask() {
  button.disabled = true;
  answer.replaceChildren(make("p", { class: "soft" }, "asking …"));
  try {
    const body = JSON.stringify({ query: area.value });
    const found = await fetchJson("/api/sql", { method: "POST", headers: { "content-type": "application/json" }, body });
    history.replaceState(null, "", `#/sql?q=${encodeURIComponent(area.value)}`);
    const head = make("tr", {}, ...found.columns.map((name, index) => make("th", { title: found.types[index], class: found.rows.some((row) => typeof row[index] === "number") ? "number" : "" }, name)));
    const rows = found.rows.map((row) => make("tr", {}, ...row.map(cellOf)));
    const said = `${text(found.rows.length)}${found.more ? " of more" : ""} rows in ${found.seconds.toFixed(2)} s`;
    answer.replaceChildren(make("p", { class: "soft" }, said),
      make("div", { class: "table" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows))));
  } catch (error) {
    answer.replaceChildren(make("p", { class: "error" }, error.message));
  }
  button.disabled = false;
}
