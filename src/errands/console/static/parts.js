/**
 * Showing what agents and clients send: texts, JSON and files. Nothing here trusts its content.
 *
 * Texts become text nodes. Images are shown only if their first bytes are those of a PNG, JPEG, GIF or WebP, from memory
 * (`blob:`) and never from another server. Everything else is offered as a download with a neutral type.
 */

import { isSignedIn, request, root } from "./api.js";
import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";

/** Images with more bytes are only offered as a download. */
const LARGEST_IMAGE = 10_000_000;
/** Texts with more characters are shown as plain text until the user asks for more. */
const LONGEST_TEXT = 200_000;
/** Texts with more characters are painted less often while they grow. */
const PACED_TEXT = 20_000;
/** Members of an object or a list that are shown at first. */
const SHOWN_MEMBERS = 100;
/** Characters of a string in JSON that are shown at first. */
const LONGEST_STRING = 5000;

// Invisible characters

/** Control characters, and those that change the direction of a text or take no space. */
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2069\u3164\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;

/** Return a text in which invisible characters are written as their codes, such as ‹U+202E›. */
export function visible(text) {
  return String(text).replace(HIDDEN, (character) => `‹U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`);
}

/** Return a file name without folders and without invisible characters. */
export function fileName(name, fallback = "file") {
  const clean = String(name ?? "").replace(HIDDEN, "").replace(/[\\/:*?"<>|]/g, "_").trim().replace(/^\.+/, "");
  return clean.slice(0, 150) || fallback;
}

/** Return a number of bytes in words. */
export function fileSize(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  if (bytes < 1_000_000) return `${(bytes / 1000).toFixed(bytes < 10_000 ? 1 : 0)} kB`;
  return `${(bytes / 1_000_000).toFixed(1)} MB`;
}

// Parts

/** The parts of a message or an artifact. `isOpen` says that more text may follow. */
export function Parts({ parts, isOpen = false }) {
  const last = (parts ?? []).length - 1;
  return html`
    <div class="parts">
      ${(parts ?? []).map((part, index) => html`<${Part} key=${index} part=${part} isOpen=${isOpen && index === last} />`)}
    </div>`;
}

export function Part({ part, isOpen = false }) {
  if (typeof part?.text === "string") {
    return html`<${Text} text=${part.text} mediaType=${part.mediaType} isOpen=${isOpen} />`;
  }
  if (typeof part?.raw === "string") return html`<${InlineFile} part=${part} />`;
  if (typeof part?.url === "string") return html`<${LinkedFile} part=${part} />`;
  const exposed = exposedValues(part);
  if (exposed) return html`<${Exposed} values=${exposed} />`;
  if (part && "data" in part) return html`<${Json} value=${part.data} label=${part.filename ?? part.mediaType} />`;
  return html`<p class="muted">A part without content.</p>`;
}

/** Return the values that an agent from a manifest exposes beside its answer, null for other parts. */
function exposedValues(part) {
  const values = part?.metadata?.exposes === true && part.data !== null && typeof part.data === "object" ? part.data.exposes : null;
  return values !== null && typeof values === "object" && !Array.isArray(values) ? values : null;
}

function Exposed({ values }) {
  const rows = Object.entries(values).slice(0, SHOWN_MEMBERS);
  if (rows.some(([, value]) => value !== null && typeof value === "object")) return html`<${Json} value=${values} />`;
  return html`<p class="exposed">${rows.map(([name, value]) => html`<span class="tag">${visible(name)} <b>${visible(value)}</b></span>`)}</p>`;
}

// Text

let markdown = null;
const whenLoaded = () => import("./markdown.js").then((module) => { markdown = module; });

/** Return a text, but while it is open and long, at most ten times in a second. */
function usePaced(text, isOpen) {
  const isPaced = isOpen && text.length > PACED_TEXT;
  const [shown, setShown] = useState(text);
  const latest = useRef(text);
  const timer = useRef(0);
  latest.current = text;
  useEffect(() => {
    if (!isPaced || timer.current) return;
    timer.current = setTimeout(() => { timer.current = 0; setShown(latest.current); }, 100);
  }, [text, isPaced]);
  useEffect(() => () => clearTimeout(timer.current), []);
  return isPaced ? shown : text;
}

/** The types of texts that are read as Markdown: agents write it without saying so. */
const MARKDOWN = /^text\/(?:markdown|x-markdown|plain)\b/i;

/** A text, read as Markdown unless its type says otherwise. `isOpen` says that more may follow. */
export function Text({ text: whole, mediaType = "", isOpen = false }) {
  const text = usePaced(whole, isOpen);
  const [isWhole, setWhole] = useState(false);
  const [, setLoaded] = useState(markdown !== null);
  const isLong = text.length > LONGEST_TEXT && !isWhole;
  const isPlain = isLong || (mediaType !== "" && !MARKDOWN.test(mediaType));
  useEffect(() => {
    if (isPlain) return;
    if (markdown === null) whenLoaded().then(() => setLoaded(true), () => {});
    else setLoaded(true);  // another text may have loaded it since this one was rendered
  }, [isPlain]);
  if (isLong) {
    return html`
      <pre class="plain-text" tabindex="0">${text.slice(0, LONGEST_TEXT)}</pre>
      <p class="muted">${(text.length - LONGEST_TEXT).toLocaleString("en")} more characters.
        ${" "}<button type="button" class="small" onClick=${() => setWhole(true)}>Show everything</button></p>`;
  }
  if (isPlain) return html`<pre class="plain-text" tabindex="0">${text}</pre>`;
  if (markdown === null) return html`<p class="pre">${text}</p>`;
  return html`<${markdown.Markdown} text=${text} />`;
}

/** A button that copies a text. `text` may be a function that returns it. */
export function Copy({ text, label = "Copy" }) {
  const [done, setDone] = useState("");
  const copy = async () => {
    try {
      await copyText(typeof text === "function" ? await text() : text);
      setDone("Copied");
    } catch {
      setDone("Not copied");
    }
    setTimeout(() => setDone(""), 2000);
  };
  return html`<button type="button" class="small quiet copy" onClick=${copy}><span aria-live="polite">${done || label}</span></button>`;
}

/** Put a text on the clipboard, also on pages that came over plain HTTP from another machine. */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "visually-hidden";
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  if (!isCopied) throw new Error("The browser did not allow it.");
}

// JSON

/** A JSON value as a tree whose branches open and close. */
export function Json({ value, label = "" }) {
  const isBranch = value !== null && typeof value === "object";
  return html`
    <div class="json">
      <div class="json-head">
        <span class="muted">${visible(label)}</span><${Copy} text=${() => JSON.stringify(value, null, 2)} />
      </div>
      <div class="json-tree" role="group" aria-label="JSON">
        ${isBranch ? html`<${Branch} value=${value} depth=${0} />` : html`<${Leaf} value=${value} />`}
      </div>
    </div>`;
}

function Leaf({ value }) {
  const [isWhole, setWhole] = useState(false);
  if (typeof value === "string") {
    const hidden = isWhole ? 0 : Math.max(0, value.length - LONGEST_STRING);
    const shown = hidden > 0 ? `${value.slice(0, LONGEST_STRING)}…` : value;
    return html`<span class="json-string">${visible(JSON.stringify(shown))}</span>${hidden > 0
      && html` <button type="button" class="small" onClick=${() => setWhole(true)}>${hidden.toLocaleString("en")} more characters</button>`}`;
  }
  return html`<span class=${value === null ? "json-null" : `json-${typeof value}`}>${String(value)}</span>`;
}

function keyOf(name) {
  return html`<span class="json-key">${visible(JSON.stringify(name))}</span>: `;
}

function Branch({ value, depth, name = null, isLast = true }) {
  const isList = Array.isArray(value);
  const entries = isList ? value.map((item, index) => [index, item]) : Object.entries(value);
  const [isOpen, setOpen] = useState(depth < 2 || (depth < 4 && entries.length <= 3));
  const [shown, setShown] = useState(SHOWN_MEMBERS);
  const [first, last] = isList ? "[]" : "{}";
  const key = name === null ? "" : keyOf(name);
  if (entries.length === 0) return html`<div class="json-row">${key}${first}${last}${isLast ? "" : ","}</div>`;
  const count = `${entries.length} ${isList ? "item" : "field"}${entries.length === 1 ? "" : "s"}`;
  const folded = html` <span class="muted">${count}</span> ${last}${isLast ? "" : ","}`;
  return html`
    <div class="json-branch">
      <button type="button" class="json-toggle" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>
        ${key}${first}${isOpen ? "" : folded}
      </button>
      ${isOpen && html`
        <div class="json-members">
          ${entries.slice(0, shown).map(([member, item], index) => {
            const isEnd = index === entries.length - 1;
            return item !== null && typeof item === "object"
              ? html`<${Branch} key=${member} value=${item} depth=${depth + 1} name=${isList ? null : member} isLast=${isEnd} />`
              : html`<div class="json-row" key=${member}>${isList ? "" : keyOf(member)}<${Leaf} value=${item} />${isEnd ? "" : ","}</div>`;
          })}
          ${entries.length > shown && html`
            <button type="button" class="small" onClick=${() => setShown(shown + 10 * SHOWN_MEMBERS)}>${entries.length - shown} more</button>`}
        </div>
        <div class="json-row">${last}${isLast ? "" : ","}</div>`}
    </div>`;
}

// Files

/** The types of images that are shown, by their first bytes. */
const SIGNATURES = [
  ["image/png", [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]],
  ["image/jpeg", [0xff, 0xd8, 0xff]],
  ["image/gif", [0x47, 0x49, 0x46, 0x38]],
  ["image/webp", [0x52, 0x49, 0x46, 0x46, -1, -1, -1, -1, 0x57, 0x45, 0x42, 0x50]],
];

/** Return the type of an image by its first bytes, "" for everything else, SVG included. */
export function imageType(bytes) {
  const found = SIGNATURES.find(([, signature]) => signature.every((byte, index) => byte < 0 || bytes[index] === byte));
  return found ? found[0] : "";
}

/** Return the bytes of a text in base64, null if it is not valid. */
export function fromBase64(text) {
  try {
    const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    return Uint8Array.from(binary, (character) => character.charCodeAt(0));
  } catch {
    return null;
  }
}

/** Return the address of a blob while it is shown. */
function useBlobAddress(bytes, type) {
  const address = useMemo(() => (bytes ? URL.createObjectURL(new Blob([bytes], { type })) : ""), [bytes, type]);
  useEffect(() => () => { if (address) URL.revokeObjectURL(address); }, [address]);
  return address;
}

export function InlineFile({ part }) {
  const bytes = useMemo(() => fromBase64(part.raw), [part.raw]);
  if (bytes === null) return html`<${FileCard} name=${part.filename} about="damaged: it is not valid base64" />`;
  return html`<${Bytes} bytes=${bytes} name=${part.filename} mediaType=${part.mediaType} />`;
}

/** Bytes of a file: an image is shown, everything can be saved. */
function Bytes({ bytes, name, mediaType }) {
  const image = bytes.length <= LARGEST_IMAGE ? imageType(bytes) : "";
  const address = useBlobAddress(bytes, image || "application/octet-stream");
  const [isBroken, setBroken] = useState(false);
  const label = fileName(name, image ? `image.${image.slice(6)}` : "file");
  const about = [mediaType && visible(mediaType), fileSize(bytes.length)].filter(Boolean).join(" · ");
  return html`
    ${image && !isBroken && html`<img class="picture" src=${address} alt=${label} onError=${() => setBroken(true)} />`}
    <${FileCard} name=${name} fallback=${label} about=${about}>
      <a class="button small" href=${address} download=${label}>Save</a>
    </${FileCard}>`;
}

function FileCard({ name, fallback = "file", about, children }) {
  return html`
    <div class="file">
      <svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d="M7 3h7l5 5v13H7zM14 3v5h5" /></svg>
      <span class="file-words"><b>${fileName(name, fallback)}</b><span class="muted">${about}</span></span>
      ${children}
    </div>`;
}

/** A file at an address. Files of this server are loaded on request; others are only linked. */
export function LinkedFile({ part }) {
  const [state, setState] = useState({});
  const address = readAddress(part.url);
  if (address === null) {
    const about = `an address that is not opened: ${visible(part.url).slice(0, 200)}`;
    return html`<${FileCard} name=${part.filename} about=${about} />`;
  }
  const kind = part.mediaType ? `${visible(part.mediaType)} · ` : "";
  const path = blobPath(address);
  if (path === null) {
    const name = address.pathname.split("/").pop();
    return html`
      <${FileCard} name=${part.filename} fallback=${name} about=${`${kind}at ${address.host}`}>
        <a class="button small" href=${address.href} target="_blank" rel="noopener noreferrer nofollow">Open ↗</a>
      </${FileCard}>`;
  }
  if (state.bytes) return html`<${Bytes} bytes=${state.bytes} name=${part.filename} mediaType=${part.mediaType} />`;
  const load = async () => {
    setState({ isLoading: true });
    try {
      setState({ bytes: new Uint8Array(await (await request(path)).arrayBuffer()) });
    } catch (error) {
      setState({ error });
    }
  };
  const isImage = /^image\//i.test(part.mediaType ?? "");
  const label = state.isLoading ? "Loading …" : isImage ? "Show" : "Load";
  return html`
    <${FileCard} name=${part.filename} about=${state.error ? state.error.message : `${kind}kept by this server`}>
      ${(isImage || isSignedIn()) && html`
        <button type="button" class="small" disabled=${state.isLoading} onClick=${load}>${label}</button>`}
      ${!isSignedIn() && html`<a class="button small" href=${address.href} download=${fileName(part.filename)}>Save</a>`}
    </${FileCard}>`;
}

/** Return an address that a link may have, null for scripts, data and other schemes that are not addresses. */
export function readAddress(text) {
  try {
    const address = new URL(text);
    return address.protocol === "https:" || address.protocol === "http:" ? address : null;
  } catch {
    return null;
  }
}

/** Return the path of a file of this server below the mount point, null for other addresses. */
function blobPath(address) {
  const path = address.href.startsWith(root) ? address.href.slice(root.length) : "";
  return /^(?:[^/?#]+\/)?blobs\/[^?#]+$/.test(path) ? path : null;
}
