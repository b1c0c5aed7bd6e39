/**
 * The last exchange of a conversation as it is on the wire, in A2A 1.0 or 0.3.
 *
 * The answer is not translated here: the server itself writes it in the chosen version, from the log behind the position
 * at which the message was sent.
 */

import { ApiError, PROTOCOLS, envelope, newId, openStream, request, root } from "./api.js";
import { streams } from "./conversation.js";
import { Copy } from "./parts.js";
import { readEvents } from "./stream.js";
import { html, useEffect, useState } from "./vendor/preact.js";
import { quoted } from "./wire.js";

/** Events that are shown, the newest ones. */
const SHOWN = 300;
/** Characters of an event that are shown. */
const LONGEST = 4000;

/** Return a message of A2A 1.0 as 0.3 writes it. */
export function olderMessage(message) {
  const { role, parts, ...rest } = message;
  return { kind: "message", role: role === "ROLE_USER" ? "user" : "agent", parts: parts.map(olderPart), ...rest };
}

function olderPart({ text, raw, url, data, filename, mediaType, metadata }) {
  const more = metadata === undefined ? {} : { metadata };
  if (text !== undefined) return { kind: "text", text, ...more };
  if (data !== undefined) return { kind: "data", data: data !== null && typeof data === "object" && !Array.isArray(data) ? data : { value: data }, ...more };
  const file = { ...(raw === undefined ? { uri: url } : { bytes: raw }), ...(filename ? { name: filename } : {}), ...(mediaType ? { mimeType: mediaType } : {}) };
  return { kind: "file", file, ...more };
}

/** Return a shell command that sends the request. Credentials are left to the reader. */
export function curl({ headers, body }) {
  const words = ["curl", "-sSN", root, ...Object.entries(headers).flatMap(([name, value]) => ["-H", `${name}: ${value}`]), "-d", body];
  return words.map(quoted).join(" ");
}

export function Exchange({ last }) {
  const [protocol, setProtocol] = useState("1.0");
  const [answer, setAnswer] = useState({ events: [], count: 0 });
  const { message, taskId, after } = last;
  const sent = envelope(streams ? "stream" : "send", { message: protocol === "1.0" ? message : olderMessage(message) }, protocol);
  useEffect(() => {
    const ending = new AbortController();
    setAnswer({ events: [], count: 0 });
    readAnswer({ taskId, after, protocol, signal: ending.signal, onEvents: (lines) => setAnswer((old) => ({
      events: [...old.events, ...lines].slice(-SHOWN), count: old.count + lines.length,
    })) }).catch((error) => { if (error.name !== "AbortError") setAnswer((old) => ({ ...old, error })); });
    return () => ending.abort();
  }, [taskId, after, protocol]);
  const pretty = JSON.stringify(JSON.parse(sent.body), null, 2);
  return html`
    <div class="filters" role="group" aria-label="Version of A2A">
      ${Object.keys(PROTOCOLS).map((name) => html`<button type="button" class="chip" aria-pressed=${protocol === name} onClick=${() => setProtocol(name)}>A2A ${name}</button>`)}
    </div>
    <section><header class="wire-head"><h3>Request</h3><span><${Copy} text=${pretty} /><${Copy} label="Copy as curl" text=${() => curl({ ...sent, body: JSON.stringify({ ...JSON.parse(sent.body), id: newId() }) })} /></span></header>
      <pre class="wire" tabindex="0">POST ${new URL(root).pathname}${"\n"}${Object.entries(sent.headers).map(([name, value]) => `${name}: ${value}`).join("\n")}${"\n\n"}${pretty.length > LONGEST * 5 ? `${pretty.slice(0, LONGEST * 5)}…` : pretty}</pre></section>
    <section><header class="wire-head"><h3>Answer</h3><span class="muted">${answer.count} ${answer.count === 1 ? "event" : "events"}</span></header>
      ${answer.count > answer.events.length && html`<p class="seam">${answer.count - answer.events.length} earlier events are not shown.</p>`}
      <pre class="wire" tabindex="0">${answer.events.join("\n\n")}</pre>
      ${answer.error && html`<p class="failure" role="alert">${answer.error.message}</p>`}</section>`;
}

async function readAnswer({ taskId, after, protocol, signal, onEvents }) {
  if (!streams) {
    const { headers, body } = envelope("get", { id: taskId }, protocol);
    const text = await (await request("", { method: "POST", headers, body, signal })).text();
    onEvents([shortened(text)]);
    return;
  }
  const response = await openStream("subscribe", { id: taskId }, { lastId: after, signal, protocol });
  for await (const batch of readEvents(response, signal)) {
    onEvents(batch.map((event) => [
      ...(event.name === "message" ? [] : [`event: ${event.name}`]), ...(event.id === null ? [] : [`id: ${event.id}`]), `data: ${shortened(event.data)}`,
    ].join("\n")));
    if (batch.some((event) => event.name === "error")) throw new ApiError(0, "The stream ended with an error.");
  }
}

function shortened(text) {
  return text.length > LONGEST ? `${text.slice(0, LONGEST)}… ${text.length - LONGEST} more characters` : text;
}
