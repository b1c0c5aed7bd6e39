/** Operations: throughput, latency, queue and leases as live charts, each process, what runs now, and dead letters. */

import { html, useMemo, useRef, useState } from "./vendor/preact.js";
import { get, post } from "./api.js";
import { Link, useQuery, useTitle } from "./app.js";
import { Chart } from "./chart.js";
import { gauge, percentile, rate, replicas, total } from "./figures.js";
import { fileSize, visible } from "./parts.js";
import { Failure, usePolled, useRead } from "./polling.js";
import { Ago, State, duration, number, plural, shortId } from "./words.js";

/** How long snapshots are shown. */
const KEPT = 900_000;
const seconds = (value) => (value < 0.01 ? `${(value * 1000).toFixed(1)} ms` : duration(value * 1000));
const perSecond = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)}/s`;
const whole = (value) => number(Math.round(value));

export function page({ me }) {
  useTitle("Operations");
  if (me?.isOperator === false) {
    return html`<div class="page"><h1>Operations</h1><p class="empty">Figures and webhooks cover the tasks of everyone, so they are for operators.</p><${Running} /></div>`;
  }
  if (me && me.reach !== "agent") {
    return html`<div class="page"><h1>Operations</h1><p class="empty">Figures cover the tasks of all tenants, so they are for operators of all tenants.</p><${Running} /><${Outbox} me=${me} /></div>`;
  }
  return html`<${Operations} me=${me} />`;
}

function Operations({ me }) {
  const [query, setQuery] = useQuery();
  const { value, error, at, again, history } = useFigures();
  const table = useRead("admin/metrics-table", {}, 3_600_000);
  const processes = useMemo(() => replicas(value), [value]);
  const chosen = processes.find((process) => process.id === query.process) ?? processes.find((process) => process.id === value?.process?.id) ?? processes[0];
  const kept = history.get(chosen?.id) ?? [];
  // The latest reports, for current values.
  const snapshots = chosen && chosen.at > (kept.at(-1)?.at ?? 0) ? [...kept, { at: chosen.at, figures: chosen.figures }] : kept;
  return html`<div class="page">
    <header class="page-head"><h1>Operations</h1>${value && html`<span class="muted">${plural(processes.length, "process", "processes")}, read <${Ago} time=${at} /></span>`}</header>
    ${error && html`<${Failure} error=${error} again=${again} at=${value ? at : 0} what="the figures" />`}
    ${!value && !error && html`<p class="muted" role="status">Loading …</p>`}
    ${value && html`
      <${Processes} ...${{ processes, chosen, now: value.now, choose: (id) => setQuery({ process: id }) }} />
      <${Charts} snapshots=${snapshots} bounds=${boundsOf(table.value)} />`}
    <${Running} />
    <${Outbox} me=${me} /></div>`;
}

/**
 * Read the figures every five seconds: `{value, error, at, again, history}`, with the snapshots of each process by its
 * id. The answering process keeps its own snapshots, of which only new ones are requested; those of the others are
 * collected from the time when the page was opened.
 */
function useFigures() {
  const [state, setState] = useState({ value: null, error: null, at: 0, history: new Map() });
  const history = useRef(new Map());
  const since = useRef(0);
  const read = async () => {
    try {
      const value = await get("admin/figures", { since: since.current || "" });
      const own = value.process;
      const add = (id, snapshots) => {
        const known = history.current.get(id) ?? [];
        const after = known.at(-1)?.at ?? 0;
        const kept = [...known, ...snapshots.filter((one) => one.at > after)];
        history.current.set(id, kept.filter((one) => one.at > value.now - KEPT));
      };
      add(own.id, own.samples);
      for (const process of value.processes) add(process.id, [{ at: process.at, figures: process.figures }]);
      since.current = own.samples.at(-1)?.at ?? since.current;
      setState({ value, error: null, at: Date.now(), history: new Map(history.current) });
    } catch (error) {
      setState((old) => ({ ...old, error }));
    }
  };
  usePolled(read, 5000, []);
  return { ...state, again: read };
}

function boundsOf(metrics) {
  return Object.fromEntries((metrics ?? []).map((metric) => [metric.name, metric.bounds ?? []]));
}

function Charts({ snapshots, bounds }) {
  const times = snapshots.map((snapshot) => snapshot.at);
  const part = (name, labels) => gauge(snapshots, name, labels);
  const speed = (name, labels) => rate(snapshots, name, labels);
  const share = (name, of) => percentile(snapshots, name, of, bounds[name] ?? []);
  const limit = total(snapshots.at(-1)?.figures, "errands_turns_limit");
  const charts = [
    ["Requests", "per second", perSecond, [["all", speed("errands_requests_total")], ["refused", refusals(snapshots)]]],
    ["Tasks", "that entered a state, per second", perSecond, [
      ["submitted", speed("errands_tasks_total", { state: "submitted" })], ["completed", speed("errands_tasks_total", { state: "completed" })],
      ["failed", speed("errands_tasks_total", { state: ["failed", "rejected"] })]]],
    ["Latency of requests", "of the last minute", seconds, ["p50", "p95", "p99"].map((name) => [name, share("errands_request_seconds", Number(name.slice(1)) / 100)])],
    ["Time of turns", "of the last minute", seconds, ["p50", "p95", "p99"].map((name) => [name, share("errands_turn_seconds", Number(name.slice(1)) / 100)])],
    ["Turns", limit === null ? "running" : `running, of ${limit}`, whole, [["running", part("errands_turns_running")], ["subscribers", part("errands_subscribers")]]],
    ["Queue age", "how long the oldest has waited", seconds, [["oldest", part("errands_queue_age_seconds")]]],
    ["Leases", "since the process began", whole, [["lost", part("errands_leases_lost_total")], ["expired", part("errands_attempts_total", { cause: "expired" })], ["given back", part("errands_attempts_total", { cause: "given back" })]]],
    ["Outbox", "how long webhooks are behind", seconds, [["behind", part("errands_outbox_lag_seconds")]]],
    ["Deliveries", "of webhooks, per second", perSecond, ["delivered", "failed", "dead"].map((outcome) => [outcome, speed("errands_deliveries_total", { outcome })])],
    ["Model tokens", "per second", perSecond, [["prompt", speed("errands_model_tokens_total", { kind: "prompt" })], ["completion", speed("errands_model_tokens_total", { kind: "completion" })]]],
    ["Tool calls", "per second", perSecond, ["ok", "failed", "refused"].map((outcome) => [outcome, speed("errands_tool_calls_total", { outcome })])],
    ["Commits", "seconds until durable, of the last minute", seconds, ["p50", "p95"].map((name) => [name, share("errands_commit_seconds", Number(name.slice(1)) / 100)])],
    ["Event loop", "longest hold", seconds, [["held", part("errands_loop_lag_seconds")]]],
    ["Memory", "of the process", fileSize, [["resident", part("errands_resident_bytes")]]],
  ];
  return html`
    <section aria-labelledby="charts"><h2 id="charts">Last 15 minutes</h2>
      <div class="charts">${charts.map(([title, note, format, series]) => html`
        <${Chart} key=${title} ...${{ title, note, times, format, limit: title === "Turns" ? limit : null }} series=${series.map(([name, values]) => ({ name, values }))} />`)}</div>
    </section>`;
}

function refusals(snapshots) {
  const all = rate(snapshots, "errands_requests_total"), ok = rate(snapshots, "errands_requests_total", { outcome: "ok" });
  return all.map((value, index) => value === null ? null : Math.max(0, value - (ok[index] ?? 0)));
}

function Processes({ processes, chosen, now, choose }) {
  return html`
    <section aria-labelledby="processes"><h2 id="processes">Processes</h2>
      <div class="table-scroll" tabindex="0" role="region" aria-label="Processes">
      <table class="processes cards">
        <thead><tr><th scope="col">Process</th><th scope="col">Role</th><th scope="col">Version</th><th scope="col">Up for</th><th scope="col">Last report</th><th scope="col">Turns</th><th scope="col">Leases lost</th><th scope="col">Memory</th><th scope="col">Charts</th></tr></thead>
        <tbody>${processes.map((process) => {
          const value = (name) => total(process.figures, name);
          const limit = value("errands_turns_limit"), memory = value("errands_resident_bytes"), late = now - process.at > 12_000;
          return html`
            <tr key=${process.id} class=${process === chosen ? "chosen" : ""}>
              <th scope="row"><code>${process.id}</code></th><td data-label="Role">${process.role}</td><td data-label="Version">${process.version}</td>
              <td data-label="Up for"><${Ago} time=${process.startedAt} suffix="" /></td>
              <td data-label="Last report" class=${late ? "tone-bad" : ""}><${Ago} time=${process.at} />${late ? " (late)" : ""}</td>
              <td data-label="Turns">${number(value("errands_turns_running") ?? 0)}${limit === null ? "" : ` of ${number(limit)}`}</td>
              <td data-label="Leases lost">${number(value("errands_leases_lost_total") ?? 0)}</td><td data-label="Memory">${memory === null ? "–" : fileSize(memory)}</td>
              <td data-label="Charts"><button type="button" class="small" aria-pressed=${process === chosen} onClick=${() => choose(process.id)}>Show</button></td>
            </tr>`;
        })}</tbody></table></div>
    </section>`;
}

function Running() {
  const { value, error, at, again } = useRead("admin/running");
  return html`
    <section aria-labelledby="running"><h2 id="running">Running now ${value && html`<span class="count">${value.length}</span>`}</h2>
      ${error && html`<${Failure} error=${error} again=${again} at=${value ? at : 0} what="the running turns" />`}
      ${value?.length === 0 && html`<p class="empty">No turn is running. Turns appear here while a worker has their task.</p>`}
      ${value?.length > 0 && html`
        <table class="cards"><thead><tr><th scope="col">Task</th><th scope="col">State</th><th scope="col">Agent</th><th scope="col">Owner</th><th scope="col">Process</th><th scope="col">Attempt</th><th scope="col">Running for</th><th scope="col">Lease ends in</th></tr></thead>
        <tbody>${value.slice(0, 100).map((turn) => html`
          <tr key=${turn.taskId}><td><${Link} to=${`tasks/${encodeURIComponent(turn.taskId)}`}><code>${shortId(turn.taskId)}</code></${Link}></td>
          <td data-label="State"><${State} state=${turn.state} />${turn.cancelRequested ? html`<span class="note">cancel requested</span>` : null}</td><td data-label="Agent">${turn.agent}</td><td data-label="Owner">${turn.owner || "anonymous"}</td>
          <td data-label="Process"><code>${turn.worker}</code></td><td data-label="Attempt">${turn.attempt}</td><td data-label="Running for">${duration(turn.runningFor)}</td>
          <td data-label="Lease ends in">${turn.leaseUntil ? duration(turn.leaseUntil - Date.now()) : "–"}</td></tr>`)}</tbody></table>
        ${value.length > 100 && html`<p class="muted">The first 100 of ${number(value.length)}.</p>`}`}
    </section>`;
}

function Outbox({ me }) {
  const [query, setQuery] = useQuery();
  const dead = query.outbox !== "all";
  const { value, error, at, again } = useRead("admin/outbox", dead ? { dead: 1 } : {});
  const [said, say] = useState("");
  const act = (entry, what, words) => async () => {
    try {
      await post(`admin/outbox/${encodeURIComponent(entry.taskId)}/${encodeURIComponent(entry.configId)}/${what}`, {});
      say(words);
    } catch (problem) { say(problem.message); }
    again();
  };
  return html`
    <section aria-labelledby="outbox"><h2 id="outbox">Outbox ${value && html`<span class="count">${value.length}</span>`}</h2>
      <div class="filters" role="group" aria-label="Which webhooks">
        <button type="button" class="chip" aria-pressed=${dead} onClick=${() => setQuery({ outbox: "" })}>Dead letters</button>
        <button type="button" class="chip" aria-pressed=${!dead} onClick=${() => setQuery({ outbox: "all" })}>All that wait</button>
        <span class="said" role="status">${said}</span></div>
      ${error && html`<${Failure} error=${error} again=${again} at=${value ? at : 0} what="the outbox" />`}
      ${value?.length === 0 && html`<p class="empty">${dead ? "No dead letters. A webhook whose deliveries keep failing appears here after the last try." : "Nothing waits to be delivered."}</p>`}
      ${value?.length > 0 && html`
        <table class="cards"><thead><tr><th scope="col">Host</th><th scope="col">Task</th><th scope="col">State</th><th scope="col">Tries</th><th scope="col">Failing since</th><th scope="col">Last error</th><th scope="col">Actions</th></tr></thead>
        <tbody>${value.map((entry) => html`<${Letter} key=${`${entry.taskId}/${entry.configId}`} entry=${entry} act=${act} allowed=${me?.canWrite !== false} />`)}</tbody></table>`}
    </section>`;
}

function Letter({ entry, act, allowed }) {
  const [sure, setSure] = useState(false);
  return html`
    <tr>
      <th scope="row">${entry.host}</th>
      <td data-label="Task"><${Link} to=${`tasks/${encodeURIComponent(entry.taskId)}`}><code>${shortId(entry.taskId)}</code></${Link}></td>
      <td data-label="State">${entry.dead ? html`<span class="state tone-bad"><span class="glyph" aria-hidden="true">✗</span>Given up</span>` : html`<span class="state tone-busy"><span class="glyph" aria-hidden="true">◐</span>Waits</span>`}</td>
      <td data-label="Tries">${entry.attempts}</td><td data-label="Failing since"><${Ago} time=${entry.failedAt} /></td>
      <td data-label="Last error" class="reason">${visible(entry.error) || "–"}</td>
      <td data-label="Actions">${sure
        ? html`Drop what is undelivered? <button type="button" class="danger small" onClick=${act(entry, "drop", "The webhook was dropped.")}>Yes, drop</button> <button type="button" class="small" onClick=${() => setSure(false)}>No</button>`
        : html`<button type="button" class="small" disabled=${!allowed} onClick=${act(entry, "retry", "Delivery is tried again.")}>Retry</button> <button type="button" class="small" disabled=${!allowed} onClick=${() => setSure(true)}>Drop</button>`}</td>
    </tr>`;
}
