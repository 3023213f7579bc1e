// Markdown as a document fragment. Everything becomes text nodes and a fixed set of elements, so that no answer
// can bring markup of its own; links lead only to http, https and mailto.

function element(name, ...children) {
  const node = document.createElement(name);
  node.append(...children);
  return node;
}

const INLINE = /(`+)([\s\S]*?[^`])\1(?!`)|\*\*(?=\S)([\s\S]*?\S)\*\*|\*(?=[^\s*])([^*]*?[^\s*])\*|\[([^\][]*)\]\(([^\s()]+)\)|(https?:\/\/[^\s<>()"'\]]*[^\s<>()"'\].,;:!?])/g;

function link(text, target) {
  let url;
  try {
    url = new URL(target);
  } catch {
    return null;
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return null;
  const node = element("a", text);
  node.href = url.href;
  node.target = "_blank";
  node.rel = "noopener noreferrer nofollow";
  return node;
}

function inline(text) {
  const out = document.createDocumentFragment();
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    const [all, , code, strong, emphasis, linkText, linkTarget, bare] = match;
    let node;
    if (code !== undefined) node = element("code", code.trim() === "" ? code : code.replace(/^ (.*) $/s, "$1"));
    else if (strong !== undefined) node = element("strong", inline(strong));
    else if (emphasis !== undefined) node = element("em", inline(emphasis));
    else if (linkTarget !== undefined) node = link(linkText, linkTarget);
    else node = link(bare, bare);
    out.append(text.slice(end, match.index), node ?? all);
    end = match.index + all.length;
  }
  out.append(text.slice(end));
  return out;
}

function codeBlock(language, lines) {
  const code = element("code", lines.join("\n"));
  const copy = element("button", "Copy");
  copy.type = "button";
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      copy.textContent = "Selected";
    }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  const head = element("div", element("span", language), copy);
  head.className = "code-head";
  const block = element("div", head, element("pre", code));
  block.className = "code";
  return block;
}

const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

// Lines from `at` on that are one list; deeper items become lists in the item before them.
function list(lines, at) {
  const [, indent, mark] = lines[at].match(ITEM);
  const node = element(/\d/.test(mark) ? "ol" : "ul");
  if (/\d/.test(mark)) node.start = parseInt(mark, 10);
  while (at < lines.length) {
    const match = lines[at].match(ITEM);
    if (!match) {
      // A line that is indented goes on with the item before.
      if (!/^\s{2,}\S/.test(lines[at])) break;
      node.lastChild?.append("\n", inline(lines[at++].trim()));
    } else if (match[1].length > indent.length + 1 && node.lastChild) {
      const [inner, next] = list(lines, at);
      node.lastChild.append(inner);
      at = next;
    } else if (match[1].length < indent.length) {
      break;
    } else {
      node.append(element("li", inline(match[3])));
      ++at;
    }
  }
  return [node, at];
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
const isTable = (lines, at) => lines[at].includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[at + 1] ?? "") &&
  (lines[at + 1] ?? "").includes("|");

function table(lines, at) {
  const row = (line, name) => element("tr", ...cells(line).map((cell) => element(name, inline(cell))));
  const body = element("tbody");
  const node = element("table", element("thead", row(lines[at], "th")), body);
  for (at += 2; at < lines.length && lines[at].includes("|"); ++at) body.append(row(lines[at], "td"));
  const frame = element("div", node);
  frame.className = "table";
  return [frame, at];
}

export function renderMarkdown(text, depth = 0) {
  const out = document.createDocumentFragment();
  const lines = text.split("\n");
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = line.match(/^\s{0,3}(`{3,}|~{3,})\s*([^`]*)$/);
    const heading = line.match(/^(#{1,6})\s+(.*?)\s*#*$/);
    if (fence) {
      const end = lines.findIndex((other, i) => i > at && other.trim().startsWith(fence[1]) && other.trim().replace(/[`~]/g, "") === "");
      const stop = end < 0 ? lines.length : end;
      out.append(codeBlock(fence[2].trim().split(/\s/)[0], lines.slice(at + 1, stop)));
      at = stop + 1;
    } else if (heading) {
      out.append(element(`h${Math.min(heading[1].length, 4)}`, inline(heading[2])));
      ++at;
    } else if (/^\s{0,3}([-*_])\s*(\1\s*){2,}$/.test(line)) {
      out.append(element("hr"));
      ++at;
    } else if (/^\s{0,3}>/.test(line)) {
      const quoted = [];
      for (; at < lines.length && /^\s{0,3}>/.test(lines[at]); ++at) quoted.push(lines[at].replace(/^\s{0,3}> ?/, ""));
      out.append(element("blockquote", depth < 8 ? renderMarkdown(quoted.join("\n"), depth + 1) : quoted.join("\n")));
    } else if (ITEM.test(line)) {
      const [node, next] = list(lines, at);
      out.append(node);
      at = next;
    } else if (isTable(lines, at)) {
      const [node, next] = table(lines, at);
      out.append(node);
      at = next;
    } else if (line.trim() === "") {
      ++at;
    } else {
      const paragraph = [];
      for (; at < lines.length && lines[at].trim() !== "" && (paragraph.length === 0 || !/^\s{0,3}(`{3,}|~{3,}|#{1,6}\s|>)/.test(lines[at]));
           ++at) paragraph.push(lines[at]);
      const node = element("p");
      paragraph.forEach((part, i) => node.append(...(i > 0 ? [element("br")] : []), inline(part)));
      out.append(node);
    }
  }
  return out;
}
