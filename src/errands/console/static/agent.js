/** The agent: its card in readable form, the findings of a check, its skills, its policy, and the raw JSON. */

import { html, useState } from "./vendor/preact.js";
import { Link, useKeys, useTitle } from "./app.js";
import { Json, visible } from "./parts.js";
import { Failure, useRead } from "./polling.js";
import { plural, words } from "./words.js";

export function page() {
  const { value, error, at, again } = useRead("admin/agent", {}, 60_000);
  const [raw, setRaw] = useState(false);
  useTitle("Agent");
  useKeys({ o: () => setRaw(!raw) });
  if (!value) {
    return html`<div class="page"><h1>Agent</h1>${error ? html`<${Failure} error=${error} again=${again} what="the agent" />` : html`<p class="muted" role="status">Loading …</p>`}</div>`;
  }
  const { card, findings = [], policies = [], innerAgents = [] } = value;
  const skills = value.skills ?? card.skills ?? [];
  return html`<div class="page">
    <header class="page-head"><h1>${card.name}</h1><span class="muted">version ${card.version}</span>
      <${Link} to="/chat" class="button primary">Chat with it</${Link}></header>
    ${error && html`<${Failure} error=${error} again=${again} at=${at} what="the agent again" />`}
    <p class="lead">${card.description}</p>
    <div class="columns">
      <section aria-labelledby="about"><h2 id="about">Card</h2><${About} card=${card} /></section>
      <section aria-labelledby="check"><h2 id="check">Check</h2><${Findings} findings=${findings} /></section>
    </div>
    <section aria-labelledby="skills"><h2 id="skills">Skills</h2>
      ${skills.length === 0 ? html`<p class="empty">The card names no skills.</p>` : html`<ul class="skills plain">${skills.map((skill) => html`<${Skill} skill=${skill} />`)}</ul>`}</section>
    <section aria-labelledby="security"><h2 id="security">Security</h2><${Security} card=${card} /></section>
    <section aria-labelledby="policy"><h2 id="policy">Policy</h2>
      ${policies.length === 0 ? html`<p class="empty">Only operators see the policy.</p>` : policies.map((policy) => html`<${Policy} key=${policy.agent} policy=${policy} named=${policies.length > 1} />`)}</section>
    ${innerAgents.length > 0 && html`<section aria-labelledby="inner"><h2 id="inner">Agents inside</h2>
      <p>It delegates work to ${innerAgents.map((name, index) => html`${index ? ", " : ""}<b>${name}</b>`)}.</p></section>`}
    <section aria-labelledby="raw"><h2 id="raw">Raw card</h2>
      <button type="button" class="small" aria-expanded=${raw} onClick=${() => setRaw(!raw)}>${raw ? "Hide the JSON" : "Show the JSON"}</button>
      ${raw && html`<${Json} value=${card} />`}</section></div>`;
}

function About({ card }) {
  const capabilities = Object.entries(card.capabilities ?? {}).filter(([, value]) => typeof value === "boolean");
  const facts = [
    ["Provider", card.provider && html`${card.provider.organization} <span class="muted">${card.provider.url}</span>`],
    ["Interfaces", html`<ul class="plain">${(card.supportedInterfaces ?? []).map((one) => html`
      <li><b>${one.protocolBinding}</b> ${one.protocolVersion} <code>${one.url}</code>${one.tenant ? ` tenant ${one.tenant}` : ""}</li>`)}</ul>`],
    ["Can", capabilities.length ? capabilities.map(([name, value]) => html`<span class=${`tag ${value ? "yes" : "no"}`}>${value ? "✓" : "✗"} ${words(name)}</span>`) : null],
    ["Takes", (card.defaultInputModes ?? []).map((mode) => html`<code class="tag">${mode}</code>`)],
    ["Gives", (card.defaultOutputModes ?? []).map((mode) => html`<code class="tag">${mode}</code>`)],
    ["Extensions", card.capabilities?.extensions?.length ? html`<ul class="plain">${card.capabilities.extensions.map((one) => html`<li><code>${one.uri}</code>${one.required ? " (required)" : ""} ${one.description}</li>`)}</ul>` : null],
    ["Documentation", card.documentationUrl],
    ["Signatures", card.signatures?.length ? plural(card.signatures.length, "signature") : null],
  ];
  return html`<dl class="facts">${facts.filter(([, value]) => value && (!Array.isArray(value) || value.length)).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

function Findings({ findings }) {
  if (!findings.length) return html`<p class="verdict-line tone-good"><span class="glyph" aria-hidden="true">✓</span> The card is valid. The check found nothing.</p>`;
  const errors = findings.filter((finding) => finding.severity === "error").length;
  return html`
    <p class=${`verdict-line tone-${errors ? "bad" : "asks"}`}><span class="glyph" aria-hidden="true">${errors ? "✗" : "?"}</span>
      ${plural(errors, "error")}, ${plural(findings.length - errors, "warning")}</p>
    <ul class="findings plain">${findings.map((finding) => html`
      <li class=${`tone-${finding.severity === "error" ? "bad" : "asks"}`}><b>${finding.severity}</b> <code>${finding.where}</code> ${finding.text}</li>`)}</ul>`;
}

function Skill({ skill }) {
  const examples = skill.examples ?? [];
  const chat = (text) => `/chat?${new URLSearchParams({ text })}`;
  return html`
    <li class="skill"><h3>${skill.name}</h3><p>${skill.description}</p>
      <p>${(skill.tags ?? []).map((tag) => html`<span class="tag">${tag}</span>`)}</p>
      <div class="skill-buttons">
        ${examples.length
          ? examples.slice(0, 4).map((example) => html`<${Link} to=${chat(example)} class="button">${example}</${Link}>`)
          : html`<${Link} to=${chat(skill.name)} class="button">Try ${skill.name}</${Link}>`}
      </div></li>`;
}

function Security({ card }) {
  const schemes = Object.entries(card.securitySchemes ?? {});
  const required = card.securityRequirements ?? card.security ?? [];
  if (!schemes.length) return html`<p class="empty">The card names no security schemes: everyone who can reach the agent may use it.</p>`;
  return html`
    <table class="cards"><thead><tr><th scope="col">Scheme</th><th scope="col">Kind</th><th scope="col">Details</th></tr></thead>
      <tbody>${schemes.map(([name, scheme]) => {
        const [kind, detail] = Object.entries(scheme).find(([, value]) => typeof value === "object" && value !== null) ?? [scheme.type ?? "", scheme];
        return html`<tr><th scope="row">${name}</th><td data-label="Kind">${words(kind.replace(/SecurityScheme$/, ""))}</td><td data-label="Details"><${Json} value=${detail} /></td></tr>`;
      })}</tbody></table>
    ${required.length > 0 && html`<p class="muted">A caller needs ${required.map((one) => Object.keys(one.schemes ?? one).join(" and ")).filter(Boolean).join(", or ")}.</p>`}`;
}

/** The rules and limits in the policy of one agent, as a table, and as the text that it was compiled to. */
function Policy({ policy, named }) {
  const [open, setOpen] = useState(false);
  const { rules, limits, text, version, agent } = policy;
  const bounds = Object.entries(limits);
  return html`
    ${named && html`<h3>${agent}</h3>`}
    ${!rules.length && !bounds.length && html`<p class="empty">No policy: calls are neither checked nor limited.</p>`}
    ${version && html`<p class="muted">Version <code>${version}</code></p>`}
    ${bounds.length > 0 && html`<p class="limits">${bounds.map(([name, limit]) => html`<span class="tag">${words(name)} <b>${String(limit)}</b></span>`)}</p>`}
    ${rules.length > 0 && html`
      <table class="rules cards"><thead><tr><th scope="col">When</th><th scope="col">Rule</th><th scope="col">Otherwise</th></tr></thead>
        <tbody>${rules.map((rule) => html`
          <tr><td data-label="When">${rule.phase}${rule.capability ? html` <code>${rule.capability}${rule.match ? `_${rule.match}` : ""}</code>` : ""}</td>
            <td data-label="Rule"><b>${rule.action}</b> <code>${visible(rule.invoke || rule.expression)}</code>${rule.condition && html` <span class="muted">when <code>${visible(rule.condition)}</code></span>`}
              <span class="sub">${rule.name}</span></td>
            <td data-label="Otherwise">${rule.onFail || "–"}</td></tr>`)}</tbody></table>`}
    ${text && html`<p><button type="button" class="small" aria-expanded=${open} onClick=${() => setOpen(!open)}>${open ? "Hide" : "Show"} the compiled policy</button></p>
      ${open && html`<pre class="rule"><code>${visible(text)}</code></pre>`}`}`;
}
