// Which page is shown, and following a live run.
import { fetchJson, hideTip, make } from "./dom.js";
import * as overview from "./overview.js";
import * as timeline from "./timeline.js";
import * as samples from "./samples.js";
import * as sample from "./sample.js";
import * as sql from "./sql.js";

const pages = { "": overview, timeline, samples, sample, sql };
const names = { "": "overview", timeline: "timeline", samples: "samples", sample: "samples", sql: "sql" };
const root = document.getElementById("page");
const live = document.getElementById("live");
const POLL_MS = 2000;
let position = -1;
let shownAt = 0;

function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").map(decodeURIComponent);
  return { name: name in pages ? name : "", rest, query: new URLSearchParams(query) };
}

async function show() {
  const { name, rest, query } = place();
  const turn = ++shownAt;
  hideTip();
  for (const link of document.querySelectorAll("nav a")) link.classList.toggle("here", link.dataset.page === names[name]);
  const fresh = make("div");
  try {
    await pages[name].show(fresh, rest, query);
  } catch (error) {
    fresh.replaceChildren(make("p", { class: "error" }, error.message));
  }
  if (turn === shownAt) {
    root.replaceChildren(fresh);
    root.dataset.page = name || "overview";
    pages[name].shown?.();
  }
}

// A grown journal: the page in view is brought up to date where it stands.
async function follow() {
  try {
    const run = await fetchJson("/api/run");
    document.getElementById("name").textContent = run.name;
    document.title = `${run.name} - opd`;
    live.classList.remove("off");
    const done = `${run.steps_trained} of ${run.steps_sealed} sealed steps trained`;
    if (run.position !== position) {
      const first = position === -1;
      position = run.position;
      const { name } = place();
      if (!first && pages[name].refresh) await pages[name].refresh();
      live.textContent = first ? done : `${done}, live`;
    } else {
      live.textContent = done;
    }
  } catch {
    live.classList.add("off");
    live.textContent = "the server has gone";
  }
  setTimeout(follow, POLL_MS);
}

addEventListener("hashchange", show);
await show();
follow();
