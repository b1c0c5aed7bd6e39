/** Operations: throughput, latency, queue and leases as live charts, each process, what runs now, and dead letters. */

import { html, useMemo, useRef, useState } from "./vendor/preact.js";
import { get, post } from "./api.js";
import { Link, useQuery, useTitle } from "./app.js";
import { Chart } from "./chart.js";
import { commonTimes, gauge, heldAt, percentile, percentileAt, rate, replicas, total, totalAt } from "./figures.js";
import { fileSize, visible } from "./parts.js";
import { Failure, usePolled, useRead } from "./polling.js";
import { Ago, State, duration, number, plural, shortId } from "./words.js";

/** How long snapshots are shown. */
const KEPT = 900_000;
/** Processes that have a line of their own in a chart of all. */
const MOST_LINES = 6;
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
  // Without a choice all of them are shown together.
  const chosen = processes.length === 1 ? processes[0] : processes.find((process) => process.id === query.process) ?? null;
  const choose = (id) => setQuery({ process: id });
  return html`<div class="page">
    <header class="page-head"><h1>Operations</h1>${value && html`<span class="muted">${plural(processes.length, "process", "processes")}, read <${Ago} time=${at} /></span>`}</header>
    ${error && html`<${Failure} error=${error} again=${again} at=${value ? at : 0} what="the figures" />`}
    ${!value && !error && html`<p class="muted" role="status">Loading …</p>`}
    ${value && html`
      <${Processes} ...${{ processes, chosen, now: value.now, choose }} />
      <${Charts} ...${{ processes, chosen, choose, history, bounds: boundsOf(table.value) }} />`}
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

/**
 * Every chart: its title and note, how values are written, its series, and how those of several processes are combined.
 * A series is a name and a function that makes values of the snapshots of one process, or the share of a percentile.
 */
function chartsOf(bounds) {
  const part = (name, labels) => (snapshots) => gauge(snapshots, name, labels);
  const speed = (name, labels) => (snapshots) => rate(snapshots, name, labels);
  const shares = (name, shown) => ({
    metric: name, bounds: bounds[name] ?? [],
    series: shown.map((of) => [`p${of}`, (snapshots) => percentile(snapshots, name, of / 100, bounds[name] ?? []), of / 100]),
  });
  const each = (names, make) => names.map((name) => [name, make(name)]);
  return [
    { title: "Requests", note: "per second", format: perSecond, series: [["all", speed("errands_requests_total")], ["refused", refusals]] },
    { title: "Tasks", note: "that entered a state, per second", format: perSecond, series: [
      ...each(["submitted", "completed"], (state) => speed("errands_tasks_total", { state })), ["failed", speed("errands_tasks_total", { state: ["failed", "rejected"] })]] },
    { title: "Latency of requests", note: "of the last minute", format: seconds, ...shares("errands_request_seconds", [50, 95, 99]) },
    { title: "Time of turns", note: "of the last minute", format: seconds, ...shares("errands_turn_seconds", [50, 95, 99]) },
    { title: "Turns", note: "running", format: whole, limit: "errands_turns_limit", series: [["running", part("errands_turns_running")], ["subscribers", part("errands_subscribers")]] },
    { title: "Queue age", note: "how long the oldest has waited", format: seconds, combine: Math.max, series: [["oldest", part("errands_queue_age_seconds")]] },
    { title: "Leases", note: "since the process began", format: whole, series: [["lost", part("errands_leases_lost_total")], ...each(["expired", "given back"], (cause) => part("errands_attempts_total", { cause }))] },
    { title: "Outbox", note: "how long webhooks are behind", format: seconds, combine: Math.max, series: [["behind", part("errands_outbox_lag_seconds")]] },
    { title: "Deliveries", note: "of webhooks, per second", format: perSecond, series: each(["delivered", "failed", "dead"], (outcome) => speed("errands_deliveries_total", { outcome })) },
    { title: "Dead letters", note: "webhooks that were given up", format: whole, combine: Math.max, series: [["dead", part("errands_outbox_dead")]] },
    { title: "Model tokens", note: "per second", format: perSecond, series: each(["prompt", "completion"], (kind) => speed("errands_model_tokens_total", { kind })) },
    { title: "Tool calls", note: "per second", format: perSecond, series: each(["ok", "failed", "refused"], (outcome) => speed("errands_tool_calls_total", { outcome })) },
    { title: "Commits", note: "until durable, of the last minute", format: seconds, ...shares("errands_commit_seconds", [50, 95]) },
    { title: "Event loop", note: "longest hold", format: seconds, combine: Math.max, series: [["held", part("errands_loop_lag_seconds")]] },
    { title: "Processor", note: "cores in use", format: (value) => value.toFixed(2), series: [["cores", speed("errands_process_cpu_seconds_total")]] },
    { title: "Memory", note: "resident", format: fileSize, series: [["resident", part("errands_resident_bytes")]] },
  ];
}

function Charts({ processes, chosen, choose, history, bounds }) {
  const shown = chosen ? [chosen] : processes;
  const histories = shown.map((process) => {
    const kept = history.get(process.id) ?? [];
    // What was just reported, for the values of this moment.
    return process.at > (kept.at(-1)?.at ?? 0) ? [...kept, { at: process.at, figures: process.figures }] : kept;
  });
  const times = chosen ? histories[0].map((snapshot) => snapshot.at) : commonTimes(histories);
  return html`
    <section aria-labelledby="charts"><h2 id="charts">Last 15 minutes</h2>
      ${processes.length > 1 && html`
        <div class="filters" role="group" aria-label="Whose charts">
          <button type="button" class="chip" aria-pressed=${!chosen} onClick=${() => choose("")}>All processes</button>
          ${chosen && html`<span class="chip chosen"><code>${chosen.id}</code></span>`}</div>`}
      <div class="charts">${chartsOf(bounds).map((chart) => {
        const limits = chart.limit ? shown.map((process) => total(process.figures, chart.limit)).filter((limit) => limit !== null) : [];
        const limit = limits.length ? limits.reduce((sum, one) => sum + one) : null;
        const facts = { ...chart, times, limit, note: limit === null ? chart.note : `${chart.note}, of ${number(limit)}` };
        return chosen
          ? html`<${Chart} key=${chart.title} ...${facts} series=${chart.series.map(([name, values]) => ({ name, values: values(histories[0]) }))} />`
          : html`<${Compared} key=${chart.title} ...${{ chart: facts, processes, histories }} />`;
      })}</div>
    </section>`;
}

/** A chart of all processes: a line for what they have together, and one for each. It shows one of its series. */
function Compared({ chart, processes, histories }) {
  const [at, show] = useState(0);
  const { times, series, combine, metric, bounds } = chart;
  const [, values, share] = series[at];
  const lines = histories.map((snapshots) => heldAt(times, snapshots, values(snapshots)));
  const all = metric ? percentileAt(times, histories, metric, share, bounds) : totalAt(times, processes, lines, combine);
  const newest = (line) => line.findLast((value) => value !== null && value !== undefined) ?? -1;
  const ranked = processes.map((process, index) => ({ name: process.id, values: lines[index], rank: newest(lines[index]) }));
  // The lines keep their colours while values change, unless there are too many of them.
  const drawn = ranked.length > MOST_LINES ? ranked.sort((one, other) => other.rank - one.rank).slice(0, MOST_LINES) : ranked;
  const hidden = ranked.length - drawn.length;
  const word = metric ? "together" : combine ? "highest" : "total";
  return html`
    <${Chart} ...${chart} series=${[{ name: word, values: all, tone: "series-all" }, ...drawn.map((line, index) => ({ ...line, tone: `series-${index}` }))]}>
      ${series.length > 1 && html`
        <span class="choices" role="group" aria-label=${`What ${chart.title} shows`}>${series.map(([name], index) => html`
          <button type="button" class="choice" aria-pressed=${index === at} onClick=${() => show(index)}>${name}</button>`)}</span>`}
      ${hidden > 0 && html`<span class="muted">The ${MOST_LINES} highest of ${number(ranked.length)} processes.</span>`}
    </${Chart}>`;
}

function refusals(snapshots) {
  const all = rate(snapshots, "errands_requests_total"), ok = rate(snapshots, "errands_requests_total", { outcome: "ok" });
  return all.map((value, index) => value === null || value === undefined ? value : Math.max(0, value - (ok[index] ?? 0)));
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
