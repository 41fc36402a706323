// The page at / of bertkit serve. Texts and labels may be anybody's: they become text nodes, never markup.

const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
const [access, form, fields, send, problem, answer, why, code] = $$(
  "#access, #ask, #fields, #send, #problem, #answer, #why, #code",
);
const [models, labels] = [$("#choose select"), $("select", why)];
const empty = [...answer.childNodes]; // what the answer says before there is one
const MOST_BARS = 8;
let known = []; // models, as /info tells of them
let model; // the chosen one
let asked; // the row whose answer is shown
let busy = false; // a request is under way

// --- elements --------------------------------------------------------------------------------------------------------------

function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function percent(share) {
  if (share > 0.999 && share < 1) return "> 99.9%";
  return share > 0 && share < 0.001 ? "< 0.1%" : `${(100 * share).toFixed(1)}%`;
}

/** Names with numbers and bars. rows: [name, width from 0 to 1, number, class]. */
function bars(rows) {
  const items = rows.map(([name, width, number, kind = ""]) => {
    const bar = make("span", { className: "bar" });
    bar.style.setProperty("--width", `${100 * width}%`);
    return make("li", { className: kind }, make("bdi", {}, name), make("span", { className: "number" }, number), bar);
  });
  const lists = [make("ol", { className: "bars" }, ...items.splice(0, MOST_BARS))];
  if (!items.length) return lists;
  const more = make("summary", {}, `${items.length} more`);
  return [...lists, make("details", {}, more, make("ol", { className: "bars" }, ...items))];
}

const shares = (rows) => bars(rows.map(([name, share]) => [name, share, percent(share)]));

/** A text with marks. spans: in order; name: is said behind the mark; style: a property of CSS and its value. */
function marked(text, spans) {
  const shown = make("p", { className: "text", dir: "auto" });
  let at = 0;
  for (const { begin, end, kind, name, style } of spans) {
    const mark = make("mark", { className: kind }, text.slice(begin, end));
    if (name) mark.append(make("small", {}, name));
    if (style) mark.style.setProperty(...style);
    shown.append(text.slice(at, begin), mark);
    at = end;
  }
  shown.append(text.slice(at));
  return shown;
}

/** Places by code points, as the server counts, in UTF-16 units, as JavaScript does. */
function inUnits(text, places) {
  const at = [0];
  for (const point of text) at.push(at.at(-1) + point.length);
  return places.map(({ start, end }) => ({ begin: at[start], end: at[end] }));
}

/** The places of words that stand in a text in this order. */
function located(text, words) {
  let end = 0;
  return words.map((word) => {
    const begin = text.indexOf(word, end);
    end = begin + word.length;
    return { begin, end };
  });
}

// --- answers, as people read them ------------------------------------------------------------------------------------------

/** By family: parameters of the request, and what an answer to a row becomes on the page. */
const FAMILIES = {
  "text-classification": { show: ([found]) => (model.labels.length ? ranked(found) : [value(found[0].score)]) },
  "multiple-choice": { show: ([found]) => ranked(found) },
  "token-classification": {
    parameters: (row) => row.tokens && { aggregation_strategy: "none", ignore_labels: [] },
    show: entities,
  },
  "question-answering": { parameters: () => ({ top_k: 3 }), show: (found, row) => answers([found].flat(), row.context) },
  "fill-mask": { show: (found, row) => fills(Array.isArray(found[0]) ? found : [found], row.text) },
};

const ranked = (found) => shares(found.map(({ label, score }) => [label, score]));
const value = (score) => make("p", { className: "value" }, `${Number(score.toPrecision(4))}`);

/** Each kind of entity has a hue of its own; steps of the golden angle tell neighbours apart. */
function hue(tag) {
  const kinds = [...new Set(["O", ...model.labels, tag].map((label) => label.replace(/^[BIESLU]-/, "")))];
  return ["--hue", Math.round(60 + 137.5 * kinds.indexOf(tag.replace(/^[BIESLU]-/, ""))) % 360];
}

function entities(found, { tokens, text = tokens.join(" ") }) {
  const places = tokens ? located(text, tokens) : inUnits(text, found);
  const all = found.map(({ word, score, entity, entity_group: name = entity }, number) => (
    { ...places[number], kind: "entity", name, style: hue(name), row: [`${word} (${name})`, score] }
  ));
  const spans = all.filter(({ name }) => name !== "O");
  const told = spans.length ? [] : [make("p", {}, "Nothing is marked in this text.")];
  return [...told, marked(text, spans), ...shares(spans.map((span) => span.row))];
}

function answers(found, context) {
  const has = found[0].answer !== "";
  const told = has ? [] : [make("p", {}, "The context has no answer.")];
  const spans = has ? [{ ...inUnits(context, found)[0], kind: "found" }] : [];
  return [...told, marked(context, spans), ...shares(found.map((each) => [each.answer || "no answer", each.score]))];
}

function fills(gaps, given) {
  let [text, ...parts] = given.split(model.mask_token);
  const spans = parts.map((part, number) => {
    let token = gaps[number]?.[0].token_str ?? model.mask_token; // those beyond the model's length stay
    if (token.startsWith("##")) [text, token] = [text.trimEnd(), token.slice(2)]; // the end of a word
    const begin = text.length;
    text += token + part;
    return { begin, end: begin + token.length, kind: gaps[number] ? "found" : "" };
  });
  const lists = gaps.flatMap((gap, number) => [
    ...(gaps.length > 1 ? [make("h3", {}, `Gap ${number + 1}`)] : []),
    ...shares(gap.map((each) => [each.token_str, each.score])),
  ]);
  return [marked(text, spans), ...lists];
}

function reasons({ label, words }, { text, text_pair: pair }) {
  const most = Math.max(...words.map(([, weight]) => Math.abs(weight))) || 1;
  const rows = words.map(([word, weight]) => {
    const share = Math.abs(weight) / most;
    return [word, share, `${Number(weight.toPrecision(2))}`.replace("-", "\u2212"), weight < 0 ? "against" : "for"];
  });
  const whole = pair ? `${text}\n${pair}` : text;
  const spans = located(whole, words.map(([word]) => word)).map((place, number) => {
    const [, share, , kind] = rows[number];
    return { ...place, kind, style: ["--weight", `${100 * share}%`] };
  });
  const [plus, minus] = ["for", "against"].map((name) => make("mark", { className: name }, name));
  const about = make("bdi", {}, label ?? "a high number");
  const strongest = rows.toSorted(([, one], [, other]) => other - one).slice(0, MOST_BARS);
  const legend = make("p", { className: "legend" }, "Words ", plus, " and ", minus, " ", about);
  return [legend, marked(whole, spans), ...bars(strongest)];
}

// --- requests --------------------------------------------------------------------------------------------------------------

/** What the server answers. Throws an Error with its words for what is wrong. */
async function ask(path, body) {
  const token = String.fromCharCode(...new TextEncoder().encode($("input", access).value)); // a header is bytes
  const headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
  const sent = fetch(path, { headers, ...(body && { method: "POST", body: JSON.stringify(body) }) });
  const response = await sent.catch(() => Promise.reject(new Error("The server cannot be reached.")));
  const found = await response.json().catch(() => ({}));
  if (response.ok) return found;
  if (response.status === 401) access.hidden = false;
  throw new Error(found.error ?? `${response.status} ${response.statusText}`);
}

/** Does a form's work when it is sent, once at a time: its button says so meanwhile. An error stands in its place. */
function onSubmit(sent, button, place, work) {
  sent.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (busy) return;
    const name = button.textContent;
    const wait = (on) => {
      busy = models.disabled = on;
      button.setAttribute("aria-disabled", on); // disabled would lose the focus
      button.textContent = on ? "Computing\u2026" : name;
    };
    wait(true);
    place.textContent = "";
    const error = await work().catch((found) => found);
    wait(false);
    if (error) place.textContent = error.message;
  });
}

/** The row in the boxes; a box that is empty has no column. */
function rowOf(given) {
  const row = Object.fromEntries([...new FormData(given)].filter(([, text]) => text));
  if (row.choices) row.choices = row.choices.split("\n").filter((line) => line.trim());
  return row.tokens ? { tokens: row.text.split(/\s+/).filter(Boolean) } : row;
}

// --- the page --------------------------------------------------------------------------------------------------------------

/** The lines that send a request from a shell and from Python. */
function tell(path, body) {
  const url = new URL(path, document.baseURI).href;
  const invisible = /[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g; // code must be what it looks like
  const json = JSON.stringify(body).replace(invisible, (each) => `\\u${each.charCodeAt().toString(16).padStart(4, "0")}`);
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const secret = $("input", access).value; // which the lines take from the environment
  const [shell, python] = $$("pre", code);
  shell.textContent = [
    `curl ${quoted(url)}`,
    ...(secret ? ['-H "Authorization: Bearer $BERTKIT_TOKEN"'] : []),
    "-H 'Content-Type: application/json'",
    `-d ${quoted(json)}`,
  ].join(" \\\n  ");
  const bearer = secret && ', "Authorization": b"Bearer " + os.environ["BERTKIT_TOKEN"].encode()';
  python.textContent = `import json${secret && ", os"}
from urllib.request import Request, urlopen

body = ${json}
headers = {"Content-Type": "application/json"${bearer}}
print(json.load(urlopen(Request(${JSON.stringify(url)}, json.dumps(body).encode(), headers))))`;
  for (const button of $$("button", code)) button.textContent = "Copy";
  code.hidden = false;
}

/** Shows the boxes of a model; texts that were typed stay where it has a box for them. */
function choose(name) {
  const kept = new FormData(form);
  model = known.find((each) => each.name === name);
  const template = document.getElementById(model.family);
  fields.replaceChildren(template.content.cloneNode(true));
  for (const box of $$("[name]", fields)) {
    if (model.columns[box.name] === undefined) box.closest("label").remove();
    else if (box.type !== "checkbox") box.value = kept.get(box.name) ?? "";
  }
  for (const mask of $$("code", fields)) mask.textContent = model.mask_token;
  $("#title").textContent = template.dataset.title;
  send.textContent = template.dataset.send;
  $("#keys").textContent = $("[data-lines]", fields) ? "Ctrl+Enter sends." : "Enter sends, Shift+Enter begins a new line.";
  const family = model.family.replace("-", " ") + (model.multi_label ? " with several labels" : "");
  const limits = [family, `up to ${model.max_length} tokens`, model.precision].join(", ");
  $("#facts").replaceChildren(make("bdi", {}, model.name), `: ${limits}`);
  answer.replaceChildren(...empty);
  problem.textContent = "";
  form.hidden = false;
  why.hidden = code.hidden = true;
}

async function open() {
  known = (await ask("info")).models;
  access.hidden = true;
  models.replaceChildren(...known.map(({ name }) => make("option", { value: name }, name)));
  $("#choose").hidden = known.length < 2;
  choose(known[0].name);
}

onSubmit(access, $("button", access), problem, () => open().then(() => $("textarea", fields).focus()));

onSubmit(form, send, problem, async () => {
  const { show, parameters } = FAMILIES[model.family];
  const row = rowOf(form);
  const body = { inputs: row, parameters: parameters?.(row) }; // JSON leaves out what is undefined
  const path = `models/${encodeURIComponent(model.name)}`;
  tell(path, body);
  answer.replaceChildren();
  why.hidden = true;
  const found = await ask(path, body);
  answer.replaceChildren(...show(found, row));
  asked = row;
  why.hidden = !model.explains;
  if (model.explains) {
    $("output", why).replaceChildren();
    $("label", why).hidden = !model.labels.length; // a number
    labels.replaceChildren(...model.labels.map((label) => make("option", { value: label }, label)));
    labels.value = found[0][0].label;
  }
  answer.scrollIntoView({ block: "nearest" });
});

onSubmit(why, $("button", why), $("[role=alert]", why), async () => {
  const body = { inputs: asked, label: labels.value || undefined, model: model.name };
  tell("explain", body);
  $("output", why).replaceChildren(...reasons(await ask("explain", body), asked));
});

form.addEventListener("keydown", (event) => {
  const alone = event.target.matches("textarea:not([data-lines])") && !event.shiftKey;
  if (event.key !== "Enter" || event.isComposing || !(alone || event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  form.requestSubmit(send);
});

$("#example").addEventListener("click", () => {
  for (const box of $$("[data-example]", fields)) box.value = box.dataset.example.replaceAll("[MASK]", () => model.mask_token);
  form.requestSubmit(send);
});

models.addEventListener("change", () => choose(models.value));

for (const button of $$("button", code)) {
  button.hidden = !navigator.clipboard; // as on pages that come without TLS from another machine
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = "Copied";
  });
}

open().catch((error) => {
  if (access.hidden) problem.textContent = error.message;
  else $("input", access).focus();
});
