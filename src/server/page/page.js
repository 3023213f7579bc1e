// A conversation with the model behind this server. Nothing is kept but settings, in this browser.
import {attentionView} from "./attention.js";
import {renderMarkdown} from "./markdown.js";

const $ = (id) => document.getElementById(id);
const SETTINGS = ["system", "temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const INTEGERS = ["top_k", "max_tokens", "seed"];

let messages = [];      // {role, content, node, failed}
let running = null;     // the AbortController of the answer that is being written
let follow = true;      // the view scrolls along with what comes

function store(name, value) {
  try {
    if (value === "") localStorage.removeItem(name);
    else localStorage.setItem(name, value);
  } catch { /* a browser that keeps nothing */ }
}

function stored(name) {
  try {
    return localStorage.getItem(name) ?? "";
  } catch {
    return "";
  }
}

function headers() {
  const key = $("api-key").value;
  return {"Content-Type": "application/json", ...(key && {Authorization: `Bearer ${key}`})};
}

function show(text, isError = false) {
  $("status").textContent = text;
  $("status").classList.toggle("error", isError);
}

// ---- The conversation's view

function button(text, action) {
  const node = document.createElement("button");
  node.type = "button";
  node.textContent = text;
  node.addEventListener("click", action);
  return node;
}

function addMessage(role, content) {
  const node = document.createElement("article");
  node.className = `message ${role}`;
  node.innerHTML = '<div class="who"><span class="name"></span><span class="rate"></span></div><div class="content"></div><div class="actions"></div>';
  node.querySelector(".name").textContent = role === "user" ? "You" : "Model";
  const message = {role, content, node};
  messages.push(message);
  $("messages").append(node);
  draw(message);
  return message;
}

function draw(message) {
  const content = message.node.querySelector(".content");
  if (message.role === "user") content.textContent = message.content;
  else content.replaceChildren(renderMarkdown(message.content));
  if (follow) $("messages").scrollTop = $("messages").scrollHeight;
}

// The last answer can be asked for again, the last question changed.
function drawActions() {
  for (const {node} of messages) node.querySelector(".actions").replaceChildren();
  if (running) return;
  const last = messages.at(-1);
  if (last?.role === "assistant") {
    last.node.querySelector(".actions").append(button("Retry", retry), button("Attention", () => toggleAttention(last)));
  }
  const question = messages.findLast(({role}) => role === "user");
  if (last && last === question) question.node.querySelector(".actions").append(button("Retry", retry));
  question?.node.querySelector(".actions").append(button("Edit", edit));
}

// Also what failed, which is in the view alone.
function dropAfterLastQuestion() {
  while (messages.length > 0 && messages.at(-1).role !== "user") messages.pop();
  while (messages.at(-1)?.node.nextElementSibling) messages.at(-1).node.nextElementSibling.remove();
}

function retry() {
  if (running) return;
  dropAfterLastQuestion();
  answer();
}

function edit() {
  if (running) return;
  dropAfterLastQuestion();
  const question = messages.pop();
  question.node.remove();
  $("text").value = question.content;
  grow();
  $("text").focus();
  drawActions();
}

// ---- Asking

function conversation() {
  const list = messages.map(({role, content}) => ({role, content}));
  if ($("system").value.trim()) list.unshift({role: "system", content: $("system").value});
  return list;
}

async function toggleAttention(message) {
  const open = message.node.querySelector(".attention");
  if (open) return open.remove();
  const before = conversation().slice(0, -1);
  const ask = async (what) => {
    const response = await fetch("v1/attention", {method: "POST", headers: headers(), body: JSON.stringify({messages: before, answer: message.content, ...what})});
    if (!response.ok) throw new Error(await errorOf(response));
    return response.json();
  };
  try {
    message.node.append(await attentionView(ask));
    message.node.querySelector(".attention").scrollIntoView({block: "nearest"});
  } catch (error) {
    show(error.message, true);
  }
}

function requestBody() {
  const body = {stream: true, stream_options: {include_usage: true}, messages: conversation()};
  for (const name of SETTINGS.slice(1)) {
    const value = $(name).value.trim();
    if (value === "") continue;
    body[name] = INTEGERS.includes(name) ? Math.trunc(Number(value)) : Number(value);
  }
  return body;
}

// The data of server-sent events, one by one.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    rest += value;
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}

async function errorOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

async function answer() {
  const controller = running = new AbortController();
  const body = requestBody();
  follow = true;
  const message = addMessage("assistant", "");
  message.node.setAttribute("aria-busy", "true");
  $("send").hidden = true;
  $("stop").hidden = false;
  drawActions();
  show("Reading the prompt …");
  const begun = performance.now();
  let first = 0, tokens = 0, usage = null, reason = null, drawn = 0;
  const rate = () => tokens > 1 ? `${(1000 * (tokens - 1) / (performance.now() - first)).toFixed(1)} tokens/s` : "";
  try {
    const response = await fetch("v1/chat/completions", {method: "POST", headers: headers(), body: JSON.stringify(body), signal: controller.signal});
    if (!response.ok) throw new Error(await errorOf(response));
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      if (event.usage) usage = event.usage;
      const choice = event.choices?.[0];
      if (choice?.finish_reason) reason = choice.finish_reason;
      if (!choice?.delta?.content) continue;
      ++tokens;
      if (!first) first = performance.now();
      message.content += choice.delta.content;
      if (!drawn) {
        drawn = requestAnimationFrame(() => {
          drawn = 0;
          draw(message);
          show(rate());
        });
      }
    }
    let text = `first text after ${((first || performance.now()) - begun).toFixed(0)} ms`;
    if (usage) {
      if (first) tokens = usage.completion_tokens;
      text = `${usage.prompt_tokens} tokens read (${usage.prompt_tokens_details.cached_tokens} of them cached), ${usage.completion_tokens} written, ${text}`;
    }
    message.node.querySelector(".rate").textContent = rate();
    show(reason === "length" ? `${text}; the answer was cut off at its limit` : text);
  } catch (error) {
    if (error.name === "AbortError") {
      show("Stopped.");
    } else {
      const note = document.createElement("p");
      note.className = "error";
      note.textContent = `Error: ${error.message}`;
      message.node.querySelector(".content").after(note);
      show(error.message, true);
    }
  }
  if (drawn) cancelAnimationFrame(drawn);
  draw(message);
  running = null;
  message.node.removeAttribute("aria-busy");
  $("send").hidden = false;
  $("stop").hidden = true;
  if (message.content === "" && messages.at(-1) === message) messages.pop();
  drawActions();
}

function send(event) {
  event?.preventDefault();
  const text = $("text").value;
  if (running || text.trim() === "") return;
  // A question without an answer gives way to the next.
  if (messages.at(-1)?.role === "user") {
    dropAfterLastQuestion();
    messages.pop().node.remove();
  }
  $("text").value = "";
  grow();
  addMessage("user", text);
  answer();
}

function newChat() {
  running?.abort();
  messages = [];
  $("messages").replaceChildren();
  show("");
  $("text").focus();
}

// ---- The page's own controls

function grow() {
  const text = $("text");
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight + 2}px`;
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  store("theme", theme);
}

function toggleTheme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  setTheme(dark ? "light" : "dark");
}

function toggleSettings() {
  const hidden = !$("settings").hidden;
  $("settings").hidden = hidden;
  $("show-settings").setAttribute("aria-expanded", String(!hidden));
  if (!hidden) $("system").focus();
}

async function showModel() {
  try {
    const response = await fetch("v1/models", {headers: headers()});
    if (!response.ok) throw new Error(await errorOf(response));
    const model = (await response.json()).data[0];
    $("model").textContent = model.id;
    $("model").title = `Reads and writes up to ${model.max_model_len} tokens`;
    document.title = `${model.id} · Tessera`;
    show("");
  } catch (error) {
    show(error.message, true);
  }
}

setTheme(stored("theme"));
for (const name of SETTINGS) {
  $(name).value = stored(name);
  $(name).addEventListener("change", () => store(name, $(name).value));
}
$("reset-settings").addEventListener("click", () => {
  for (const name of SETTINGS) {
    $(name).value = "";
    store(name, "");
  }
});
$("api-key").addEventListener("change", showModel);
$("composer").addEventListener("submit", send);
$("stop").addEventListener("click", () => running?.abort());
$("new-chat").addEventListener("click", newChat);
$("theme").addEventListener("click", toggleTheme);
$("show-settings").addEventListener("click", toggleSettings);
$("text").addEventListener("input", grow);
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
});
$("messages").addEventListener("scroll", () => {
  const view = $("messages");
  follow = view.scrollHeight - view.scrollTop - view.clientHeight < 40;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    if (running) running.abort();
    else if (!$("settings").hidden) toggleSettings();
  } else if (event.altKey && event.key.toLowerCase() === "n") {
    event.preventDefault();
    newChat();
  }
});
showModel();
