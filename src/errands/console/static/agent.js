/** The agent: its card as people read it, what a check of the card found, its skills, its policy, and the raw JSON. */

import { html, useState } from "./vendor/preact.js";
import { Link, useKeys, useTitle } from "./app.js";
import { Json } from "./parts.js";
import { Failure, useRead } from "./polling.js";
import { visible, words } from "./timeline.js";
import { plural } from "./words.js";

export function page() {
  const { value, error, at, again } = useRead("admin/agent", {}, 60_000);
  const [raw, setRaw] = useState(false);
  useTitle("Agent");
  useKeys({ o: () => setRaw(!raw) });
  if (!value) {
    return html`<div class="page"><h1>Agent</h1>${error ? html`<${Failure} error=${error} again=${again} what="the agent" />` : html`<p class="muted" role="status">Loading …</p>`}</div>`;
  }
  const { card, findings = [], policy, inner = [] } = value;
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
    <section aria-labelledby="policy"><h2 id="policy">Policy</h2><${Policy} policy=${policy} /></section>
    ${inner.length > 0 && html`<section aria-labelledby="inner"><h2 id="inner">Agents inside</h2><ul>${inner.map((one) => html`<li>${typeof one === "string" ? one : html`<b>${one.name}</b> ${one.description}`}</li>`)}</ul></section>`}
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
  if (!schemes.length) return html`<p class="empty">The card names no security schemes: everybody who reaches the agent may use it.</p>`;
  return html`
    <table class="cards"><thead><tr><th scope="col">Scheme</th><th scope="col">Kind</th><th scope="col">Details</th></tr></thead>
      <tbody>${schemes.map(([name, scheme]) => {
        const [kind, detail] = Object.entries(scheme).find(([, value]) => typeof value === "object" && value !== null) ?? [scheme.type ?? "", scheme];
        return html`<tr><th scope="row">${name}</th><td data-label="Kind">${words(kind.replace(/SecurityScheme$/, ""))}</td><td data-label="Details"><${Json} value=${detail} /></td></tr>`;
      })}</tbody></table>
    ${required.length > 0 && html`<p class="muted">A caller needs ${required.map((one) => Object.keys(one.schemes ?? one).join(" and ")).filter(Boolean).join(", or ")}.</p>`}`;
}

function Policy({ policy }) {
  const [text, setText] = useState(false);
  const rules = policy?.rules ?? [];
  if (!policy || (!rules.length && !policy.text)) return html`<p class="empty">This agent has no policy: its calls are neither checked nor limited.</p>`;
  const columns = [...new Set(rules.flatMap((rule) => Object.keys(rule)))];
  return html`
    ${policy.version && html`<p class="muted">Version <code>${policy.version}</code></p>`}
    ${rules.length > 0 && html`
      <div class="table-scroll" tabindex="0" role="region" aria-label="Rules of the policy">
        <table class="rules"><thead><tr>${columns.map((name) => html`<th scope="col">${words(name)}</th>`)}</tr></thead>
        <tbody>${rules.map((rule) => html`<tr>${columns.map((name) => html`<td>${cell(rule[name])}</td>`)}</tr>`)}</tbody></table></div>`}
    ${policy.text && html`<p><button type="button" class="small" aria-expanded=${text} onClick=${() => setText(!text)}>${text ? "Hide" : "Show"} the compiled policy</button></p>
      ${text && html`<pre class="rule"><code>${visible(policy.text)}</code></pre>`}`}`;
}

function cell(value) {
  if (value === null || value === undefined || value === "") return html`<span class="muted">–</span>`;
  return typeof value === "object" ? html`<${Json} value=${value} />` : html`<code>${visible(String(value))}</code>`;
}
