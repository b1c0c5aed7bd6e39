/** Small live line charts in SVG, each with a table of the same figures below. */


import { html, useState } from "./vendor/preact.js";
const WIDTH = 360, HEIGHT = 120, TOP = 8, BOTTOM = 18;

/** Return the smallest of 1, 2 or 5 times a power of ten that is not below a value. */
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999999);
}

/** Return the `d` attribute of a line, which is interrupted where there is no value. */
export function linePath(values, x, y) {
  let path = "", pen = false;
  values.forEach((value, index) => {
    if (value === null || value === undefined) { pen = false; return; }
    path += `${pen ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
    // A single point would not be visible.
    if (!pen && (values[index + 1] ?? null) === null) path += "h0.1";
    pen = true;
  });
  return path;
}

/**
 * A chart: `times` in milliseconds, and `series` of `{name, values, tone}` with a value or null for each time. `tone` is
 * the colour class, and `format` writes a value with its unit. The first series is drawn on top.
 */
export function Chart({ title, note, times, series, format = String, limit = null, children }) {
  const [pointed, point] = useState(null);
  const known = series.flatMap((one) => one.values).filter((value) => value !== null && value !== undefined);
  const most = Math.max(...known, 0);
  // A limit that is far away would make the line flat.
  const bound = limit !== null && limit <= 4 * most ? limit : null;
  const top = roundUp(Math.max(most, bound ?? 0));
  const last = times.length - 1;
  const length = times[last] - times[0];
  const x = (index) => length > 0 ? (times[index] - times[0]) / length * WIDTH : WIDTH;
  const y = (value) => HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM);
  const at = pointed === null ? newest(series) : Math.min(pointed, last);
  const move = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const time = times[0] + (event.clientX - box.left) / box.width * length;
    const after = times.findIndex((one) => one >= time);
    point(after < 0 ? last : after > 0 && time - times[after - 1] < times[after] - time ? after - 1 : after);
  };
  const summary = series.map((one) => `${one.name} ${shown(one.values[newest(series)], format)}`).join(", ");
  return html`
    <figure class="chart">
      <figcaption><h3>${title}</h3>${note && html`<span class="muted">${note}</span>`}${children}</figcaption>
      ${known.length === 0
        ? html`<p class="chart-empty muted">No figures yet. They appear within a few seconds of the first request.</p>`
        : html`
        <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${`${title}: ${summary}`}
          onPointerMove=${move} onPointerLeave=${() => point(null)}>
          ${[0, 0.5, 1].map((part) => html`<line class="grid" x1="0" x2=${WIDTH} y1=${y(top * part)} y2=${y(top * part)} />`)}
          ${bound !== null && html`<line class="limit" x1="0" x2=${WIDTH} y1=${y(bound)} y2=${y(bound)} />`}
          ${series.map((one, index) => html`<path class=${`line ${toneOf(one, index)}`} d=${linePath(one.values, x, y)} />`).reverse()}
          ${pointed !== null && html`<line class="pointer" x1=${x(at)} x2=${x(at)} y1=${TOP} y2=${HEIGHT - BOTTOM} />`}
        </svg>
        <div class="chart-axis muted"><span>${clock(times[0])}</span><span>top ${format(top)}</span><span>${clock(times[last])}</span></div>`}
      <ul class="legend">
        ${series.map((one, index) => html`
          <li><span class=${`swatch ${toneOf(one, index)}`} aria-hidden="true"></span>${one.name} <b>${shown(one.values[at], format)}</b></li>`)}
      </ul>
      ${known.length > 0 && html`<${Twin} title=${title} times=${times} series=${series} format=${format} />`}
    </figure>`;
}

function toneOf(series, index) {
  return series.tone ?? `series-${index}`;
}

/** The same figures as a table: the newest twenty. */
function Twin({ title, times, series, format }) {
  const [open, toggle] = useState(false);
  const rows = times.map((_, index) => index).slice(-20).reverse();
  return html`
    <details onToggle=${(event) => toggle(event.currentTarget.open)}>
      <summary>Table<span class="visually-hidden"> of ${title}</span></summary>
      ${open && html`
        <div class="table-scroll" tabindex="0" role="region" aria-label=${`${title}, as a table`}>
          <table class="figures">
            <thead><tr><th scope="col">Time</th>${series.map((one) => html`<th scope="col">${one.name}</th>`)}</tr></thead>
            <tbody>${rows.map((index) => html`
              <tr><th scope="row">${clock(times[index])}</th>
              ${series.map((one) => html`<td>${shown(one.values[index], format)}</td>`)}</tr>`)}
            </tbody>
          </table>
        </div>`}
    </details>`;
}

function newest(series) {
  const lengths = series.map((one) => one.values.findLastIndex((value) => value !== null && value !== undefined));
  return Math.max(0, ...lengths);
}

function shown(value, format) {
  return value === null || value === undefined ? "–" : format(value);
}

function clock(time) {
  return time === undefined ? "" : new Date(time).toLocaleTimeString([], { hour12: false });
}
