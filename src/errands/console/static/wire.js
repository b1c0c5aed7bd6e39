/** The raw wire of a task: what a client would see in A2A 1.0 and 0.3, the log as it is stored, and curl commands. */

import { html, useEffect, useState } from "./vendor/preact.js";
import { envelope, newId, request, root } from "./api.js";
import { Json } from "./parts.js";
import { useWindowed } from "./windowed.js";
import { exact, number } from "./words.js";

/** Return a shell command that sends the first message of a task again, without credentials. */
export function curlOf(task) {
  const first = task.history?.find((message) => message.role === "ROLE_USER");
  if (!first) throw new Error("This task has no message from a user.");
  const { taskId, contextId, ...message } = first;
  const body = { jsonrpc: "2.0", id: 1, method: "SendMessage", params: { message: { ...message, messageId: newId() } } };
  return ["curl", "-sS", root, "-H", "Content-Type: application/json", "-H", "A2A-Version: 1.0", "-d", JSON.stringify(body)]
    .map(quoted).join(" ");
}

/** Return a text as one word of a shell command. */
export function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

export function RawWire({ id, log, newest }) {
  const [version, setVersion] = useState("1.0");
  const [shown, setShown] = useState({});
  useEffect(() => {
    const ending = new AbortController();
    const { headers, body } = envelope("get", { id }, version);
    const sent = JSON.parse(body);
    const show = (found) => { if (!ending.signal.aborted) setShown({ version, sent, ...found }); };
    // A task that keeps changing is read once a second.
    const timer = setTimeout(async () => {
      try {
        const response = await request("", { method: "POST", headers, body, signal: ending.signal });
        show({ answer: await response.json() });
      } catch (error) { show({ error }); }
    }, shown.version === version ? 1000 : 0);
    return () => { clearTimeout(timer); ending.abort(); };
  }, [id, version, newest]);
  useEffect(() => { log.all().catch(() => {}); }, [newest]);
  return html`
    <section class="raw" aria-label="Raw wire">
      <div class="filters" role="group" aria-label="Version of A2A">
        ${["1.0", "0.3"].map((name) => html`<button type="button" class="chip" aria-pressed=${version === name} onClick=${() => setVersion(name)}>A2A ${name}</button>`)}
      </div>
      ${shown.version !== version ? html`<p class="muted" role="status">Reading …</p>` : html`
      <h3>Request</h3><${Json} value=${shown.sent} />
      <h3>Answer</h3>
      ${shown.error ? html`<p class="failure" role="alert">${shown.error.message}</p>` : html`<${Json} value=${shown.answer} />`}`}
      <h3>Log <span class="muted">${number(log.events.length)} events${log.loading ? ", still reading" : ""}</span></h3>
      ${log.gap && html`<p class="seam" role="note">Older events are no longer kept.</p>`}
      ${log.error && html`<p class="failure" role="alert">${log.error.message}</p>`}
      <${LogRows} events=${log.events} />
    </section>`;
}

function LogRows({ events }) {
  const rows = useWindowed(events.length, 29, (index) => events[index]?.version);
  const [opened, setOpened] = useState(new Set());
  const toggle = (version) => {
    const next = new Set(opened);
    if (!next.delete(version)) next.add(version);
    setOpened(next);
  };
  return html`
    <table class="log">
      <thead><tr><th scope="col">Version</th><th scope="col">Kind</th><th scope="col">Data</th></tr></thead>
      <tbody ref=${rows.ref}>
        ${rows.before > 0 && html`<tr aria-hidden="true"><td colspan="3" class="spacer" style=${{ height: `${rows.before}px` }}></td></tr>`}
        ${events.slice(rows.first, rows.last).map((event, index) => html`
          <tr key=${event.version} ref=${rows.measure(rows.first + index)}>
            <td class="version" title=${exact(event.at)}>${event.version}</td><td>${event.kind}</td>
            <td><button type="button" class="row-button mono" aria-expanded=${opened.has(event.version)} onClick=${() => toggle(event.version)}>${JSON.stringify(event.data).slice(0, 300)}</button>
            ${opened.has(event.version) && html`<${Json} value=${event} />`}</td>
          </tr>`)}
        ${rows.after > 0 && html`<tr aria-hidden="true"><td colspan="3" class="spacer" style=${{ height: `${rows.after}px` }}></td></tr>`}
      </tbody>
    </table>`;
}
