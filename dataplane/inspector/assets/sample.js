// One sample: its tokens as a heat map, the other responses to its prompt beside it, its numbers and its history.
import { cellOf, fetchJson, hideTip, make, shown as text, showTip } from "./dom.js";

const LAYERS = { gap: "gap (teacher − student)", advantage: "advantage", teacher_logprob: "teacher log-prob", student_logprob: "student log-prob", generation_logprob: "sampler log-prob" };
const NUMBERS = ["position", "response_position", "token_id", "generation_logprob", "student_logprob", "teacher_logprob", "gap", "advantage", "trained"];
let found = null, layer = "gap", maps = null, scale = null;

export async function show(root, [partition, id]) {
  found = await fetchJson(`/api/sample?partition=${encodeURIComponent(partition)}&id=${encodeURIComponent(id)}`);
  maps = make("div", { class: "responses", id: "responses" });
  scale = make("span", { class: "legend" });
  const select = make("select", { "aria-label": "colour by", id: "layer", onchange: (event) => ((layer = event.target.value), paint()) },
    ...Object.entries(LAYERS).map(([name, label]) => make("option", { value: name }, label)));
  select.value = layer;
  root.append(
    make("p", { class: "crumbs" }, make("a", { href: "#/samples" }, "samples"), " / ", partition, " / ", make("b", {}, id)),
    make("div", { class: "bar" }, make("label", {}, "colour by ", select), scale), maps,
    make("div", { class: "two" },
      make("section", {}, make("h2", {}, "Values"), make("div", { class: "card" }, facts())),
      make("section", {}, make("h2", {}, "History"), make("div", { class: "table" }, history()))),
    make("h2", {}, "Tokens"), make("div", { class: "table" }, numbers()));
  paint();
}

const isNumber = (value) => typeof value === "number";

// Gap and advantage are signed: red below, green above. Log-probs are only below 0: the darker, the less likely.
function paint() {
  const values = found.responses.flatMap((each) => each.tokens.map((token) => token[layer])).filter(isNumber);
  const signed = layer === "gap" || layer === "advantage";
  const largest = Math.max(...values.map(Math.abs), 1e-6);
  const strong = Math.min(largest, signed ? 5 : 8);
  maps.replaceChildren(...found.responses.map((each) => response(each, (value) => color(value, signed, strong))));
  const bar = make("span", { class: "scale" });
  bar.style.background = signed ? "linear-gradient(90deg, rgb(226,76,62), #fff, rgb(46,160,97))" : "linear-gradient(90deg, rgb(230,126,34), #fff)";
  scale.replaceChildren(make("span", {}, `−${text(strong)}`), bar, make("span", {}, signed ? `+${text(strong)} nats` : "0 nats"),
    make("span", {}, "grey: prompt, underlined: generated, purple: not finite"));
}

function color(value, signed, strong) {
  const share = Math.min(Math.abs(value) / strong, 1);
  const [r, g, b] = !signed ? [230, 126, 34] : value < 0 ? [226, 76, 62] : [46, 160, 97];
  return `rgba(${r}, ${g}, ${b}, ${(0.85 * share).toFixed(3)})`;
}

function response(each, paintValue) {
  const tokens = make("div", { class: "tokens" });
  for (const token of each.tokens) {
    const generated = token.generation_logprob !== null;
    const element = make("span", { class: `token ${generated ? "generated" : "prompt"}`, onmousemove: (event) => tip(event, token), onmouseleave: hideTip },
      token.token ?? `⟨${token.token_id}⟩`);
    element.dataset.position = token.position;
    const value = token[layer];
    if (isNumber(value)) element.style.background = paintValue(value);
    else if (typeof value === "string") element.classList.add("bad");
    tokens.append(element);
  }
  const link = `#/sample/${encodeURIComponent(found.partition)}/${encodeURIComponent(each.sample_id)}`;
  const says = ["status", "reward", "gap_mean", "finish_reason"].filter((name) => each[name] !== undefined && each[name] !== null);
  return make("section", { class: each.sample_id === found.sample_id ? "response here" : "response" },
    make("div", {}, make("a", { href: link }, each.sample_id), " ", make("span", { class: "soft" }, says.map((name) => `${name} ${text(each[name])}`).join(", "))), tokens);
}

const tip = (event, token) => showTip(event, [["token", JSON.stringify(token.token)], ...NUMBERS.map((name) => [name, token[name]])]);

function facts() {
  const list = make("dl", { class: "facts" });
  for (const [name, value] of Object.entries(found.values)) {
    if (value !== null && !(Array.isArray(value) && !value.length)) list.append(make("dt", {}, name), make("dd", {}, text(value)));
  }
  return list;
}

function history() {
  const heads = ["time", "what", "task", "worker", "attempt", "weights", "wrote"];
  const rows = found.history.map((event) => make("tr", {},
    ...[event.time?.slice(11, 23), event.kind, event.task ?? "", event.worker ?? "", event.attempt ?? "", event.version ?? "",
      (event.columns ?? []).join(", ") || (event.detail?.errors ?? []).join("; ")].map((value, index, all) => make("td", { class: index === all.length - 1 ? "wrap" : "" }, String(value)))));
  return make("table", {}, make("thead", {}, make("tr", {}, ...heads.map((name) => make("th", {}, name)))), make("tbody", {}, ...rows));
}

function numbers() {
  const names = ["position", "response_position", "token_id", "token", ...NUMBERS.slice(3)];
  const heads = names.map((name) => make("th", { class: name === "token" || name === "trained" ? "" : "number" }, name));
  const rows = found.tokens.map((token) => make("tr", {}, ...names.map((name) => cellOf(token[name]))));
  return make("table", { id: "tokens" }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
}
