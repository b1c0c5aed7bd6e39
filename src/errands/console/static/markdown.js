/**
 * A subset of Markdown as vnodes: headings, lists, quotes, tables, code, emphasis and links. HTML is text like any other.
 *
 * Nothing is ever parsed as HTML, so there is nothing to sanitise. Links lead only to http, https and mailto, in a new
 * tab and with the host written beside them. Images are not loaded: their servers would learn who reads the text.
 */

import { html, useRef } from "./vendor/preact.js";
import { readAddress, visible } from "./parts.js";

/** Quotes and lists are followed to this depth; what is deeper is shown as text. */
const DEEPEST = 6;
/** Rows of a table that are shown. */
const MOST_ROWS = 1000;

/** A text. Blocks that have not changed since it was last painted are not parsed again. */
export function Markdown({ text }) {
  const kept = useRef(new Map());
  const before = kept.current;
  kept.current = new Map();
  return html`<div class="markdown">${blocks(text).map((block, index) => {
    const known = before.get(index);
    const shown = known?.source === block.source && known.kind === block.kind ? known : { ...block, vnode: paint(block, 0) };
    kept.current.set(index, shown);
    return shown.vnode;
  })}</div>`;
}

// Blocks

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*?))?\s*#*\s*$/;
const RULE = /^ {0,3}(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(\s+|$)/;
const QUOTE = /^ {0,3}> ?/;
const DELIMITER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

/** Cut a text into blocks: `{kind, source, …}`. */
export function blocks(text) {
  const lines = String(text).split(/\r\n|\n|\r/);
  const found = [];
  let at = 0;
  const take = (kind, end, more = {}) => {
    found.push({ kind, source: lines.slice(at, end).join("\n"), ...more });
    at = end;
  };
  while (at < lines.length) {
    const line = lines[at];
    if (line.trim() === "") { at += 1; continue; }
    const fence = FENCE.exec(line);
    if (fence) {
      let end = at + 1;
      while (end < lines.length && !closes(lines[end], fence[1])) end += 1;
      take("code", Math.min(end + 1, lines.length), { language: fence[2], isClosed: end < lines.length });
      continue;
    }
    if (HEADING.test(line)) { take("heading", at + 1); continue; }
    if (RULE.test(line)) { take("rule", at + 1); continue; }
    if (QUOTE.test(line)) {
      let end = at + 1;
      while (end < lines.length && lines[end].trim() !== "" && (QUOTE.test(lines[end]) || !begins(lines[end]))) end += 1;
      take("quote", end);
      continue;
    }
    if (ITEM.test(line)) { take("list", endOfList(lines, at)); continue; }
    if (line.includes("|") && at + 1 < lines.length && DELIMITER.test(lines[at + 1]) && lines[at + 1].includes("-")
        && cells(line).length === cells(lines[at + 1]).length) {
      let end = at + 2;
      while (end < lines.length && lines[end].trim() !== "" && lines[end].includes("|")) end += 1;
      take("table", end);
      continue;
    }
    let end = at + 1;
    while (end < lines.length && lines[end].trim() !== "" && !begins(lines[end])) end += 1;
    take("paragraph", end);
  }
  return found;
}

function closes(line, fence) {
  const trimmed = line.trim();
  return trimmed.length >= fence.length && trimmed === fence[0].repeat(trimmed.length);
}

/** Whether a line begins another block and so ends a paragraph. */
function begins(line) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);
}

function endOfList(lines, at) {
  const ordered = /\d/.test(ITEM.exec(lines[at])[2]);
  let end = at + 1;
  for (; end < lines.length; end++) {
    const line = lines[end];
    if (line.trim() === "") {
      // A list continues after an empty line with an item or with indented text.
      const next = lines[end + 1] ?? "";
      if (!/^\s{2,}\S/.test(next) && !(ITEM.test(next) && !RULE.test(next))) break;
      continue;
    }
    const item = ITEM.exec(line);
    if (item && !RULE.test(line)) {
      if (/\d/.test(item[2]) !== ordered) break;
      continue;
    }
    const isIndented = /^\s{2,}/.test(line);
    if (!isIndented && (begins(line) || lines[end - 1].trim() === "")) break;
  }
  return end;
}

// Painting

function paint(block, depth) {
  const { kind, source } = block;
  if (kind === "code") return code(block);
  if (kind === "rule") return html`<hr />`;
  if (kind === "heading") {
    const [, marks, words = ""] = HEADING.exec(source);
    // The page has headings of its own above these.
    return html`<${`h${Math.min(marks.length + 2, 6)}`}>${inline(words)}</${`h${Math.min(marks.length + 2, 6)}`}>`;
  }
  if (kind === "table") return table(source);
  if (depth >= DEEPEST) return html`<p class="pre">${source}</p>`;
  if (kind === "quote") {
    const inner = source.split("\n").map((line) => line.replace(QUOTE, "")).join("\n");
    return html`<blockquote>${blocks(inner).map((one) => paint(one, depth + 1))}</blockquote>`;
  }
  if (kind === "list") return list(source, depth);
  return html`<p>${inline(source)}</p>`;
}

function code({ source, language, isClosed }) {
  const lines = source.split("\n");
  const text = lines.slice(1, isClosed ? -1 : undefined).join("\n");
  const name = visible(language).slice(0, 40);
  return html`
    <figure class="code">${name && html`<figcaption>${name}</figcaption>`}<pre tabindex="0"><code>${text}</code></pre></figure>`;
}

function list(source, depth) {
  const lines = source.split("\n");
  const first = ITEM.exec(lines[0]);
  const isOrdered = /\d/.test(first[2]);
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= first[1].length + 1) items.push({ width: item[0].length, lines: [line.slice(item[0].length)] });
    else items.at(-1).lines.push(line.slice(Math.min(items.at(-1).width, line.length - line.trimStart().length)));
  }
  const rows = items.map(({ lines: own }) => {
    const task = /^\[([ xX])\]\s+/.exec(own[0]);
    if (task) own[0] = own[0].slice(task[0].length);
    const inner = blocks(own.join("\n"));
    // A single paragraph is written without space around it.
    const shown = inner.map((one, index) => (index === 0 && one.kind === "paragraph" ? inline(one.source) : paint(one, depth + 1)));
    if (!task) return html`<li>${shown}</li>`;
    const [mark, says] = task[1] === " " ? ["☐", "open"] : ["☑", "done"];
    return html`<li class="task-item"><span role="img" aria-label=${says}>${mark}</span><div>${shown}</div></li>`;
  });
  return isOrdered ? html`<ol start=${Number.parseInt(first[2], 10)}>${rows}</ol>` : html`<ul>${rows}</ul>`;
}

/** Return the cells of a row. A bar after a backslash or in code belongs to the cell. */
function cells(line) {
  const found = [""];
  let isCode = false;
  const trimmed = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  for (let at = 0; at < trimmed.length; at++) {
    const character = trimmed[at];
    if (character === "\\" && trimmed[at + 1] === "|") { found[found.length - 1] += "|"; at += 1; continue; }
    if (character === "`") isCode = !isCode;
    if (character === "|" && !isCode) found.push("");
    else found[found.length - 1] += character;
  }
  return found.map((cell) => cell.trim());
}

function table(source) {
  const [head, delimiter, ...body] = source.split("\n");
  const sides = cells(delimiter).map((mark) => (mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : "left"));
  const row = (line, Cell) => cells(line).slice(0, sides.length).map((cell, index) => html`
    <${Cell} class=${`to-${sides[index]}`}>${inline(cell)}</${Cell}>`);
  const hidden = body.length - MOST_ROWS;
  return html`
    <div class="table-scroll" tabindex="0" role="region" aria-label="Table">
      <table>
        <thead><tr>${row(head, "th")}</tr></thead>
        <tbody>${body.slice(0, MOST_ROWS).map((line) => html`<tr>${row(line, "td")}</tr>`)}</tbody>
      </table>
      ${hidden > 0 && html`<p class="muted">${hidden} more rows are not shown.</p>`}
    </div>`;
}

// Inline

/** The inline elements, in the order in which they are tried. */
const SPECIAL = /[\\`*_~[!<h\n]/g;
const ESCAPED = /^\\([!-/:-@[-`{-~])/;
const CODE = /^(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)/;
const IMAGE = /^!\[([^\]]{0,500})\]\(\s*<?([^\s)>]{1,2000})>?(?:\s+["'(][^\n]{0,500}?["')])?\s*\)/;
const LINK = /^\[((?:[^[\]\\]|\\.|\[[^[\]]{0,200}\]){1,500})\]\(\s*<?([^\s)>]{1,2000})>?(?:\s+["'(][^\n]{0,500}?["')])?\s*\)/;
const AUTOLINK = /^<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/i;
const BARE = /^https?:\/\/[^\s<>"'`]{1,2000}/i;
/** Marks of emphasis, the longest first. A long text without an end is searched only so far. */
const EMPHASES = [
  { mark: "**", tag: "strong" },
  { mark: "__", tag: "strong" },
  { mark: "~~", tag: "del" },
  { mark: "*", tag: "em" },
  { mark: "_", tag: "em" },
];
const LONGEST_EMPHASIS = 2000;

export function inline(text, depth = 0) {
  const shown = [];
  let plain = "";
  const flush = () => { if (plain) shown.push(plain); plain = ""; };
  const put = (vnode) => { flush(); shown.push(vnode); };
  let at = 0;
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const next = SPECIAL.exec(text);
    if (next === null) { plain += text.slice(at); break; }
    plain += text.slice(at, next.index);
    at = next.index;
    const rest = text.slice(at, at + 5000);
    const before = at > 0 ? text[at - 1] : " ";
    let found;
    if (rest[0] === "\n") {
      if (text.startsWith("  ", at - 2) && at > 1) { plain = plain.trimEnd(); put(html`<br />`); } else plain += "\n";
      at += 1;
    } else if ((found = ESCAPED.exec(rest))) {
      plain += found[1];
      at += 2;
    } else if (rest[0] === "`" && (found = CODE.exec(rest))) {
      put(html`<code>${found[2].replace(/^ (.*[^ ].*) $/, "$1")}</code>`);
      at += found[0].length;
    } else if (rest[0] === "!" && (found = IMAGE.exec(rest))) {
      put(image(found[1], found[2]));
      at += found[0].length;
    } else if (rest[0] === "[" && (found = LINK.exec(rest))) {
      put(link(depth < DEEPEST ? inline(found[1], depth + 1) : found[1], found[2], found[1]));
      at += found[0].length;
    } else if (rest[0] === "<" && (found = AUTOLINK.exec(rest))) {
      put(link(found[1], found[1], found[1]));
      at += found[0].length;
    } else if (rest[0] === "h" && !/[\w/]/.test(before) && (found = BARE.exec(rest))) {
      const address = found[0].replace(/[.,:;!?)\]}*_~]+$/, "");
      put(link(address, address, address));
      at += address.length;
    } else if ((found = emphasis(rest, before)) && depth < DEEPEST) {
      put(html`<${found.tag}>${inline(found.inner, depth + 1)}</${found.tag}>`);
      at += found.length;
    } else {
      plain += rest[0];
      at += 1;
    }
  }
  flush();
  return shown;
}

function emphasis(rest, before) {
  for (const { mark, tag } of EMPHASES) {
    if (!rest.startsWith(mark)) continue;
    if (/^\s?$/.test(rest[mark.length] ?? "")) return null;
    // An underscore within a word is only an underscore.
    if (mark[0] === "_" && /\w/.test(before)) return null;
    for (let end = rest.indexOf(mark, mark.length + 1); end > 0 && end < LONGEST_EMPHASIS; end = rest.indexOf(mark, end + 1)) {
      const isInside = /\s/.test(rest[end - 1]) || (mark.length === 1 && (rest[end + 1] === mark || rest[end - 1] === mark));
      if (isInside || (mark[0] === "_" && /\w/.test(rest[end + mark.length] ?? ""))) continue;
      return { tag, inner: rest.slice(mark.length, end), length: end + mark.length };
    }
    if (mark.length === 2) return null;
  }
  return null;
}

/** A link, or its words followed by the address if it must not be opened. */
function link(words, target, source) {
  const isMail = /^mailto:[^\s]+$/i.test(target);
  const address = isMail ? null : readAddress(target);
  if (!isMail && address === null) return html`<span>${words} <span class="muted">(${visible(target).slice(0, 200)})</span></span>`;
  const host = isMail ? "" : address.host;
  // Words that only contain the host may name another one, such as bank.example for k.example.
  const isNamed = isMail || source.trim() === host || readAddress(source.trim())?.host === host;
  const shown = html`
    <a href=${isMail ? target : address.href} target="_blank" rel="noopener noreferrer nofollow">${words}</a>`;
  return isNamed ? shown : html`${shown} <bdi class="link-host">(${host})</bdi>`;
}

function image(words, target) {
  const address = readAddress(target);
  const label = visible(words) || "Image";
  return html`<span class="remote-image"><span aria-hidden="true">🖼</span> ${label}${address
    ? html` <a href=${address.href} target="_blank" rel="noopener noreferrer nofollow">Open at ${address.host}</a>`
    : html` <span class="muted">(${visible(target).slice(0, 200)})</span>`}</span>`;
}
