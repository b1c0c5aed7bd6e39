/**
 * The last exchange of a conversation as it is on the wire, in A2A 1.0 or 0.3.
 *
 * The answer is not translated here: the server itself writes it in the chosen version, from the log after the position
 * at which the message was sent.
 */

import { ApiError, PROTOCOLS, envelope, newId, openStream, request, root } from "./api.js";
import { streams } from "./conversation.js";
import { Copy } from "./parts.js";
import { readEvents } from "./stream.js";
import { html, useEffect, useState } from "./vendor/preact.js";
import { quoted } from "./wire.js";

/** The most events that are shown, the newest ones. */
const SHOWN = 300;
/** The most characters of an event that are shown. */
const LONGEST = 4000;
const LONGEST_REQUEST = 20_000;

/** Return a message of A2A 1.0 as 0.3 writes it. */
export function olderMessage(message) {
  const { role, parts, ...rest } = message;
  return { kind: "message", role: role === "ROLE_USER" ? "user" : "agent", parts: parts.map(olderPart), ...rest };
}

function olderPart({ text, raw, url, data, filename, mediaType, metadata }) {
  // What is undefined is left out of the JSON.
  if (text !== undefined) return { kind: "text", text, metadata };
  if (data !== undefined) {
    const isObject = data !== null && typeof data === "object" && !Array.isArray(data);
    return { kind: "data", data: isObject ? data : { value: data }, metadata };
  }
  const file = { [raw === undefined ? "uri" : "bytes"]: raw ?? url, name: filename, mimeType: mediaType };
  return { kind: "file", file, metadata };
}

/** Return a shell command that sends the request, without credentials. */
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
  const head = Object.entries(sent.headers).map(([name, value]) => `${name}: ${value}`).join("\n");
  // With an id of its own, the command is another request about the same message.
  const command = () => curl({ ...sent, body: JSON.stringify({ ...JSON.parse(sent.body), id: newId() }) });
  const hidden = answer.count - answer.events.length;
  return html`
    <div class="filters" role="group" aria-label="Version of A2A">
      ${Object.keys(PROTOCOLS).map((name) => html`
        <button type="button" class="chip" aria-pressed=${protocol === name} onClick=${() => setProtocol(name)}>A2A ${name}</button>`)}
    </div>
    <section>
      <header class="wire-head">
        <h3>Request</h3><span><${Copy} text=${pretty} /><${Copy} label="Copy as curl" text=${command} /></span>
      </header>
      <pre class="wire" tabindex="0">${`POST ${new URL(root).pathname}\n${head}\n\n${shortened(pretty, LONGEST_REQUEST)}`}</pre>
    </section>
    <section>
      <header class="wire-head">
        <h3>Answer</h3><span class="muted">${answer.count} ${answer.count === 1 ? "event" : "events"}</span>
      </header>
      ${hidden > 0 && html`<p class="seam">${hidden} earlier events are not shown.</p>`}
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
    onEvents(batch.map(({ name, id, data }) => {
      const lines = [`data: ${shortened(data)}`];
      if (id !== null) lines.unshift(`id: ${id}`);
      if (name !== "message") lines.unshift(`event: ${name}`);
      return lines.join("\n");
    }));
    if (batch.some((event) => event.name === "error")) throw new ApiError(0, "The stream ended with an error.");
  }
}

function shortened(text, longest = LONGEST) {
  return text.length > longest ? `${text.slice(0, longest)}… ${text.length - longest} more characters` : text;
}
